"""Records which calls of a forward pass bring parameters and records together.

A :class:`Recorder` sees every PyTorch function that is called while it is active, in a layer or
elsewhere: functions that borrow a layer's weight, bare parameters. It follows which tensors
come from the batch. A call that joins such a tensor with a parameter is a *use* and is noted with
the edge of the graph at which its output's gradient will be computed; what is computed from
parameters alone (a transposed weight, a slice of a position table) stands for its parameters.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dither.clipping.batch import tensors
from dither.clipping.memory import SeenBytes
from dither.clipping.replacements import max_pool2d, spelled_out
from dither.clipping.rows import Layout, layout_of
from dither.clipping.rules.registry import takes_any_leading_dims
from dither.validate import InvalidValueError

_EXPANDING = {Tensor.expand, Tensor.expand_as, Tensor.repeat, torch.broadcast_to}
_IN_PLACE_SUMS = {Tensor.add_, Tensor.sub_, Tensor.__iadd__, Tensor.__isub__}
_MOVING: dict[Any, tuple[int, int | None]] = {
    getattr(home, name): found
    for names, found in {
        ("index_select", "gather", "index_add", "index_copy", "scatter", "scatter_add"): (1, None),
        ("flip", "select", "narrow"): (1, None),
        ("sort",): (1, -1),
        ("topk",): (2, -1),
        ("roll", "take_along_dim", "repeat_interleave", "masked_select"): (2, None),
        ("split", "chunk", "tensor_split"): (2, 0),
        ("unbind",): (1, 0),
        ("cat", "concat", "stack"): (1, 0),
    }.items()
    for name in names
    for home in (torch, Tensor)
    if hasattr(home, name)
}
"""Functions that can put a record into another's row: the position of their ``dim``, and which it
is if it is not given; None for all dimensions flattened."""


@dataclass(frozen=True, eq=False)
class Use:
    """A call that joined records with parameters, as it was seen.

    Attributes:
        function: what was called.
        args: positional arguments.
        kwargs: keyword arguments.
        from_batch: the ids of the tensors among them that come from the batch.
        shapes: of the outputs.
        edges: the outputs' places in the graph, None for those without a gradient.
        sources: the nodes that made the inputs which do not stand for parameters.
        versions: the inputs with their version counters, which change with their values.
        names: the parameters that it uses.
        layout: where the records seem to be in the first output.
        key: the same for uses that are computed alike; None if records may have been moved.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    from_batch: frozenset[int]
    shapes: tuple[torch.Size, ...]
    edges: tuple[GradientEdge | None, ...]
    sources: tuple[Node, ...]
    versions: tuple[tuple[Tensor, int], ...]
    names: tuple[str, ...]
    layout: Layout | None
    key: object

    @property
    def name(self) -> str:
        """What to call the function or layer in a message."""
        return getattr(self.function, "__name__", type(self.function).__name__)


@dataclass(frozen=True, eq=False)
class Derived:
    """A tensor that was computed from parameters alone: the output at ``position`` of a call."""

    value: Tensor
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    position: int | None
    version: int


class SeenCall(NamedTuple):
    """One call, as it was seen; with every input tensor, its version and the node that made it."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[tuple[Tensor, int, Node | None]]
    outputs: list[Tensor]


class Recorder(TorchFunctionMode):
    """Records every use of the parameters while it is active.

    Args:
        parameters: the trainable ones, by name.
        records: how many records the batch has.
        seen: counts the memory of what functions return, if it is to be measured.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], records: int, seen: SeenBytes | None = None
    ) -> None:
        super().__init__()
        self._seen = seen
        self.parameters = dict(parameters)
        self.records = records
        self.uses: list[Use] = []
        self.derived: dict[int, Derived] = {}
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._in_place = torch.arange(records)
        self._orders: dict[int, Tensor | None] = {}  # of tensors from the batch: whose each row is
        self._alive: list[Tensor] = []  # so that no other tensor gets an id that is known
        self._inside_layers, self._is_paused = 0, False
        self._listener: object = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """See one call of a PyTorch function."""
        kwargs = kwargs or {}
        if self._is_paused:
            return func(*args, **kwargs)
        order = self._orders.get(id(args[0])) if args else None
        replacement = spelled_out(func, args, kwargs, None if order is self._in_place else order)
        if replacement is not None:
            with self:
                return replacement()
        if func is functional.embedding and (kwargs.get("max_norm") or (len(args) > 3 and args[3])):
            raise InvalidValueError(
                "model must leave its weights alone, got an embedding with max_norm, which "
                "rewrites the rows that the records use"
            )
        given = tensors((args, kwargs) if kwargs else args)
        before = [(tensor, tensor._version, tensor.grad_fn) for tensor in given]
        output = (max_pool2d if func is functional.max_pool2d else func)(*args, **kwargs)
        made = [args[0]] if func is Tensor.__setitem__ else tensors(output)
        if self._seen is not None:
            self._seen.add(made)
        if made:
            self._record(SeenCall(func, args, kwargs, before, made))
        return output

    def begin_call(self, arguments: Any, ragged: Collection[int]) -> None:
        """Track the arguments of a module that have rows of the batch.

        Several rows per record are tracked only if no argument has one. Records may have different
        numbers of rows, so that it is unknown which row belongs to which record.

        Args:
            arguments: of the call.
            ragged: positions of tensors that had another number of rows in other batches.
        """
        rows = {k: t for k, t in enumerate(tensors(arguments)) if self._has_rows(t)}
        single = {k: t for k, t in rows.items() if len(t) == self.records}
        for place, tensor in (single or rows).items():
            if id(tensor) not in self._orders:
                self._alive.append(tensor)
                is_known = single and place not in ragged
                self._orders[id(tensor)] = self._in_place if is_known else None

    def end_call(self, outputs: list[Tensor]) -> None:
        """Forget what was computed inside a call, but for its outputs."""
        self._alive = [*self._alive, *outputs]
        known = {id(tensor) for tensor in self._alive}
        self._orders = {key: order for key, order in self._orders.items() if key in known}

    def start(self, listener: object) -> None:
        """Start recording, and keep alive the listener that waits for the end of the call."""
        self._listener = listener
        self.__enter__()  # type: ignore[no-untyped-call] # torch's

    def stop(self) -> None:
        """Stop recording."""
        self._listener = None
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call] # torch's

    def enter_layer(self) -> None:
        """Record nothing inside a layer that has a rule of its own."""
        self._inside_layers += 1

    def leave_layer(self, layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Record a layer as one call; without an output it has failed."""
        self._inside_layers -= 1
        if not tensors(output):
            return
        self._is_paused = True
        given = tensors((args, kwargs))
        before = [(tensor, tensor._version, tensor.grad_fn) for tensor in given]
        before += [(p, p._version, None) for p in layer.parameters() if id(p) in self._names]
        self._record(SeenCall(layer, args, kwargs, before, tensors(output)))
        self._is_paused = False

    def parameters_in(self, *arguments: Any) -> list[str]:
        """Return the names of the parameters that the arguments hold or were computed from."""
        found: dict[str, None] = {}
        for tensor in tensors(arguments):
            if id(tensor) in self._names:
                found[self._names[id(tensor)]] = None
            elif id(tensor) in self.derived:
                made = self.derived[id(tensor)]
                found.update(dict.fromkeys(self.parameters_in(made.args, made.kwargs)))
        return list(found)

    def stands_for_parameters(self, tensor: Tensor) -> bool:
        """Return whether the tensor is a parameter or was computed from parameters alone."""
        return id(tensor) in self._names or id(tensor) in self.derived

    def was_changed(self, tensor: Any) -> bool:
        """Return whether something derived, or what it was derived from, was changed in place."""
        made = self.derived.get(id(tensor))
        return made is not None and (
            made.value._version != made.version
            or any(self.was_changed(each) for each in tensors((made.args, made.kwargs)))
        )

    def _has_rows(self, tensor: Tensor) -> bool:
        rows = tensor.dim() > 0 and len(tensor) > 0 and len(tensor) % self.records == 0
        return rows and not self.stands_for_parameters(tensor)

    def comes_from_batch(self, tensor: Tensor) -> bool:
        """Return whether a tensor has rows of the batch, as far as is known.

        A function that torch does not show, such as a custom autograd function, leaves tensors of
        unknown origin: with a gradient, they come from something that was computed here.
        """
        if id(tensor) in self._orders:
            return True
        unknown = tensor.requires_grad and tensor.grad_fn is not None and self._has_rows(tensor)
        if unknown:
            self._orders[id(tensor)] = self._in_place if len(tensor) == self.records else None
        return unknown

    def _record(self, seen: SeenCall) -> None:
        given = [tensor for tensor, _, _ in seen.inputs]
        batch = frozenset(id(tensor) for tensor in given if self.comes_from_batch(tensor))
        held = [tensor for tensor in given if self.stands_for_parameters(tensor)]
        is_per_record = seen.outputs[0].shape[:1] == (self.records,)
        # Positions or types of tokens may be looked up once per record, whatever the record is.
        looks_up = seen.function is functional.embedding and seen.outputs[0].dim() > 2
        spread = bool(held) and (seen.function in _EXPANDING or looks_up) and is_per_record
        if not (batch or spread):
            for tensor in seen.outputs:
                self._orders.pop(id(tensor), None)
            if held and not self._inside_layers:
                self._record_derived(seen)
            return
        order = self._order_after(seen, batch)
        self._orders.update({id(tensor): order for tensor in seen.outputs})
        if held and not self._inside_layers:
            self._record_use(seen, batch, order is not self._in_place)

    def _order_after(self, seen: SeenCall, batch: frozenset[int]) -> Tensor | None:
        """Return whose each row of the outputs is; None if it is unknown."""
        picked = _picked_records(seen, self.records)
        from_batch = [id(seen.args[0])] if picked is not None else [*batch]
        orders = [self._orders.get(key) for key in from_batch]
        first = orders[0] if orders else self._in_place
        if first is None or any(each is not first for each in orders):
            return None
        if picked is None:
            return None if _moves_records(seen, batch, self.records) else first
        order = picked if first is self._in_place else first[picked]
        return self._in_place if torch.equal(order.cpu(), self._in_place) else order

    def _record_derived(self, seen: SeenCall) -> None:
        for position, tensor in enumerate(seen.outputs):
            if tensor.requires_grad and not self.stands_for_parameters(tensor):
                place = position if len(seen.outputs) > 1 else None
                call = seen.function, seen.args, seen.kwargs
                self.derived[id(tensor)] = Derived(tensor, *call, place, tensor._version)

    def _record_use(self, seen: SeenCall, batch: frozenset[int], moved: bool) -> None:
        if not any(tensor.requires_grad for tensor in seen.outputs):
            return
        function, shape = seen.function, seen.outputs[0].shape
        later = function in _IN_PLACE_SUMS
        layout = layout_of(shape, self.records, takes_any_leading_dims(function))
        names = self.parameters_in([tensor for tensor, _, _ in seen.inputs])
        kind = type(function) if isinstance(function, nn.Module) else function
        form = self._signature((seen.args, seen.kwargs), batch)
        is_ambiguous = shape[:2] == (self.records, self.records)
        use = Use(
            function,
            seen.args,
            seen.kwargs,
            batch,
            tuple(tensor.shape for tensor in seen.outputs),
            tuple(get_gradient_edge(t) if t.requires_grad else None for t in seen.outputs),
            tuple(node for t, _, node in seen.inputs if node and not self.stands_for_parameters(t)),
            tuple((t, t._version if later else version) for t, version, _ in seen.inputs),
            tuple(names),
            layout,
            None if moved else (kind, tuple(names), layout, is_ambiguous, len(shape), form),
        )
        self.uses.append(use)

    def _signature(self, arguments: Any, batch: frozenset[int]) -> object:
        """Return the kinds of arguments of a call, without their values and sizes."""
        if isinstance(arguments, Tensor):
            if id(arguments) in batch:
                return "batch", arguments.dim()
            if id(arguments) in self._names:
                return self._names[id(arguments)]
            made = self.derived.get(id(arguments))
            kind = "constant" if made is None else (made.function, made.position)
            return kind, arguments.dim()
        if isinstance(arguments, tuple | list):
            return tuple(self._signature(each, batch) for each in arguments)
        if isinstance(arguments, dict):
            return tuple((name, self._signature(each, batch)) for name, each in arguments.items())
        return type(arguments)


def _picked_records(seen: SeenCall, records: int) -> Tensor | None:
    """Return in which order a call puts all records of its first argument, if it does that."""
    subject = seen.args[0] if seen.args else None
    if not isinstance(subject, Tensor):
        return None
    axis = 0 if subject.shape[:1] == (records,) else 1
    index = _index_along(axis, seen, subject)
    if index is None or not index.shape == subject.shape[axis : axis + 1] == (records,):
        return None
    every = torch.arange(records, device=index.device)
    return index if torch.equal(index.sort().values, every) else None


def _index_along(axis: int, seen: SeenCall, subject: Tensor) -> Tensor | None:
    """Return the integers by which a call picks along a dimension."""
    index: Any = None
    if seen.function in (torch.index_select, Tensor.index_select) and len(seen.args) == 3:
        index = seen.args[2] if seen.args[1] == axis else None
    elif seen.function is Tensor.__getitem__ and axis == 0:
        index = seen.args[1]
    elif seen.function in (torch.sort, Tensor.sort) and subject.dim() == 1:
        index = seen.outputs[1]
    is_index = isinstance(index, Tensor) and index.dtype == torch.int64
    return index if is_index else None


def _moves_records(seen: SeenCall, batch: frozenset[int], records: int) -> bool:
    """Return whether a call can put a record of its first argument into another's row."""
    subjects = [
        t for t in tensors(seen.args[:1]) if id(t) in batch and t.dim() and len(t) % records == 0
    ]
    if not subjects:
        return False
    if seen.function is Tensor.__getitem__:
        return _picks_rows(subjects[0], seen.args[1])
    if seen.function not in _MOVING:
        return False
    place, along = _MOVING[seen.function]
    along = seen.args[place] if len(seen.args) > place else along
    along = seen.kwargs.get("dim", seen.kwargs.get("dims", along))
    if along is None:
        return True
    dims = along if isinstance(along, tuple | list) else (along,)
    most = max(1, subjects[0].dim() + (seen.function is torch.stack))
    return any(dim % most == 0 for dim in dims)


def _picks_rows(subject: Tensor, index: Any) -> bool:
    """Return whether an index takes some rows of a tensor, or all in another order."""
    first = index[0] if isinstance(index, tuple) and index else index
    if isinstance(first, Tensor) and first.dtype == torch.int64:
        every = torch.arange(len(subject), device=first.device)
        return not torch.equal(first.flatten(), every)
    if isinstance(first, slice):
        return first != slice(None)
    return first is not None and first is not Ellipsis
