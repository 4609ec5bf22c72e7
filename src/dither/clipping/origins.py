"""Which tensors come from the batch, whose their rows are, and along which dimension."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

from dither.clipping.layouts import Layout, layout_after
from dither.clipping.moves import moves_records, picked_records

_PRODUCTS = {torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__}


class SeenCall(NamedTuple):
    """One call, as it was seen; with every input tensor, its version and the node that made it."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[tuple[Tensor, int, Node | None]]
    outputs: list[Tensor]


class Origin(NamedTuple):
    """What is known of a tensor from the batch.

    Attributes:
        order: the record of every row; None if that is unknown.
        layout: where the records are, as far as is known.
    """

    order: Tensor | None
    layout: Layout | None


class Origins:
    """What is known of tensors, by their ids.

    Args:
        records: how many the batch has.
    """

    def __init__(self, records: int) -> None:
        self._records = records
        self._in_place = torch.arange(records)
        self._known: dict[int, Origin] = {}
        self._alive: list[Tensor] = []  # so that no other tensor gets an id that is known

    def __contains__(self, tensor: Tensor) -> bool:
        return id(tensor) in self._known

    def add(self, tensor: Tensor, layout: Layout | None, *, is_moved: bool = False) -> None:
        """Note that a tensor comes from the batch."""
        self._known[id(tensor)] = Origin(None if is_moved else self._in_place, layout)

    def keep(self, found: Iterable[Tensor], *, others: bool = True) -> None:
        """Keep tensors alive; without others, forget all that were not kept."""
        self._alive += found
        if not others:
            alive = {id(tensor) for tensor in self._alive}
            self._known = {key: origin for key, origin in self._known.items() if key in alive}

    def forget(self, found: Iterable[Tensor]) -> None:
        """Note that tensors do not come from the batch."""
        for tensor in found:
            self._known.pop(id(tensor), None)

    def layout_of(self, tensor: Tensor) -> Layout | None:
        """Return where the records are in a tensor from the batch, as far as is known."""
        return self._known[id(tensor)].layout

    def is_moved(self, tensor: Tensor) -> bool:
        """Return whether rows of a tensor from the batch may be elsewhere."""
        return self._known[id(tensor)].order is not self._in_place

    def other_order(self, value: object) -> Tensor | None:
        """Return the order of the records in a tensor, if it is known to be another one."""
        order = self._known[id(value)].order if id(value) in self._known else None
        return None if order is self._in_place else order

    def follow(self, seen: SeenCall, batch: Collection[int]) -> None:
        """Note what is known of the outputs of a call.

        Args:
            seen: the call.
            batch: the ids of its inputs that come from the batch; if there are none, every record
                has got a copy of something.
        """
        given = next((t for t, _, _ in seen.inputs if id(t) in batch), None)
        if given is None:
            for tensor in seen.outputs:
                self.add(tensor, None)
            return
        known, layout = [self._known[key] for key in batch], self._known[id(given)].layout
        function, arguments = seen.function, (seen.args, seen.kwargs)
        order = self._order_after(seen, known, given, layout)
        is_unclear = any(each.layout not in (layout, None) for each in known)
        for t in seen.outputs:
            after = None
            if layout is not None and not is_unclear:
                after = layout_after(function, arguments, given, layout, t, self._records)
            self._known[id(t)] = Origin(order, after)

    def _order_after(
        self, seen: SeenCall, known: Sequence[Origin], given: Tensor, layout: Layout | None
    ) -> Tensor | None:
        """Return whose each row of the outputs is; None if it is unknown."""
        function, arguments = seen.function, (seen.args, seen.kwargs)
        if self._sums_records(seen):
            return None
        picked = picked_records(function, seen.args, seen.outputs, self._records)
        origins = known if picked is None else [self._known.get(id(seen.args[0]), known[0])]
        first = origins[0].order
        if first is None or any(each.order is not first for each in origins):
            return None
        if picked is None:
            is_moved = moves_records(function, arguments, given, layout, self._records)
            return None if is_moved else first
        order = picked if first is self._in_place else first[picked]
        return self._in_place if torch.equal(order.cpu(), self._in_place) else order

    def _sums_records(self, seen: SeenCall) -> bool:
        """Return whether a matrix product adds up records, as one with a permutation does."""
        if seen.function not in _PRODUCTS or len(seen.args) < 2:
            return False
        other = seen.args[1]
        return id(other) in self._known and other.shape[:1] == (self._records,) and other.dim() == 2
