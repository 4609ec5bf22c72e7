"""What a user's loop does between the batch and the losses, taped, so that it can be done again.

The tensors that a loop is given, and all that is computed from them, are `Taped`: they behave as
any tensor does and write down every function that they go through. The model is on the tape as one
call, and what it returns is cut off from its graph. Played again row by row, with a single record
at a time, the tape gives the gradient of each record's own loss with respect to the model's
outputs, whatever the loop does with them.

Such a replay keeps records apart if nothing else on the tape tells of other records. So a loop may
use the batch, the model's outputs, tensors that are declared public, and Python numbers that are
the same in every step; values that are read from tensors, and sizes that depend on values, are
refused. What the model is called with is computed row by row, too.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from dither.clipping.batch import tensors, vmapped
from dither.training.declared import PublicNumber, PublicTensors, Reading
from dither.training.errors import StepError
from dither.training.recount import recounted
from dither.validate import InvalidValueError

_TELLING = frozenset(
    {
        "item", "tolist", "numpy", "__array__", "__bool__", "__float__", "__int__", "__index__",
        "__complex__", "__contains__", "is_nonzero", "equal", "allclose", "__dlpack__",
        "nonzero", "argwhere", "unique", "unique_consecutive", "masked_select", "bincount", "histc",
        "__repr__", "__format__",
    }
)  # fmt: skip
"""Functions whose answer is no tensor, or of a size, that depends on the values."""

_PLAIN_BACKWARD = (Tensor.backward, torch.autograd.backward, torch.autograd.grad)
_HOOKING = (Tensor.register_hook, Tensor.register_post_accumulate_grad_hook)
_RANDOM = ("dropout", "rand_like", "randn_like", "randint_like", "bernoulli", "multinomial")
_DATA = Tensor.__dict__.get("data", torch._C.TensorBase.data).__get__
_SHOWING = (Tensor.__repr__, Tensor.__format__)
_FAILURES = (RuntimeError, IndexError, ValueError, TypeError)

PREPARE = "dither.integrations.transformers.prepare(model) makes models of transformers fit"

_PLAIN = (
    "a plain backward() of a private batch would compute gradients without noise: call "
    "private.backward(losses) in its place"
)


@dataclass(frozen=True)
class Call:
    """One call on the tape; ``function`` is None for the model's."""

    function: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any

    @property
    def may_write(self) -> bool:
        """Whether it may have changed what it was given; such calls return it, or nothing."""
        if self.function is None:
            return False
        given = {*map(id, tensors((self.args, self.kwargs)))}
        return self.output is None or bool(given & {*map(id, tensors(self.output))})


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
        given = tensors((args, kwargs))
        tapes = (each.tape for each in given if isinstance(each, Taped))
        tape = next((tape for tape in tapes if tape is not None and tape.is_running), None)
        if func in _SHOWING:
            args = plain(args)
        if tape is None:
            return _called_late(func, args, kwargs, given)
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
        public: tensors that are declared public.
        reading: where it is noted that values were read.
    """

    def __init__(self, batch: Any, rows: int, public: PublicTensors, reading: Reading) -> None:
        self.rows = rows
        self.is_running = True
        self.batch = self.taped(batch)
        self._versions = [(each, each._version) for each in tensors(self.batch)]
        self.outputs: list[Output] = []
        self.calls: list[Call] = []
        self.losses: Tensor | None = None
        self._reading, self._public = reading, public

    def refuse_strange(self, function: Callable[..., Any], given: list[Tensor]) -> None:
        """Raise if a call would bring in what may come from other records, or let values out."""
        if function in _PLAIN_BACKWARD:
            raise StepError(_PLAIN)
        for tensor in given:
            if isinstance(tensor, Taped):
                if tensor.tape is not self:
                    raise StepError(
                        f"{_name(function)} got a tensor of an earlier batch: what was computed "
                        "from other records must not be in the losses of these"
                    )
            else:
                self._public.refuse(tensor, _name(function))
        if function in _HOOKING:
            raise StepError(
                "a hook on a tensor of a private batch would see the gradients of all records at "
                "once: leave it out, and look at what the optimizer gets in its place"
            )
        if function == _DATA:
            raise StepError("losses must not use .data, which hides what is done: use .detach()")
        if function is Tensor.__getitem__ and any(t.dtype == torch.bool for t in given[1:]):
            self._reading.by = "a mask in []"
        if _name(function) == "where" and len(given) == 1:
            self._reading.by = "where() with a condition alone"
        if _name(function) == "repeat_interleave" and len(given) > 1:
            self._reading.by = "repeat_interleave() with a tensor of counts"

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
            self._reading.by = f"{_name(function)}()"
        elif output is not None and not tensors(output):
            return output  # a shape or a type: of no record in particular
        output = self.taped(output)
        self.calls.append(Call(function, args, kwargs, output))
        return output

    def note_model(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Write down a call of the model, and return its output without its graph, taped."""
        refuse_strange_output(output)

        def cut(value: Tensor) -> Tensor:
            leaf = value.detach().requires_grad_(value.requires_grad)
            given: Tensor = self.taped(leaf)
            self.outputs.append(Output(value, leaf, given))
            self._versions.append((given, given._version))
            return given

        output = tree_map_only(Tensor, cut, output)
        self.calls.append(Call(None, args, kwargs, output))
        return output

    def stop(self, losses: Tensor) -> None:
        """Stop at the losses: what comes later is the user's own affair."""
        self.is_running = False
        self.losses = losses
        self.refuse_changes()
        self._reading.refuse()
        self.calls = self._leading_to([losses])

    def refuse_changes(self) -> None:
        """Raise if the batch, or what the model returned, was written to."""
        if any(tensor._version != version for tensor, version in self._versions):
            raise StepError(
                "the batch and the model's outputs must not be changed in place: work on a copy, "
                "as in targets = targets.clone()"
            )

    def forget(self) -> None:
        """Let go of all tensors."""
        self.is_running = False
        self.calls, self.outputs, self.batch, self.losses = [], [], None, None

    @property
    def is_random(self) -> bool:
        """Whether the loop throws dice, so that doing it again gives something else."""
        return any(_name(call.function) in _RANDOM for call in self.calls if call.function)

    @cached_property
    def key(self) -> object:
        """The functions on the tape, the same for batches treated alike whatever the numbers."""
        return tuple((call.function, _shape_of((call.args, call.kwargs))) for call in self.calls)

    @cached_property
    def numbers(self) -> tuple[tuple[float, bool], ...]:
        """All numbers on the tape but those declared public, and whether they go to the model."""
        return tuple(
            (number, call.function is None)
            for call in self.calls
            for number in _numbers((call.args, call.kwargs))
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
        known = dict(known)
        outputs = self._replay(self.calls, called, known, rows, recount)
        return known[id(self.losses)], outputs

    def rows_alone(self, wanted: Sequence[Tensor], recount: bool) -> list[Tensor]:
        """Return tensors on the tape as they are if every row is computed by itself."""
        calls = self._leading_to(wanted)
        sources = [*tensors(self.batch), *(each.given for each in self.outputs)]
        values = [each.as_subclass(Tensor).detach() for each in sources]

        def of_one(rows: Sequence[Tensor]) -> list[Tensor]:
            known = {id(old): row[None] for old, row in zip(sources, rows, strict=True)}
            self._replay(calls, None, known, 1, recount)
            return [known[id(each)].squeeze(0) for each in wanted]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of single records
            try:
                return list(vmapped(of_one, randomness="different")(values))
            except _FAILURES:
                found = [of_one([value[row] for value in values]) for row in range(self.rows)]
                return [torch.stack(each) for each in zip(*found, strict=True)]

    def _replay(
        self,
        calls: Sequence[Call],
        called: Callable[..., Any] | None,
        known: dict[int, Tensor],
        rows: int,
        recount: bool,
    ) -> Any:
        """Make the calls again, and add what they make to what is known."""
        outputs = None
        for call in calls:
            args, kwargs = _renewed((call.args, call.kwargs), known)
            if call.function is None:
                if called is None:
                    continue
                output = outputs = called(*args, **kwargs)
            else:
                counts = recounted(call.function, args, self.rows, rows, arithmetic=recount)
                output = _called(call.function, (counts, args), kwargs)
            pairs = zip(tensors(call.output), tensors(output), strict=True)
            known.update({id(old): new for old, new in pairs})
        return outputs

    def _leading_to(self, wanted: Sequence[Tensor]) -> list[Call]:
        """Return the calls on which some tensors depend: all, if any writes to what it is given."""
        needed, leading = {id(each) for each in wanted}, []
        if any(call.may_write for call in self.calls):
            return self.calls
        for call in reversed(self.calls):
            if call.function is None or needed & {*map(id, tensors(call.output))}:
                needed |= {*map(id, tensors((call.args, call.kwargs)))}
                leading.append(call)
        return leading[::-1]

    def taped(self, value: Any) -> Any:
        """Return the same with all its tensors on this tape."""

        def tape(tensor: Tensor) -> Tensor:
            taped = tensor if isinstance(tensor, Taped) else tensor.as_subclass(Taped)
            taped.tape = self
            return taped

        return _mapped(Tensor, tape, value)


def _called_late(function: Callable[..., Any], args: Any, kwargs: Any, given: list[Tensor]) -> Any:
    """Call a function on tensors whose tape has stopped: what it makes stays known as theirs."""
    if function in _PLAIN_BACKWARD:
        raise StepError(_PLAIN)
    with torch._C.DisableTorchFunctionSubclass():
        output = function(*args, **kwargs)
    tapes = [each.tape for each in given if isinstance(each, Taped) and each.tape is not None]
    return tapes[0].taped(output) if tapes else output


def refuse_strange_output(output: Any) -> None:
    """Raise if a model returns what cannot be looked into."""
    leaves = tree_leaves(output)
    strange = [x for x in leaves if not isinstance(x, Tensor | int | float | str | None)]
    if strange or not any(isinstance(leaf, Tensor) for leaf in leaves):
        kind = type(strange[0] if strange else output).__name__
        remedy = f": {PREPARE}" if kind.endswith("Cache") else ""
        raise InvalidValueError(
            f"model must return tensors, or tuples, lists or dicts of them, got {kind}{remedy}"
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


def _shape_of(value: Any) -> object:
    """Return what a call was given, without values and numbers."""
    if isinstance(value, dict):
        return tuple((key, _shape_of(each)) for key, each in value.items())
    if isinstance(value, tuple | list):
        return tuple(_shape_of(each) for each in value)
    if isinstance(value, slice):
        return tuple(_shape_of(each) for each in (value.start, value.stop, value.step))
    if isinstance(value, Tensor):
        return "tensor"
    if isinstance(value, PublicNumber):
        return "public"
    return (
        "number" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
    )


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


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", function))
