"""What a model does to one batch, call by call.

Hooks on the model and its submodules make a recorder active during every outermost call with
gradients enabled: of the model itself, of a submodule, or of submodules that a method of the model
calls. Between calls nothing is active.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias
from weakref import WeakMethod

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from dither.clipping.batch import tensors, tensors_anywhere, trainable
from dither.clipping.independence import IndependenceCheck, IndependenceResult
from dither.clipping.memory import FIRST_ROWS, SeenBytes, rows_that_fit
from dither.clipping.recorder import Recorder
from dither.clipping.rules.registry import has_rule_as_layer

_TensorState: TypeAlias = tuple[str, bool, Tensor, int]
"""A parameter or buffer: its name, whether it is a parameter, itself, its version counter."""

_MIXED = (
    "model must treat every record by itself, but its outputs for a record change with the other "
    "records of the batch"
)
_CHECKED_AGAIN = 2, 32
_LOSSES = 3
"""Times the bytes of a model's outputs that losses and their gradients take."""
MAX_ATTEMPTS = 4
"""Batches that are checked where one alone does not decide."""


@dataclass(frozen=True, eq=False)
class Output:
    """A tensor that an outermost call has returned, by its place in the graph.

    Attributes:
        edge: where its gradient will be computed.
        is_alike: whether no record changed it when the call was checked.
        is_constant: whether no record can change it.
        refusal: why it must not lead to losses.
    """

    edge: GradientEdge
    is_alike: bool
    is_constant: bool
    refusal: str | None


@dataclass
class CallStatus:
    """What is known of a kind of call.

    Attributes:
        result: what checking it has shown.
        calls: how often it was made.
        checks: how often it was checked.
    """

    result: IndependenceResult = field(default_factory=lambda: IndependenceResult(is_final=False))
    calls: int = 0
    checks: int = 0

    def is_check_due(self) -> bool:
        """Return whether to check it: until it is decided, and again when parameters have changed.

        What is behind a gate that starts at zero has an effect only then.
        """
        if self.result.is_final:
            return self.result.is_checked and self.calls in _CHECKED_AGAIN
        return self.checks < MAX_ATTEMPTS

    def update(self, result: IndependenceResult, records: int) -> None:
        """Take the result of another check; one record alone shows nothing but buffers."""
        if records > 1:
            self.result, self.checks = result, self.checks + 1
        else:
            buffers = self.result.buffers | result.buffers
            self.result = replace(self.result, refusal=result.refusal, buffers=buffers)


@dataclass
class CheckCache:
    """What checks have shown about a model, so that it is not checked again at every step.

    Attributes:
        calls: kind of call → what checking it has shown.
        ragged: kind of call → positions of arguments without one row per record.
        verified: parameter → keys of the uses whose sum was compared with plain autograd.
        failed: (parameter, keys) → why the rules cannot compute it.
        losses: how often losses were checked to depend on their own records alone.
        warned: the warnings that were given.
        rows_at_once: how many rows fit into memory; None if that was not measured.
    """

    calls: dict[object, CallStatus] = field(default_factory=dict)
    ragged: dict[object, set[int]] = field(default_factory=dict)
    verified: dict[str, set[object]] = field(default_factory=dict)
    failed: dict[tuple[str, frozenset[object]], str] = field(default_factory=dict)
    losses: int = 0
    warned: set[str] = field(default_factory=set)
    rows_at_once: int | None = None

    def next_part(self, size: int | str) -> tuple[int, SeenBytes | None]:
        """Return how many rows to compute next, and what measures their memory, if it is to be.

        Args:
            size: the number, or "auto".
        """
        if not isinstance(size, str):
            return size, None
        if self.rows_at_once is None:
            return FIRST_ROWS, SeenBytes()
        return self.rows_at_once, None


class RecordedBatch:
    """One batch, or microbatch, on its way through a model.

    Args:
        model: the model.
        records: how many records the batch has.
        cache: what is known about the model.
        randomness: a context for each call, with random numbers for the model.
        seen: counts the memory, if it is to be measured.
    """

    def __init__(
        self,
        model: nn.Module,
        records: int,
        cache: CheckCache,
        randomness: Callable[[], AbstractContextManager[None]] = nullcontext,
        seen: SeenBytes | None = None,
    ) -> None:
        self.records = records
        self.outputs: list[Output] = []
        self.calls = 0
        self.cache = cache
        self._model, self._randomness = model, randomness
        self._seen, self._during = seen, ExitStack()
        self._output_bytes = 0
        self._check: IndependenceCheck | None = None
        self._state: list[_TensorState] = []
        self._call_key: object = None

    @cached_property
    def recorder(self) -> Recorder:
        """The recorder of the parameters that are trainable when the first call is made."""
        return Recorder(trainable(self._model), self.records, self._seen)

    def begin_call(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Check the call if its kind was not seen before; record what happens in it."""
        self._during.enter_context(self._randomness())
        self._state = _tensor_states(self._model)
        # Before hooks of the user change the arguments.
        self._call_key = _key_of_call(module, args, kwargs)
        known = self.cache.calls.setdefault(self._call_key, CallStatus())
        known.calls += 1
        if known.is_check_due() and self.records > 1:
            try:
                self._check = IndependenceCheck(
                    self._model, module, args, kwargs, self.records, known.checks
                )
            except BaseException:  # an interrupt, or what the call itself would raise
                self.leave_call()
                raise
        ragged = self.cache.ragged.setdefault(self._call_key, set())
        lengths = [tensor.shape[:1] for tensor in tensors((args, kwargs))]
        ragged |= {place for place, size in enumerate(lengths) if size != (self.records,)}
        self.recorder.begin_call((args, kwargs), ragged)

    def end_call(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Stop recording, and note what is known of the outputs."""
        try:
            made = tensors_anywhere(output)
            self.calls += 1
            self.recorder.end_call(made)
            if self._seen is not None:
                self._output_bytes += sum(each.numel() * each.element_size() for each in made)
            # A call that has failed has no output.
            result = (
                IndependenceResult()
                if output is None
                else self._check_result(module, args, kwargs, made)
            )
            for place, tensor in enumerate(made):
                if tensor.requires_grad:
                    refusal = _MIXED if place in result.mixed else result.refusal
                    edge, is_alike = get_gradient_edge(tensor), place in result.constants
                    is_constant = is_alike and not self.recorder.comes_from_batch(tensor)
                    self.outputs.append(Output(edge, is_alike, is_constant, refusal))
        finally:
            self.leave_call()

    def leave_call(self) -> None:
        """Forget the random numbers and the state of a call."""
        self._check, self._state = None, []
        self._during.close()

    def note_memory(self) -> None:
        """Note how many rows fit into memory, if that was measured.

        What functions have returned may be kept for the backward pass. Besides, the gradients at
        the outputs of all uses are there at once, and losses keep about three times the outputs.
        """
        if self._seen is None:
            return
        gradients = sum(shape.numel() for use in self.recorder.uses for shape in use.shapes)
        needed = self._seen.total + _LOSSES * self._output_bytes + 4 * gradients
        device = next(iter(self.recorder.parameters.values())).device
        self.cache.rows_at_once = rows_that_fit(needed / self.records, device)

    def _check_result(
        self, module: nn.Module, args: Any, kwargs: Any, made: list[Tensor]
    ) -> IndependenceResult:
        known = self.cache.calls[self._call_key]
        written, is_parameter = _changes(self._state, _tensor_states(self._model))
        if is_parameter:
            return IndependenceResult(
                "model must leave its parameters to the optimizer, but its forward pass writes to "
                f"{min(written)}: what it writes from the records would be released without noise"
            )
        if self._check is not None:
            known.update(self._check.result(made, written), self.records)
        elif not written <= known.result.buffers:
            check = IndependenceCheck(self._model, module, args, kwargs, self.records, hooks=True)
            known.update(check.result(None), self.records)
        return known.result


class ModelHooks:
    """Hooks on a model and its submodules, which report to a recording while there is one.

    They hold their listener weakly, and a copy or a pickle of the model has hooks that do nothing.
    """

    def __init__(self, model: nn.Module) -> None:
        self.recording: RecordedBatch | None = None
        self._uncompiled = ExitStack()
        self._outermost: nn.Module | None = None
        self._depth = 0
        before, after = _Hook(WeakMethod(self._before)), _Hook(WeakMethod(self._after))
        self._handles = []
        for module in model.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                self._handles += [
                    module.register_forward_pre_hook(before, with_kwargs=True, prepend=True),
                    module.register_forward_hook(after, with_kwargs=True, always_call=True),
                ]

    def remove(self) -> None:
        """Remove the hooks."""
        self.begin(None)
        for handle in self._handles:
            handle.remove()

    def begin(self, recording: RecordedBatch | None) -> None:
        """Report to another recording, or to none."""
        if self.recording is not None and self._outermost is not None:
            # The call was interrupted, and torch calls no hooks then.
            self.recording.recorder.stop()
            self.recording.leave_call()
        self.recording, self._outermost, self._depth = recording, None, 0
        self._uncompiled.close()
        if recording is not None:
            self._uncompiled.enter_context(_uncompiled())

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.recording is None:
            return
        if self._outermost is None:
            if not torch.is_grad_enabled():
                return
            with self._paused() as recording:
                recording.begin_call(module, args, kwargs)
                recording.recorder.start(self)
            self._outermost, self._depth = module, 1
        elif module is self._outermost:
            self._depth += 1
        if has_rule_as_layer(module):
            self.recording.recorder.enter_layer()

    def _after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self.recording is None or self._outermost is None:
            return
        if has_rule_as_layer(module):
            self.recording.recorder.leave_layer(module, args, kwargs, output)
        if module is self._outermost:
            self._depth -= 1
            if not self._depth:
                self._outermost = None
                with self._paused() as recording:
                    recording.recorder.stop()
                    recording.end_call(module, args, kwargs, output)

    @contextmanager
    def _paused(self) -> Iterator[RecordedBatch]:
        """Yield the recording, to which nothing is reported meanwhile."""
        recording, self.recording = self.recording, None
        assert recording is not None  # noqa: S101 (for the type checker: the callers check)
        try:
            yield recording
        finally:
            self.recording = recording


class _Hook:
    """A method that is not copied with the model."""

    def __init__(self, method: WeakMethod[Callable[..., None]] | None = None) -> None:
        self._method = method

    def __call__(self, *call: Any) -> None:
        """Call the method, if it is still there."""
        method = None if self._method is None else self._method()
        if method is not None:
            method(*call)

    def __reduce__(self) -> tuple[type["_Hook"], tuple[()]]:
        return _Hook, ()


def _uncompiled() -> AbstractContextManager[Any]:
    """Return a context in which what torch.compile made runs as it was written."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and importing it is slow
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def _tensor_states(model: nn.Module) -> list[_TensorState]:
    return [
        (name, is_parameter, tensor, tensor._version)
        for module in model.modules()
        for held, is_parameter in ((module._parameters, True), (module._buffers, False))
        for name, tensor in held.items()
        if tensor is not None
    ]


def _changes(before: list[_TensorState], after: list[_TensorState]) -> tuple[frozenset[str], bool]:
    """Return the names of what was written, and whether a parameter is among it."""
    if len(before) == len(after) and all(
        one[2] is two[2] and one[3] == two[3] for one, two in zip(before, after, strict=True)
    ):
        return frozenset(), False
    was = {id(tensor): version for _, _, tensor, version in before}
    changed = [each for each in after if was.get(id(each[2])) != each[3]]
    return frozenset(name for name, *_ in changed), any(each[1] for each in changed)


def _key_of_call(module: nn.Module, args: Any, kwargs: Any) -> object:
    """Return a key that is equal for calls which differ only in values and sizes."""
    modes = hash(tuple(each.training for each in module.modules()))
    return id(module), modes, _signature(args), _signature(kwargs)


def _signature(arguments: Any) -> object:
    if isinstance(arguments, Tensor):
        return arguments.dim(), arguments.is_floating_point()
    if isinstance(arguments, tuple | list):
        return tuple(_signature(each) for each in arguments)
    if isinstance(arguments, dict):
        return tuple((name, _signature(each)) for name, each in arguments.items())
    return type(arguments)
