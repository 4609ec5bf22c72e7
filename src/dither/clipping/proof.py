"""What the fast engine relies on, checked: on every batch by the graph, on new models by numbers.

Shapes can mislead (a sequence as long as the batch), rules can be wrong, a model can do things
that no rule foresaw. So nothing is taken on trust:

- every batch: each path of the autograd graph from the losses to a parameter must pass through a
  use that was seen (:func:`refuse_hidden_uses`);
- the first batch on which a model shows a new pattern, which is the whole sequence of functions
  that the batch went through: a weighted sum of the records' gradients must be what plain autograd
  gives, with a weight of its own for every record, so that no two can be mistaken for each other
  (:func:`prove`); and exchanging records must leave the others as they are, from the inputs of
  every layer to the losses (:func:`refuse_mixed_records`);
- every batch again, if the model can move records about depending on their values or on chance.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node, get_gradient_edge

from dither.clipping.batch import (
    Objective,
    copied,
    take,
    tensors,
    trainable,
    unchanged,
    wide,
)
from dither.clipping.contributions import Contribution
from dither.clipping.fingerprinter import Fingerprinter
from dither.clipping.pooling import MaxPool2d
from dither.clipping.recorder import Recorder, watching
from dither.clipping.registry import UnseenUseError
from dither.clipping.uses import Gradients
from dither.validate import InvalidValueError

Pattern = tuple[object, ...]
_TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3, torch.float16: 0.004, torch.bfloat16: 0.03}
_tried: WeakSet[nn.Module] = WeakSet()
_proven: WeakKeyDictionary[nn.Module, dict[Pattern, tuple[float, ...]]] = WeakKeyDictionary()


class BadRecordsError(Exception):
    """Records whose gradients are not finite: without them a batch may still be compared."""

    def __init__(self, finite: Tensor) -> None:
        super().__init__("the batch cannot be compared with plain autograd")
        self.good = finite.nonzero().squeeze(1)


def refuse_hidden_uses(recorder: Recorder, losses: Tensor) -> None:
    """Raise unless every path from the losses to a parameter passes through a use that was seen."""
    if recorder.has_hooks:
        raise UnseenUseError("a tensor has a hook, which sees the gradients of all records at once")
    if recorder.joining:
        raise UnseenUseError(f"{min(recorder.joining)} may join the records of a batch")
    names = {id(parameter): name for name, parameter in recorder.parameters.items()}
    seen: dict[Node, list[Node]] = {}
    for use in recorder.uses:
        for edge in use.edges:
            if edge is not None:
                seen.setdefault(edge.node, []).extend(use.sources)
    visited: set[Node] = set()
    own_backward = None
    ahead = [losses.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        parameter = getattr(node, "variable", None)
        if parameter is not None and id(parameter) in names:
            name = names[id(parameter)]
            raise UnseenUseError(f"{name} is used where the engine cannot see it")
        if "CheckpointFunctionBackward" in node.name():
            raise InvalidValueError(
                "model must not use reentrant activation checkpointing; "
                "call torch.utils.checkpoint.checkpoint with use_reentrant=False"
            )
        ours = isinstance(node, MaxPool2d._backward_cls)
        if isinstance(node, BackwardCFunction) and node not in seen and not ours:
            own_backward = node.name()
        ahead += seen[node] if node in seen else [follower for follower, _ in node.next_functions]
    if own_backward is not None:
        raise UnseenUseError(f"{own_backward} is a backward pass that the engine cannot see into")


def pattern_of(model: nn.Module, objective: Objective, recorder: Recorder) -> Pattern:
    """Return what a proof depends on: all that was called, with which parameters and layouts."""
    return (model.training, objective.key, recorder.trace)


def is_proven(model: nn.Module, pattern: Pattern, recorder: Recorder) -> bool:
    """Return whether this pattern was compared with autograd before, once and for all."""
    return not recorder.data_dependent and pattern in _proven.get(model, ())


def remember(
    model: nn.Module, pattern: Pattern, recorder: Recorder, gradients: Mapping[int, Gradients]
) -> None:
    """Take a pattern as proven, unless a use had no gradient that could have been compared."""
    given = [g for each in gradients.values() for g in each if g is not None]
    if all(bool(gradient.any()) for gradient in given):
        _proven.setdefault(model, {})[pattern] = tuple(recorder.floats)


def prove(
    recorder: Recorder,
    losses: Tensor,
    gradients: Mapping[int, Gradients],
    contributions: Mapping[str, Contribution],
) -> None:
    """Compare a weighted sum of the contributions with the one by plain autograd.

    Every record has a weight of its own, by which its gradient gets about the norm 1: no record
    can hide behind another. A loss that is already summed leaves no choice: every weight is 1.

    Raises:
        BadRecordsError: some gradients are not finite, so that neither are their sums.
        UnseenUseError: the sums differ.
    """
    squared = {name: part.norms()[0] for name, part in contributions.items()}
    norms = sum(squared.values(), start=torch.zeros(())).sqrt().expand(recorder.records)
    if not bool(torch.isfinite(norms).all()):
        raise BadRecordsError(torch.isfinite(norms))
    weights = _weights(norms, losses)
    expected = _weighted_gradients(recorder, losses, weights)
    known = [g for each in gradients.values() for g in each if g is not None]
    tolerance = max((_TOLERANCE.get(g.dtype, 0.03) for g in known), default=0.0)
    own = weights.double().expand(recorder.records)
    whole = float((own * norms).norm())
    for name, parameter in recorder.parameters.items():
        gradient = expected[name]
        scale = float((own * squared[name].sqrt()).norm()) if name in squared else 0.0
        difference = torch.zeros_like(parameter, dtype=wide(parameter.dtype))
        if name in contributions:
            part = contributions[name]
            difference += part.weighted_sum(own.to(parameter.device, part.dtype))
        if gradient is not None:
            difference -= gradient.to_dense() if gradient.is_sparse else gradient
        if not float(difference.norm()) <= tolerance * (scale + 0.01 * whole):
            raise UnseenUseError(
                f"the gradient of {name} is not what plain autograd gives "
                "(are the records along the first dimension?)"
            )


def _weighted_gradients(
    recorder: Recorder, losses: Tensor, weights: Tensor
) -> dict[str, Tensor | None]:
    """Return a weighted sum of the records' gradients by plain autograd."""
    with torch.enable_grad():
        total = (losses * weights.to(losses)).sum()
    leaves = [get_gradient_edge(parameter) for parameter in recorder.parameters.values()]
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    return dict(zip(recorder.parameters, found, strict=True))


def refuse_mixed_records(
    model: nn.Module,
    objective: Objective,
    batch: Any,
    recorder: Recorder,
    state: Tensor,
    by_losses_alone: bool = False,
) -> bool:
    """Raise if anything about a record changes when other records of the batch are exchanged.

    For every bit of the records' numbers, those with the bit are exchanged and those without
    compared, then the reverse, so that every pair of records is on two sides once. What comes in
    their place is other records', far larger and of either sign, so that a maximum over the batch
    moves too. Inputs
    of layers are compared as well as losses, unless it is not known where they have their records.
    Losses must also stay the same in smaller batches.

    Args:
        model: the model.
        objective: what gives the losses.
        batch: the batch.
        recorder: what was seen of the batch.
        state: of the random numbers before the batch, which all passes begin with.
        by_losses_alone: whether only losses are to be compared.

    Returns:
        Whether the exchanges changed anything at all, so that there was something to see.
    """
    records = recorder.records
    batch = copied(batch)
    before = _pass(model, objective, batch, records, state)
    if before.trace != recorder.trace and not by_losses_alone:
        raise UnseenUseError("the model does not do the same twice")
    told = False
    for bit in range((records - 1).bit_length()):
        for side in (0, 1):
            exchanged = (torch.arange(records) >> bit) % 2 == side
            others = _exchanged(batch, exchanged, first_sign=1 - 2 * (bit % 2))
            after = _pass(model, objective, others, records, state)
            told = told or bool(_differ(before.losses, after.losses, 0.0).any())
            _compare(before, after, ~exchanged, by_losses_alone)
    _refuse_counted_records(model, objective, batch, records, state)
    return told


def refuse_other_numbers(
    model: nn.Module,
    pattern: Pattern,
    objective: Objective,
    batch: Any,
    recorder: Recorder,
    state: Tensor,
) -> None:
    """Raise if a model that is proven uses other floats than before, and for the batch's size."""
    proven, floats = _proven[model], tuple(recorder.floats)
    if proven[pattern] != floats:
        _refuse_counted_records(model, objective, batch, recorder.records, state)
        proven[pattern] = floats


def _refuse_counted_records(
    model: nn.Module, objective: Objective, batch: Any, records: int, state: Tensor
) -> None:
    """Raise if losses are others in smaller batches; without dropout if there is any.

    One is of half the size; in the other only the first record is missing, so that every other one
    has moved by a place, and odd numbers and places have become even ones.
    """
    if records == 1 or not objective.sizes_vary:
        return
    with ExitStack() as stack:
        other = torch.Generator().manual_seed(1).get_state()
        for is_last in (False, True):
            before, again = (_pass(model, objective, batch, records, s) for s in (state, other))
            if not bool(_differ(before.losses, again.losses, 0.0).any()):
                break
            if is_last:
                return
            stack.enter_context(_in_evaluation(model))
        half = (records + 1) // 2
        parts = [slice(0, half), slice(1, records)]
        fewer = [
            _pass(model, objective, take(batch, part), part.stop - part.start, state).losses
            for part in parts
        ]
    slack = 8.0 * torch.finfo(before.losses.dtype).eps ** (2.0 / 3.0)
    floor = slack * _typical(before.losses)
    for part, losses in zip(parts, fewer, strict=True):
        if bool(_differ(before.losses[part], losses, slack, floor).any()):
            _refuse()


@contextmanager
def _in_evaluation(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@dataclass(frozen=True)
class _Pass:
    """A forward pass on copies: a number a record for every input of a use, the losses, the trace.

    ``kept`` are the buffers that were computed from the records.
    """

    fingerprints: list[Tensor]
    losses: Tensor
    trace: int
    kept: list[str]


def _pass(model: nn.Module, objective: Objective, batch: Any, records: int, state: Tensor) -> _Pass:
    batch = copied(batch)
    recorder = Fingerprinter(trainable(model), batch, records)
    with unchanged(model, batch) as same, torch.no_grad(), watching(model, recorder):
        torch.set_rng_state(state)
        losses = objective.values(recorder.following(same), batch, records)
    kept = [name for name, buffer in same.buffers_now() if recorder.comes_from_batch(buffer)]
    return _Pass(recorder.fingerprints, losses, recorder.trace, kept)


def _compare(before: _Pass, after: _Pass, kept: Tensor, by_losses_alone: bool) -> None:
    where = kept.to(before.losses.device)
    floor = 1e-6 * _typical(before.losses)
    if bool(_differ(before.losses, after.losses, 1e-5, floor)[where].any()):
        _refuse()
    if not by_losses_alone and (
        len(before.fingerprints) != len(after.fingerprints)
        or any(
            bool(_differ(one[0], two[0], 0.0, 1e-5 * one[1])[where].any())
            for one, two in zip(before.fingerprints, after.fingerprints, strict=True)
        )
    ):
        raise UnseenUseError("the records cannot be told apart inside the model")


def _refuse() -> NoReturn:
    raise InvalidValueError(
        "model and loss must treat every record by itself, but what happens to a record "
        "changes with the other records in its batch, or with their number"
    )


def _exchanged(batch: Any, which: Tensor, first_sign: int) -> Any:
    """Return the batch with some records replaced by others, made far larger, of both signs."""
    made = copied(batch)
    factors = 100.0 * first_sign * (1 - 2 * (torch.arange(int(which.sum())) % 2))
    for values, far in ((tensors(made[0]), True), (tensors(made[1]), False)):
        for part in values:
            where = which.to(part.device)
            others = part.roll(1, 0)[where]
            if far and part.is_floating_point():
                others = others * factors.to(part).view(-1, *(1 for _ in part.shape[1:]))
            part[where] = others
    return made


def refuse_kept_records(model: nn.Module, objective: Objective, batch: Any, records: int) -> None:
    """Raise if a model keeps something of its records in a buffer, before it can do so."""
    if model in _tried:
        return
    _refuse_written_parameters(model, objective, batch, records)
    if any(True for _ in model.buffers()):
        for name in _pass(model, objective, batch, records, torch.get_rng_state()).kept:
            raise InvalidValueError(
                f"model must keep nothing of its records, but its buffer {name} is computed "
                "from them, and would be released without noise"
            )
    _tried.add(model)


def _refuse_written_parameters(
    model: nn.Module, objective: Objective, batch: Any, records: int
) -> None:
    """Raise if a forward pass writes to the parameters; it is tried on copies of them."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    copies = {name: tensor.detach().clone() for name, tensor in state.items()}

    def called(*args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(model, copies, args, kwargs)

    with torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is only a trial
        objective.values(called, copied(batch), records)
    for name, parameter in model.named_parameters():
        if not torch.equal(copies[name].nan_to_num(), parameter.detach().nan_to_num()):
            raise InvalidValueError(
                f"model must leave its parameters to the optimizer, but its forward pass writes to "
                f"{name}: what it writes from the records would be released without noise"
            )


def _weights(norms: Tensor, losses: Tensor) -> Tensor:
    """Return weights that give every record another norm near 1; 1 for a sum of losses."""
    if losses.dim() == 0:
        return torch.ones_like(losses)
    generator = torch.Generator().manual_seed(0)
    shares = 0.5 + torch.rand(len(norms), generator=generator, dtype=torch.float64)
    typical = norms.median()
    return shares.to(norms.device) / norms.clamp(min=float(typical) * 1e-3 + 1e-30)


def _typical(values: Tensor) -> float:
    """Return the mean size of the values that are finite."""
    finite = values[torch.isfinite(values)]
    return float(finite.abs().mean()) if finite.numel() else 0.0


def _differ(one: Tensor, two: Tensor, slack: float, floor: float | Tensor = 0.0) -> Tensor:
    """Return where two vectors differ by more than ``floor`` and a share ``slack`` of them."""
    same = (one - two).abs() <= floor + slack * (one.abs() + two.abs())
    return ~(same | (~torch.isfinite(one) & ~torch.isfinite(two)))
