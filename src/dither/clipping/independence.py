"""The check that a call of a model treats every record independently of the others.

Before a call is made it is run with its own inputs, random state and buffers, all of which are
restored. First unchanged; then one half of the records is overwritten by copies of the others, then
the other half. The rows of the records that were kept must come out as before, and so must the
buffers that the call writes. No inputs are made larger: a loss of inputs in [0, 1] does not fail.

Forward hooks of the user are left out, since whatever they store would be of other records. Where
the call itself then returns something else, they take part in it, and it is run again with them.
"""

import copy
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from dither.clipping.batch import map_tensors, tensors, tensors_anywhere
from dither.clipping.random_state import ConstantDraws, has_drawn, random_state, set_random_state
from dither.clipping.replacements import Replacing
from dither.clipping.rows import (
    ENOUGH_RECORDS,
    RowAssignment,
    all_almost_equal,
    almost_equal,
    overwrite_half,
    random_half,
    record_axes,
    row_assignments,
    rows_agree,
    shares_rows,
)

_CONTAINERS = {list, dict, set, deque, OrderedDict, defaultdict}
"""Containers in attributes of a module, whose contents are restored."""

_HOOKS = {"_forward_hooks", "_forward_pre_hooks"}

_UNIFORM_DRAWS = 0.5, 1e-3
"""Values of uniform draws: some models mix records at random, if a draw is small."""

_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a model may raise for batches that it does not accept, such as unsorted lengths."""


@dataclass(frozen=True)
class IndependenceResult:
    """What the check of a call has shown.

    Attributes:
        refusal: why none of its outputs may lead to losses.
        mixed: the positions of outputs whose rows depend on other records.
        constants: the positions of outputs that no record changes.
        buffers: those that it writes, the same whatever the records.
        is_final: whether the call need not be checked on another batch.
        is_checked: False if the check shows nothing.
    """

    refusal: str | None = None
    mixed: frozenset[int] = frozenset()
    constants: frozenset[int] = frozenset()
    buffers: frozenset[str] = frozenset()
    is_final: bool = True
    is_checked: bool = True


@dataclass(frozen=True)
class _Run:
    """What one run of the call has returned and written."""

    outputs: list[Tensor]
    buffers: dict[str, Tensor]


class _State:
    """The attributes of a model, what they contain, and all random numbers."""

    def __init__(self, model: nn.Module, given: Sequence[Tensor]) -> None:
        self.random = random_state(given)
        self._attributes = [(module, dict(vars(module))) for module in model.modules()]
        self._contents = [
            (value, copy.copy(value))
            for _, values in self._attributes
            for value in values.values()
            if type(value) in _CONTAINERS
        ]

    def restore(self) -> None:
        for module, values in self._attributes:
            vars(module).clear()
            vars(module).update(values)
        for value, was in self._contents:
            value.clear()
            (value.extend if isinstance(value, list | deque) else value.update)(was)
        set_random_state(self.random)

    def remove_hooks(self) -> None:
        for module, values in self._attributes:
            for name in _HOOKS & {*values}:
                vars(module)[name] = OrderedDict()


class IndependenceCheck:
    """Checks a call before it is made.

    Args:
        model: the model, whose buffers and attributes are restored.
        call: the module or function that is called.
        args: positional arguments.
        kwargs: keyword arguments.
        records: how many records the batch has.
        attempt: on how many batches it was checked before.
        hooks: whether forward hooks of the model take part from the beginning.
    """

    def __init__(
        self,
        model: nn.Module,
        call: Callable[..., Any],
        args: Any,
        kwargs: Any,
        records: int,
        attempt: int = 0,
        *,
        hooks: bool = False,
    ) -> None:
        self._call, self._arguments, self._records = call, (args, kwargs), records
        self._model, self._attempt, self._hooks = model, attempt, hooks
        self._given = tensors(self._arguments)
        self._state = _State(model, self._given)
        self._buffers = [
            (f"{path}.{name}".lstrip("."), module, name, buffer.clone())
            for path, module in model.named_modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._writes, self._note = True, ""
        self._copies: dict[int, Tensor] = {}
        self._result = IndependenceResult(is_final=False)
        self._outputs: list[Tensor] | None = None
        self._run_check(self._state)

    def _run_check(self, after: _State) -> None:
        """Check the call from the state that it was given, and leave another."""
        self._outputs, self._note = None, ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the call itself will raise them again
                base = self._run()
                self._outputs = base.outputs
                self._result = self._check(base, self._attempt)
        except _FAILURES:
            if self._outputs is not None:
                self._note = "fails with other records"
                self._result = IndependenceResult(
                    buffers=self._written_buffers(base), is_checked=False
                )
        finally:
            after.restore()

    def result(
        self, outputs: Sequence[Tensor] | None, written: frozenset[str] = frozenset()
    ) -> IndependenceResult:
        """Return what the check has shown.

        Args:
            outputs: what it has returned since; None if it was not made.
            written: the names of the buffers that it has written.
        """
        if outputs is not None and not self._hooks:
            is_same = self._outputs is not None and all_almost_equal(self._outputs, outputs)
            if not (is_same and written <= self._result.buffers):
                self._hooks = True
                self._run_check(_State(self._model, self._given))
        if self._outputs is None:  # the call itself will fail
            return self._result
        if outputs is not None and not all_almost_equal(self._outputs, outputs):
            self._note = "does not return the same twice from the same random state"
            self._result = IndependenceResult(is_checked=False)
        if self._note:
            warnings.warn(
                f"a call of {type(self._call).__name__} {self._note}: whether it treats records "
                "independently was not checked",
                stacklevel=2,
            )
        return self._result

    def _check(self, base: _Run, attempt: int) -> IndependenceResult:
        uses_random = has_drawn(self._state.random, random_state(self._given))
        found = self._compare(base, uses_random, attempt)
        is_final = found.is_final and self._records >= ENOUGH_RECORDS
        is_final = is_final and len(found.constants) < len(base.outputs)
        return replace(found, buffers=self._written_buffers(base), is_final=is_final)

    def _written_buffers(self, base: _Run) -> frozenset[str]:
        """Return the names of the buffers that the call writes."""
        return frozenset(
            name
            for path, _, name, before in self._buffers
            if path not in base.buffers or not almost_equal(before, base.buffers[path])
        )

    def _compare(self, base: _Run, uses_random: bool, attempt: int) -> IndependenceResult:
        """Return the result for possible rows of the arguments, until one keeps records apart."""
        if self._records == 1:
            altered = {id(tensor): _alter(tensor) for tensor in self._given}
            return IndependenceResult(
                self._buffer_refusal(base, self._run(altered)), is_final=False
            )
        half = random_half(self._records, attempt)
        first, *others = row_assignments(self._given, self._records) or [RowAssignment({})]
        found = self._overwrite(base, first, half)
        for uniform in _UNIFORM_DRAWS if found.mixed and uses_random else ():
            with ConstantDraws(uniform):
                found = self._overwrite(self._run(), first, half)
            if found.mixed:
                break
        if not self._have_rows(found.mixed, base):
            return found
        for other in others:
            again = self._overwrite(base, other, half)
            if again.refusal is None and not self._have_rows(again.mixed, base):
                return IndependenceResult(None, again.mixed, again.constants, is_final=False)
        if first.is_guess and not self._shares_rows(first, half):
            return IndependenceResult()
        return found

    def _overwrite(self, base: _Run, assignment: RowAssignment, half: Tensor) -> IndependenceResult:
        """Overwrite both halves of the records in turn, until rows of the others change."""
        constants, mixed = set(range(len(base.outputs))), set()
        for replaced in (half, ~half) if assignment.rows else ():
            run = self._run(
                {
                    id(self._given[place]): overwrite_half(
                        self._given[place], *rows, replaced, self._copies[id(self._given[place])]
                    )
                    for place, rows in assignment.rows.items()
                }
            )
            refusal = self._buffer_refusal(base, run)
            if refusal is not None:
                return IndependenceResult(refusal)
            if [tensor.shape for tensor in run.outputs] != [t.shape for t in base.outputs]:
                continue  # sizes that depend on values cannot be compared
            changed = [p for p, t in enumerate(base.outputs) if not almost_equal(t, run.outputs[p])]
            constants -= {*changed}
            mixed |= {
                place
                for place in changed
                if not rows_agree(base.outputs[place], run.outputs[place], ~replaced, self._records)
            }
            if mixed:
                break
        return IndependenceResult(None, frozenset(mixed), frozenset(constants - mixed))

    def _buffer_refusal(self, base: _Run, run: _Run) -> str | None:
        """Return what is wrong if a buffer differs with other records."""
        for path, buffer in base.buffers.items():
            if not almost_equal(buffer, run.buffers[path]):
                return (
                    f"model must keep nothing of its records, but its buffer {path} is computed "
                    "from them, and would be released without noise"
                )
        return None

    def _have_rows(self, places: frozenset[int], base: _Run) -> bool:
        """Return whether any of some outputs has a dimension that may be the records'."""
        return any(record_axes(base.outputs[place], self._records) for place in places)

    def _shares_rows(self, assignment: RowAssignment, half: Tensor) -> bool:
        """Return whether a row of an argument has an effect on the outputs of two records."""
        rows = [self._given[k] for k in assignment.rows if self._given[k].is_floating_point()]
        leaves = [tensor.detach().clone().requires_grad_() for tensor in rows]
        made = self._outputs_with(dict(zip(map(id, rows), leaves, strict=True)))
        for output in made:
            found = [
                shares_rows(output.movedim(axis, 0), half[owners], leaves)
                for axis, owners in record_axes(output, self._records)
            ]
            if found and all(found):
                return True
        return False

    def _run(self, changed: dict[int, Tensor] | None = None) -> _Run:
        made = [tensor.detach() for tensor in self._outputs_with(changed)]
        buffers = {path: module._buffers[name] for path, module, name, _ in self._buffers}
        return _Run(made, {path: b.detach() for path, b in buffers.items() if b is not None})

    def _outputs_with(self, changed: dict[int, Tensor] | None) -> list[Tensor]:
        """Return the outputs of the call with some arguments replaced, by their ids."""
        self._state.restore()
        if not self._hooks:
            self._state.remove_hooks()
        for _, module, name, value in self._buffers:
            module._buffers[name] = value.clone()
        if self._writes:
            self._copies = {id(tensor): _copy(tensor) for tensor in self._given}
        given = self._copies if self._writes else {id(t): t for t in self._given}
        own = given | (changed or {})
        before = [tensor._version for tensor in own.values()]
        args, kwargs = map_tensors(self._arguments, lambda tensor: own[id(tensor)])
        with Replacing():
            output = self._call(*args, **kwargs)
        if changed is None:
            self._writes = [tensor._version for tensor in own.values()] != before
        return tensors_anywhere(output)


def _alter(tensor: Tensor) -> Tensor:
    """Return another record, where there is none to copy, with values of the same kind."""
    if tensor.is_floating_point() or tensor.is_complex():
        return _copy(0.5 * tensor.detach()).requires_grad_(tensor.requires_grad)
    return tensor.flip(tensor.dim() - 1) if tensor.dim() > 1 else tensor


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)
