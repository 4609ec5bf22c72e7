"""What the fast engine relies on, checked: on every batch by the graph, on new models by numbers.

Shapes can mislead (a sequence as long as the batch), rules can be wrong, a model can do things
that no rule foresaw. So nothing is taken on trust:

- every batch: each path of the autograd graph from the losses to a parameter must pass through a
  use that was seen (:func:`refuse_hidden_uses`);
- the first batch on which a model shows a new pattern of uses: one record's gradient by plain
  autograd must be what the contributions say, must reach nothing but that record's part of every
  layer's output, and its loss must not change when the other records are left out.
"""

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from dither.clipping.batch import Loss, forward, losses_of, take, tensors
from dither.clipping.contributions import Contribution
from dither.clipping.recorder import Recorder
from dither.clipping.registry import UnseenUseError
from dither.clipping.uses import Gradients, prepared_gradient, use_layout
from dither.validate import InvalidValueError

Pattern = tuple[object, ...]
_proven: WeakKeyDictionary[nn.Module, set[Pattern]] = WeakKeyDictionary()


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


def pattern_of(model: nn.Module, recorder: Recorder) -> Pattern:
    """Return what a proof depends on: which functions met which parameters, in which layout."""
    uses = tuple(
        (
            use.function,
            *recorder.parameters_in(use.args, use.kwargs),
            use_layout(use, recorder.records),
            len(use.shapes[0]),
        )
        for use in recorder.uses
    )
    return (model.training, uses)


def is_proven(model: nn.Module, pattern: Pattern) -> bool:
    """Return whether this pattern was compared with autograd before."""
    return pattern in _proven.get(model, ())


def prove(
    model: nn.Module,
    pattern: Pattern,
    recorder: Recorder,
    losses: Tensor,
    gradients: Mapping[int, Gradients],
    contributions: Mapping[str, Contribution],
) -> None:
    """Compare one record's gradient with plain autograd, and see that it is this record's alone."""
    if recorder.records == 0:
        return
    record = _telling_record(contributions, recorder.records)
    places = [
        (position, k, edge)
        for position, use in enumerate(recorder.uses)
        for k, edge in enumerate(use.edges)
        if edge is not None
    ]
    leaves = [get_gradient_edge(parameter) for parameter in recorder.parameters.values()]
    only = torch.zeros_like(losses)
    only[record] = 1.0
    found = torch.autograd.grad(
        losses,
        [edge for _, _, edge in places] + leaves,
        only,
        allow_unused=True,
        retain_graph=True,
    )
    alone = found[: len(places)]
    expected = dict(zip(recorder.parameters, found[len(places) :], strict=True))
    told = [
        _stays_in_its_record(record, recorder, gradients[position][k], single, position)
        for (position, k, _), single in zip(places, alone, strict=True)
    ]
    _compare_with_autograd(record, expected, contributions)
    if all(told) and recorder.records > 1:
        _proven.setdefault(model, set()).add(pattern)


def refuse_mixed_records(
    model: nn.Module, loss: Loss, inputs: Any, targets: Any, records: int
) -> None:
    """Raise if a record's loss depends on which other records are in the batch."""
    if records < 2:
        return
    few = min(3, records)
    parts = [slice(0, few), slice(0, few), *(slice(i, i + 1) for i in range(few))]
    devices = {t.device.index for t in tensors(inputs) if t.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)), torch.no_grad():
        together, again, *alone = (
            losses_of(
                loss,
                forward(_on_copies_of_buffers(model), take(inputs, part)),
                take(targets, part),
                part.stop - part.start,
            )
            for part in parts
        )
    if not torch.equal(together, again):
        return  # drawn at random (dropout), or not finite
    slack = 8.0 * torch.finfo(together.dtype).eps ** (2.0 / 3.0) * (1.0 + together.abs())
    if bool(((together - torch.cat(alone)).abs() > slack).any()):
        raise InvalidValueError(
            "model and loss must treat every record by itself, but the loss of a record changes "
            "with the other records in its batch; dither.clipping.check(model) may say why"
        )


def _on_copies_of_buffers(model: nn.Module) -> Callable[..., Any]:
    """Return the model as a function that cannot change the model's own buffers."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def call(*args: Any, **kwargs: Any) -> Any:
        return (
            torch.func.functional_call(model, buffers, args, kwargs)
            if buffers
            else model(*args, **kwargs)
        )

    return call


def _telling_record(contributions: Mapping[str, Contribution], records: int) -> int:
    total = torch.zeros(records, dtype=torch.float64)
    for part in contributions.values():
        total += part.norms()[0].double().cpu()
    finite = torch.isfinite(total)
    if not finite.any():
        raise UnseenUseError("no record of the batch has a finite gradient to compare with")
    return int(torch.where(finite, total, -1.0).argmax())


def _compare_with_autograd(
    record: int, expected: Mapping[str, Tensor | None], contributions: Mapping[str, Contribution]
) -> None:
    known = {name: gradient for name, gradient in expected.items() if gradient is not None}
    scale = sqrt(sum(float(gradient.double().square().sum()) for gradient in known.values()))
    for name, gradient in known.items():
        part = contributions.get(name)
        row = part.rows(record, record + 1)[0] if part is not None else torch.zeros_like(gradient)
        if not _close(row, gradient.to_dense() if gradient.is_sparse else gradient, scale):
            raise UnseenUseError(f"the rule for {name} does not give what autograd gives")
    if part_without := set(contributions) - set(known):
        for name in part_without:
            row = contributions[name].rows(record, record + 1)
            if not _close(row, torch.zeros_like(row), scale):
                raise UnseenUseError(f"the rule for {name} gives a gradient where there is none")
    norms = [part.norms() for part in contributions.values()]
    squared = sum(float(each[record]) for each, _ in norms)
    hidden = sum(float(each[record]) for _, each in norms if each is not None)
    slack = max((_tolerance(part.dtype) for part in contributions.values()), default=0.0)
    if abs(squared - scale**2) > 2.0 * slack * scale**2 + 8.0 * hidden:
        raise UnseenUseError("the norm of a record is not what autograd gives")


def _stays_in_its_record(
    record: int, recorder: Recorder, batch: Tensor | None, single: Tensor | None, position: int
) -> bool:
    """Return whether the gradient was there to be compared; raise if it is not as it should be."""
    use = recorder.uses[position]
    layout = use_layout(use, recorder.records)
    if batch is None or single is None:
        return single is None and batch is None
    if layout is None:
        return True
    of_batch, alone = (
        prepared_gradient(gradient, layout, recorder.records) for gradient in (batch, single)
    )
    scale = float(alone[record].norm())
    others = [i for i in range(recorder.records) if i != record]
    if others and float(alone[others].abs().max()) > 0.0:
        raise UnseenUseError(
            f"{use.name} with {', '.join(recorder.parameters_in(use.args, use.kwargs))} "
            "does not have the records along its first dimension"
        )
    if not _close(of_batch[record], alone[record], scale):
        raise UnseenUseError(f"the gradient at {use.name} depends on other records")
    return scale > 0.0


def _close(one: Tensor, other: Tensor, scale: float) -> bool:
    difference = (one.double() - other.double()).abs()
    return bool(
        difference.numel() == 0 or float(difference.max()) <= _tolerance(other.dtype) * scale
    )


def _tolerance(dtype: torch.dtype) -> float:
    return 8.0 * sqrt(torch.finfo(dtype).eps)
