"""What the fast engine relies on, checked: on every batch by the graph, on new models by numbers.

Shapes can mislead (a sequence as long as the batch), rules can be wrong, a model can do things
that no rule foresaw. So nothing is taken on trust:

- every batch: each path of the autograd graph from the losses to a parameter must pass through a
  use that was seen (:func:`refuse_hidden_uses`);
- the first batch on which a model shows a new pattern, which is the whole sequence of functions
  that the batch went through: a weighted sum of the records' gradients must be what plain autograd
  gives, with a weight of its own for every record, so that no two can be mistaken for each other
  (:func:`prove`); and exchanging one record must leave all the others as they are, from the inputs
  of every layer to the losses (:func:`refuse_mixed_records`);
- every batch again, if the model can move records about depending on their values or on chance.
"""

from collections.abc import Mapping
from math import sqrt
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from dither.clipping.batch import (
    Loss,
    copied,
    forward,
    losses_of,
    tensors,
    trainable,
    unchanged,
    wide,
)
from dither.clipping.contributions import Contribution
from dither.clipping.recorder import Fingerprinter, Recorder, watching
from dither.clipping.registry import UnseenUseError
from dither.clipping.uses import Gradients
from dither.validate import InvalidValueError

Pattern = tuple[object, ...]
_proven: WeakKeyDictionary[nn.Module, set[Pattern]] = WeakKeyDictionary()


class NothingToCompareError(UnseenUseError):
    """No record of a batch has a finite gradient, so that nothing can be proven with it."""


def refuse_hidden_uses(recorder: Recorder, losses: Tensor) -> None:
    """Raise unless every path from the losses to a parameter passes through a use that was seen."""
    names = {id(parameter): name for name, parameter in recorder.parameters.items()}
    seen: dict[Node, list[Node]] = {}
    for use in recorder.uses:
        for edge in use.edges:
            if edge is not None:
                seen.setdefault(edge.node, []).extend(use.sources)
    visited: set[Node] = set()
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
        ahead += seen[node] if node in seen else [follower for follower, _ in node.next_functions]


def pattern_of(model: nn.Module, loss: Loss, recorder: Recorder) -> Pattern:
    """Return what a proof depends on: all that was called, with which parameters and layouts."""
    return (model.training, getattr(loss, "__code__", type(loss)), recorder.trace)


def is_proven(model: nn.Module, pattern: Pattern, recorder: Recorder) -> bool:
    """Return whether this pattern was compared with autograd before, once and for all."""
    return not recorder.data_dependent and pattern in _proven.get(model, ())


def remember(model: nn.Module, pattern: Pattern, gradients: Mapping[int, Gradients]) -> None:
    """Take a pattern as proven, unless a use had no gradient that could have been compared."""
    given = [g for each in gradients.values() for g in each if g is not None]
    if all(bool(gradient.any()) for gradient in given):
        _proven.setdefault(model, set()).add(pattern)


def weighted_gradients(recorder: Recorder, losses: Tensor) -> dict[str, Tensor | None]:
    """Return a sum of the records' gradients by plain autograd, with another weight for each."""
    with torch.enable_grad():
        total = (losses * _weights(recorder.records).to(losses)).sum()
    leaves = [get_gradient_edge(parameter) for parameter in recorder.parameters.values()]
    found = torch.autograd.grad(total, leaves, allow_unused=True, retain_graph=True)
    return dict(zip(recorder.parameters, found, strict=True))


def prove(
    recorder: Recorder,
    gradients: Mapping[int, Gradients],
    contributions: Mapping[str, Contribution],
    expected: Mapping[str, Tensor | None],
) -> None:
    """Compare the weighted sum of the contributions with the one by plain autograd."""
    squared = {name: part.norms()[0] for name, part in contributions.items()}
    if not all(bool(torch.isfinite(each).all()) for each in squared.values()):
        raise NothingToCompareError("a record without a finite gradient, on a model's first batch")
    known = [g for each in gradients.values() for g in each if g is not None]
    tolerance = 3.0 * sqrt(max((torch.finfo(g.dtype).eps for g in known), default=0.0))
    whole = sqrt(sum(float(each.sum()) for each in squared.values()))
    for name, parameter in recorder.parameters.items():
        gradient = expected[name]
        scale = sqrt(float(squared[name].sum())) if name in squared else 0.0
        difference = torch.zeros_like(parameter, dtype=wide(parameter.dtype))
        if name in contributions:
            part = contributions[name]
            weights = _weights(recorder.records).to(parameter.device, part.dtype)
            difference += part.weighted_sum(weights)
        if gradient is not None:
            difference -= gradient.to_dense() if gradient.is_sparse else gradient
        if not float(difference.norm()) <= tolerance * (scale + 0.01 * whole):
            raise UnseenUseError(
                f"the gradient of {name} is not what plain autograd gives "
                "(are the records along the first dimension?)"
            )


def refuse_mixed_records(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    records: int,
    by_losses_alone: bool = False,
) -> None:
    """Raise if anything about a record changes when another record of the batch is exchanged.

    Inputs of layers are compared too, unless it is not known where they have their records.
    """
    if records < 2:
        return
    changed = records // 2
    other = _another(inputs, targets, records, changed)
    others = torch.arange(records) != changed
    found = []
    for exchange in (False, True):
        batch = copied((inputs, targets))
        if exchange:
            for part in tensors(batch):
                part[changed] = part[other]
        recorder = Fingerprinter(trainable(model), batch, records)
        with unchanged(model, inputs) as same, torch.no_grad(), watching(model, recorder):
            torch.manual_seed(0)
            values = losses_of(loss, forward(same, batch[0]), batch[1], records)
        inner = [] if by_losses_alone else recorder.fingerprints
        found.append([*inner, values.double()])
    before, after = found
    mixed = len(before) != len(after) or any(
        bool(_differ(one, two)[others.to(one.device)].any())
        for one, two in zip(before, after, strict=True)
    )
    if mixed and recorder.data_dependent and not by_losses_alone:
        raise UnseenUseError(f"{', '.join(sorted(recorder.data_dependent))} moves records about")
    if mixed:
        raise InvalidValueError(
            "model and loss must treat every record by itself, but what happens to a record "
            "changes with the other records in its batch; dither.clipping.check(model) may say why"
        )


def _weights(records: int) -> Tensor:
    """Return weights that are all different, the same ones every time."""
    return 0.5 + torch.rand(records, generator=torch.Generator().manual_seed(0))


def _another(inputs: Any, targets: Any, records: int, record: int) -> int:
    """Return a record that differs from the given one, in its targets if possible."""
    candidates = [i for i in range(records) if i != record][:32]
    for parts in (tensors(targets), tensors((inputs, targets))):
        for candidate in candidates:
            if any(not torch.equal(part[candidate], part[record]) for part in parts):
                return candidate
    return candidates[0]


def _differ(one: Tensor, two: Tensor) -> Tensor:
    """Return where two vectors differ by more than rounding; what is not finite is let be."""
    difference = (one - two).abs()
    return torch.isfinite(difference) & (difference > 1e-6 * (one.abs() + two.abs()))
