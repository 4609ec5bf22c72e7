"""What a user's loop does between the batch and the losses, taped, so that it can be done again.

The tensors that a loop is given, and all that is computed from them, are `Taped`: they behave as
any tensor does and write down every function that they go through. The model is on the tape as one
call, and what it returns is cut off from its graph. Played again row by row, with a single record
at a time, the tape gives the gradient of each record's own loss with respect to the model's
outputs, whatever the loop does with them.

Such a replay keeps records apart if nothing else on the tape tells of other records. So a loop may
use the batch, the model's outputs, tensors that are declared public, and Python numbers that are
the same in every step; values that are read from tensors, and sizes that depend on values, are
refused.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from dither.training.errors import StepError
from dither.training.recount import recounted
from dither.validate import InvalidValueError

_TELLING = frozenset(
    {
        "item", "tolist", "numpy", "__array__", "__bool__", "__float__", "__int__", "__index__",
        "__complex__", "__contains__", "is_nonzero", "equal", "allclose", "__dlpack__",
        "nonzero", "argwhere", "unique", "unique_consecutive", "masked_select", "bincount", "histc",
    }
)  # fmt: skip
"""Functions whose answer is no tensor, or of a size, that depends on the values."""

_PLAIN_BACKWARD = (Tensor.backward, torch.autograd.backward, torch.autograd.grad)
_HOOKING = (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook)


class PublicNumber(float):
    """A number that is declared public: it may be another one in every step."""


@dataclass(frozen=True)
class Call:
    """One call on the tape; ``function`` is None for the model's."""

    function: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


@dataclass(frozen=True)
class Output:
    """A tensor that the model returned: as it was, cut off from its graph, and as it was given."""

    value: Tensor
    leaf: Tensor
    given: Tensor


class Taped(Tensor):
    """A tensor that comes from the batch and writes down what is done to it."""

    tape: "Tape | None" = None

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call a function on plain tensors, and tape it."""
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        tapes = (each.tape for each in given if isinstance(each, Taped))
        tape = next((tape for tape in tapes if tape is not None and tape.is_running), None)
        if tape is None:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        tape.refuse_strange(func, given)
        versions = [each._version for each in given if not isinstance(each, Taped)]
        with torch._C.DisableTorchFunctionSubclass():
            output = func(*args, **kwargs)
        if versions != [each._version for each in given if not isinstance(each, Taped)]:
            raise InvalidValueError(
                f"losses must not write to tensors outside, got {_name(func)} that does"
            )
        return tape.note(func, args, kwargs, output)


class Tape:
    """The calls of one piece of a batch, from its tensors to its losses.

    Args:
        batch: the tensors that the loop is given.
        rows: how many rows they have, one a view of a record.
        public: tensors that are declared public, by their ids.
    """

    def __init__(self, batch: Any, rows: int, public: WeakValueDictionary[int, Tensor]) -> None:
        self.rows = rows
        self.is_running = True
        self.batch = self._taped(batch)
        self.outputs: list[Output] = []
        self.calls: list[Call] = []
        self.losses: Tensor | None = None
        self._told: str | None = None
        self._public = public

    def refuse_strange(self, function: Callable[..., Any], given: list[Tensor]) -> None:
        """Raise if a call would bring in what may come from other records, or let values out."""
        if function in _PLAIN_BACKWARD:
            raise StepError(
                "a plain backward() of a private batch would compute gradients without noise: call "
                "private.backward(losses) in its place"
            )
        for tensor in given:
            if isinstance(tensor, Taped):
                if tensor.tape is not self:
                    raise StepError(
                        f"{_name(function)} got a tensor of an earlier batch: what was computed "
                        "from other records must not be in the losses of these"
                    )
            elif tensor is not self._public.get(id(tensor)):
                raise StepError(_undeclared(function, tensor))
        if function in _HOOKING:
            raise StepError(
                "a hook on a tensor of a private batch would see the gradients of all records at "
                "once: leave it out, and look at what the optimizer gets in its place"
            )
        if function is Tensor.__getitem__ and any(t.dtype == torch.bool for t in given[1:]):
            self._told = "a mask in []"
        if _name(function) == "where" and len(given) == 1:
            self._told = "where() with a condition alone"
        if _name(function) == "repeat_interleave" and len(given) > 1:
            self._told = "repeat_interleave() with a tensor of counts"

    def note(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, output: Any
    ) -> Any:
        """Write down a call, and return its output taped."""
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, np.ndarray | np.generic) and not isinstance(leaf, float):
                raise StepError(
                    f"{_name(function)} got a {type(leaf).__name__} of numpy: if it does not come "
                    "from records, declare it with private.public(torch.as_tensor(value))"
                )
        if _name(function) in _TELLING:
            self._told = f"{_name(function)}()"
        elif output is not None and not _tensors(output):
            return output  # a shape or a type: of no record in particular
        output = self._taped(output)
        self.calls.append(Call(function, args, kwargs, output))
        return output

    def note_model(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Write down a call of the model, and return its output without its graph, taped."""
        refuse_strange_output(output)

        def cut(value: Tensor) -> Tensor:
            leaf = value.detach().requires_grad_(value.requires_grad)
            given: Tensor = self._taped(leaf)
            self.outputs.append(Output(value, leaf, given))
            return given

        output = tree_map_only(Tensor, cut, output)
        self.calls.append(Call(None, args, kwargs, output))
        return output

    def stop(self, losses: Tensor) -> None:
        """Stop at the losses: what comes later is the user's own affair."""
        self.is_running = False
        self.losses = losses
        if self._told is not None:
            raise InvalidValueError(
                "losses must come from tensors alone, got a value or a size that depends on values "
                f"of the batch, by {self._told} before private.backward; read it after that, and "
                "keep it to yourself: it is of private data"
            )

    def forget(self) -> None:
        """Let go of all tensors."""
        self.is_running = False
        self.calls, self.outputs, self.batch, self.losses = [], [], None, None

    @cached_property
    def key(self) -> object:
        """The functions on the tape, the same for batches treated alike whatever the numbers."""
        return tuple(
            (call.function, _shape_of((call.args, call.kwargs), self.rows)) for call in self.calls
        )

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """All numbers on the tape but the number of rows and those that are declared public."""
        return tuple(
            number
            for call in self.calls
            for number in _numbers((call.args, call.kwargs))
            if number != self.rows
        )

    def play(
        self,
        called: Callable[..., Any] | None,
        known: dict[int, Tensor],
        rows: int,
        recount: bool = True,
    ) -> tuple[Tensor, Any]:
        """Do it all again with other tensors.

        Args:
            called: what is called in the place of the model; None is for its outputs in ``known``.
            known: id of a tensor on the tape → what takes its place.
            rows: how many rows these have.
            recount: whether numbers in arithmetic that look like the number of rows are changed to
                the new one, as those in other calls are.

        Returns:
            The losses, and what the last call of the model returned.
        """
        known, outputs = dict(known), None
        for call in self.calls:
            args, kwargs = _renewed((call.args, call.kwargs), known)
            if call.function is None:
                if called is None:
                    continue
                output = outputs = called(*args, **kwargs)
            else:
                counts = recounted(call.function, args, self.rows, rows, arithmetic=recount)
                output = _called(call.function, (counts, args), kwargs)
            pairs = zip(_tensors(call.output), _tensors(output), strict=True)
            known.update({id(old): new for old, new in pairs})
        return known[id(self.losses)], outputs

    def public_by_row(self) -> list[Tensor]:
        """Return the public tensors on the tape that have one entry a row."""
        found = {id(t): t for call in self.calls for t in _tensors((call.args, call.kwargs))}
        return [
            t
            for t in found.values()
            if not isinstance(t, Taped) and t.shape[:1] == (self.rows,) and self.rows > 1
        ]

    def _taped(self, value: Any) -> Any:
        def tape(tensor: Tensor) -> Tensor:
            taped = tensor if isinstance(tensor, Taped) else tensor.as_subclass(Taped)
            taped.tape = self
            return taped

        return _mapped(Tensor, tape, value)


def _undeclared(function: Callable[..., Any], tensor: Tensor) -> str:
    what = f"{_name(function)} got a tensor of shape {tuple(tensor.shape)}"
    if isinstance(tensor, torch.nn.Parameter):
        return (
            f"{what} that is a parameter, outside private.model(inputs): use it inside the model; "
            "a penalty on parameters is the optimizer's weight_decay"
        )
    return (
        f"{what} that is neither of the batch nor an output of private.model(inputs); if it does "
        "not come from records, declare it with private.public(tensor)"
    )


def refuse_strange_output(output: Any) -> None:
    """Raise if a model returns what cannot be looked into."""
    leaves = tree_leaves(output)
    strange = [x for x in leaves if not isinstance(x, Tensor | int | float | str | None)]
    if strange or not any(isinstance(leaf, Tensor) for leaf in leaves):
        kind = type(strange[0] if strange else output).__name__
        raise InvalidValueError(
            f"model must return tensors, or tuples, lists or dicts of them, got {kind}"
        )


def plain(value: Any) -> Any:
    """Return the same without tapes."""
    return _mapped(Taped, lambda tensor: tensor.as_subclass(Tensor), value)


def _mapped(kind: type[Tensor], function: Callable[[Any], Tensor], value: Any) -> Any:
    """Return the same with all tensors of a kind replaced, however they are nested."""
    if isinstance(value, Tensor):
        return function(value) if isinstance(value, kind) else value
    if type(value) is tuple:
        return tuple([_mapped(kind, function, each) for each in value])
    if type(value) is dict:
        return {key: _mapped(kind, function, each) for key, each in value.items()}
    return tree_map_only(kind, function, value)


def _called(
    function: Callable[..., Any], choices: tuple[tuple[Any, ...], ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function with the first arguments; a number may equal that of the rows by chance."""
    args, otherwise = choices
    with torch._C.DisableTorchFunction():
        try:
            return function(*args, **kwargs)
        except (RuntimeError, IndexError):
            if args is otherwise:
                raise
            return function(*otherwise, **kwargs)


def _renewed(value: Any, known: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return known.get(id(value), value)
    if isinstance(value, dict):
        return {key: _renewed(each, known) for key, each in value.items()}
    if isinstance(value, tuple | list):
        parts = [_renewed(each, known) for each in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value


def _shape_of(value: Any, rows: int) -> object:
    """Return what a call was given, without values and numbers."""
    if isinstance(value, dict):
        return tuple((key, _shape_of(each, rows)) for key, each in value.items())
    if isinstance(value, tuple | list):
        return tuple(_shape_of(each, rows) for each in value)
    if isinstance(value, slice):
        return tuple(_shape_of(each, rows) for each in (value.start, value.stop, value.step))
    if isinstance(value, Tensor):
        return "tensor"
    if isinstance(value, PublicNumber):
        return "public"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "rows" if value == rows else "number"
    return str(value)


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = tuple(value.values())
    elif isinstance(value, slice):
        value = (value.start, value.stop, value.step)
    if isinstance(value, tuple | list):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, int | float) and not isinstance(value, bool | PublicNumber):
        yield value


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", function))
