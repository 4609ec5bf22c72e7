"""What a user's loop does between the batch and the losses, taped, so that it can be done again.

The tensors that a loop is given, and all that is computed from them, are `Taped`: they behave as
any tensor does and write down every function that they go through. Played again with other records
in the place of some, the tape shows whether a record's loss depends on other records; played with
one record alone, it gives the gradient of that record's own loss. The model is on the tape as one
call, without what happens inside.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from dither.training.errors import StepError
from dither.training.recount import recounted
from dither.validate import InvalidValueError

_TELLING = frozenset(
    {
        "item", "tolist", "numpy", "__array__", "__bool__", "__float__", "__int__", "__index__",
        "__complex__", "__contains__", "is_nonzero", "equal", "allclose",
    }
)  # fmt: skip
"""Functions whose answer is no tensor and depends on the values."""


_PLAIN_BACKWARD = (Tensor.backward, torch.autograd.backward, torch.autograd.grad)


@dataclass(frozen=True)
class Call:
    """One call on the tape; ``function`` is None for the model's."""

    function: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


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
        tapes = (t.tape for t in tree_leaves((args, kwargs)) if isinstance(t, Taped))
        tape = next((tape for tape in tapes if tape is not None and tape.is_running), None)
        if tape is not None and func in _PLAIN_BACKWARD:
            raise StepError(
                "a plain backward() of a private batch would compute gradients without noise: call "
                "private.backward(losses) in its place"
            )
        with torch._C.DisableTorchFunctionSubclass():
            output = func(*args, **kwargs)
        return output if tape is None else tape.note(func, args, kwargs, output)


class Tape:
    """The calls of one piece of a batch, from its tensors to its losses.

    Args:
        batch: the tensors that the loop is given.
        rows: how many rows they have, one a view of a record.
    """

    def __init__(self, batch: Any, rows: int) -> None:
        self.rows = rows
        self.is_running = True
        self.batch = self._taped(batch)
        self.outputs: list[Any] = []
        self._calls: list[Call] = []
        self._told: str | None = None
        self._losses: Tensor | None = None

    def note(
        self,
        function: Callable[..., Any] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> Any:
        """Write down a call, and return its output taped."""
        if function is None:
            self.outputs.append(output)
        elif function.__name__ in _TELLING:
            self._told = function.__name__
        elif output is not None and not _tensors(output):
            return output  # a shape or a type: of no record in particular
        output = self._taped(output)
        self._calls.append(Call(function, args, kwargs, output))
        return output

    def stop(self, losses: Tensor) -> None:
        """Stop at the losses: what comes later is the user's own affair."""
        self.is_running = False
        self._losses = losses
        if self._told is not None:
            raise InvalidValueError(
                "losses must come from tensors alone, got a value of the batch that was read with "
                f"{self._told}() before private.backward; read it after that, and keep it to "
                "yourself: it is of private data"
            )

    def forget(self) -> None:
        """Let go of all tensors."""
        self.is_running = False
        self._calls, self.outputs, self.batch, self._losses = [], [], None, None

    @property
    def key(self) -> object:
        """The functions on the tape with their settings, the same for batches treated alike."""
        return tuple(
            (call.function, self._setting(call.args), self._setting(call.kwargs))
            for call in self._calls
        )

    def play(
        self, called: Callable[..., Any], batch: Any, rows: slice, *, recount: bool = True
    ) -> tuple[Tensor, Any]:
        """Do it all again with another batch in the place of some of the rows.

        Args:
            called: what is called in the place of the model.
            batch: the new tensors.
            rows: whose place they take; constants with one entry a row are cut to these.
            recount: whether numbers that look like the number of rows are changed to the new one.

        Returns:
            The losses, and what the last call of the model returned.
        """
        known = {id(old): new for old, new in _pairs(self.batch, batch)}
        outputs: Any = None
        for call in self._calls:
            args, kwargs = self._renewed((call.args, call.kwargs), known, rows)
            if recount:
                args = recounted(call.function, args, self.rows, rows.stop - rows.start)
            if call.function is None:
                output = outputs = called(*args, **kwargs)
            else:
                with torch._C.DisableTorchFunction():
                    output = call.function(*args, **kwargs)
            known.update({id(old): new for old, new in _pairs(call.output, output)})
        return known[id(self._losses)], outputs

    def _renewed(self, value: Any, known: dict[int, Tensor], rows: slice) -> Any:
        if isinstance(value, Tensor):
            if id(value) in known:
                return known[id(value)]
            is_constant = not isinstance(value, torch.nn.Parameter)
            return value[rows] if is_constant and value.shape[:1] == (self.rows,) else value
        if isinstance(value, dict):
            return {key: self._renewed(each, known, rows) for key, each in value.items()}
        if isinstance(value, tuple | list):
            parts = [self._renewed(each, known, rows) for each in value]
            return parts if isinstance(value, list) else tuple(parts)
        return value

    def _taped(self, value: Any) -> Any:
        def tape(tensor: Tensor) -> Tensor:
            taped = tensor if isinstance(tensor, Taped) else tensor.as_subclass(Taped)
            taped.tape = self
            return taped

        return _mapped(Tensor, tape, value)

    def _setting(self, value: Any) -> object:
        if isinstance(value, Tensor):
            return "tensor"
        if isinstance(value, dict):
            return tuple((key, self._setting(each)) for key, each in value.items())
        if isinstance(value, tuple | list):
            return tuple(self._setting(each) for each in value)
        if isinstance(value, float):
            return value != 0.0
        return "rows" if type(value) is int and value == self.rows else str(value)


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


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _pairs(old: Any, new: Any) -> Iterable[tuple[Tensor, Tensor]]:
    return zip(_tensors(old), _tensors(new), strict=True)
