"""How a clipped sum is compared with its definition: a loop over single records in float64."""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dither.clipping import ClippedSum, FallbackWarning, clipped_sum, engine
from dither.clipping.batch import forward, map_tensors, slice_rows, tensors
from dither.clipping.clip import Clip
from dither.clipping.recording import CheckCache, ModelHooks, RecordedBatch
from dither.validate import InvalidValueError

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4}


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss per record; a sequence's is the mean over its tokens."""
    if outputs.dim() == 2:
        return F.cross_entropy(outputs, targets, reduction="none")
    flat = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
    return flat.view(targets.shape).mean(1)


def squares(outputs: Any, targets: Any) -> Tensor:
    """A loss that has a generic gradient everywhere."""
    first = outputs[0] if isinstance(outputs, tuple) else outputs
    flat = first.flatten(1)
    weights = torch.cos(torch.arange(flat.shape[1], dtype=flat.dtype))
    return (flat * weights).sum(1) + 0.1 * (flat**2).sum(1)


@dataclass
class Watched:
    """What the engine did: warnings, and the parameters that it computed record by record."""

    slow: set[str] = field(default_factory=set)
    fallbacks: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


@contextmanager
def watched() -> Iterator[Watched]:
    """Watch what the engine does, and keep its warnings."""
    seen = Watched()
    by_autograd = engine._by_autograd

    def spy(recorder: Any, losses: Any, names: list[str]) -> Any:
        seen.slow |= {*names}
        return by_autograd(recorder, losses, names)

    with mock.patch.object(engine, "_by_autograd", spy), warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        try:
            yield seen
        finally:
            for each in w:
                is_fallback = issubclass(each.category, FallbackWarning)
                (seen.fallbacks if is_fallback else seen.others).append(str(each.message))


def quietly(*arguments: Any, **settings: Any) -> ClippedSum:
    """A clipped sum, without the warnings that something is slow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        return clipped_sum(*arguments, **settings)


def refusal_of(*arguments: Any, **settings: Any) -> str | None:
    """Why a clipped sum is refused; None if it is not."""
    try:
        quietly(*arguments, **{"clip_norm": 1.0} | settings)
    except InvalidValueError as error:
        return str(error)
    return None


def in_a_loop(
    model: nn.Module,
    losses: Callable[[], Tensor],
    records: int,
    *,
    clip_norm: float,
    cache: CheckCache | None = None,
) -> ClippedSum:
    """The clipped sum of losses that a loop of one's own computes: any calls, any arguments."""
    hooks = ModelHooks(model)
    try:
        recording = RecordedBatch(model, records, CheckCache() if cache is None else cache)
        hooks.begin(recording)
        found = losses()
        hooks.begin(None)
        return engine.clip_recording(recording, found, Clip(clip_norm))
    finally:
        hooks.remove()


def by_loop(
    model: nn.Module,
    loss: Any,
    inputs: Any,
    targets: Any,
    clip_norm: float,
    records: int,
    clipping: str = "flat",
) -> tuple[dict[str, Tensor], Tensor]:
    """The definition: every record alone through plain autograd, clipped, added up."""
    return by_losses(
        model,
        lambda one: loss(
            forward(model, slice_rows(inputs, one, records)), slice_rows(targets, one, records)
        ),
        clip_norm,
        records,
        clipping,
    )


def by_losses(
    model: nn.Module,
    losses: Callable[[slice], Tensor],
    clip_norm: float,
    records: int,
    clipping: str = "flat",
) -> tuple[dict[str, Tensor], Tensor]:
    """The same for losses that are a function of the chosen record."""
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    sums = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in parameters.items()}
    norms = []
    for record in range(records):
        value = losses(slice(record, record + 1)).sum()
        found: tuple[Tensor | None, ...] = torch.autograd.grad(
            value, list(parameters.values()), allow_unused=True
        )
        gradients = [
            torch.zeros_like(p) if g is None else g
            for p, g in zip(parameters.values(), found, strict=True)
        ]
        norm = torch.stack([g.double().norm() for g in gradients]).norm()
        norms.append(norm)
        factor = min(1.0, clip_norm / float(norm)) if float(norm) else 1.0
        if clipping == "automatic":
            factor = clip_norm / (float(norm) + 0.01)
        for name, gradient in zip(parameters, gradients, strict=True):
            sums[name] += factor * gradient.double()
    return sums, torch.stack(norms)


def by_autograd(model: nn.Module, losses: Tensor) -> dict[str, Tensor]:
    """The gradient of the plain sum of the losses."""
    named = dict(model.named_parameters())
    found = torch.autograd.grad(
        losses.sum(), list(named.values()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(named, found, strict=True))


def distance(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The largest difference of a parameter's sum, relative to the whole sum's norm."""
    assert set(found) == set(expected)
    scale = float(torch.stack([e.double().norm() for e in expected.values()]).norm())
    worst = max(float((found[n].double() - expected[n].double()).norm()) for n in expected)
    return worst / scale if scale else worst


def assert_right(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    loss: Any = cross_entropy,
    *,
    fallback: str | None = None,
    slow: Collection[str] = (),
    before: Any = None,
    **settings: Any,
) -> ClippedSum:
    """Compare the fast engine and the reference with a loop, in both types and ways of clipping.

    Args:
        model: the model; a copy is used.
        inputs: of the batch.
        targets: of the batch.
        loss: one value per record.
        fallback: a part of a warning that must be given; without it, none may be given.
        slow: the parameters that are computed record by record, all of them.
        before: (inputs, targets) of a batch that the engine sees first.
        settings: for `clipped_sum`.
    """
    exact = deepcopy(model).double()
    inputs_in_float64 = cast(inputs, torch.float64)
    records = len(tensors(inputs)[0])
    _, norms = by_loop(exact, loss, inputs_in_float64, targets, float("inf"), records)
    clip_norm = float(norms.median()) or 1.0
    expected, norms = by_loop(exact, loss, inputs_in_float64, targets, clip_norm, records)
    scaled, _ = by_loop(exact, loss, inputs_in_float64, targets, clip_norm, records, "automatic")
    for dtype, tolerance in TOLERANCES.items():
        own = deepcopy(model).to(dtype)
        batch = cast(inputs, dtype)
        for kind in ("reference", "fast"):
            with watched() as seen:
                if before is not None:
                    earlier = cast(before[0], dtype), before[1]
                    clipped_sum(own, loss, *earlier, clip_norm=clip_norm, engine=kind)
                seen.slow.clear()
                total = clipped_sum(
                    own, loss, batch, targets, clip_norm=clip_norm, engine=kind, **settings
                )
            assert distance(total.gradients, expected) < tolerance, (kind, dtype)
            assert bool(((total.norms.double() - norms).abs() <= tolerance * norms).all())
            how: Any = {"clip_norm": clip_norm, "clipping": "automatic", "engine": kind}
            with watched():
                again = clipped_sum(own, loss, batch, targets, **how, **settings)
            assert distance(again.gradients, scaled) < tolerance, (kind, dtype, "automatic")
            assert not seen.others, seen.others
            if kind == "fast":
                assert (fallback is None) == (not seen.fallbacks), seen.fallbacks
                assert fallback is None or any(fallback in each for each in seen.fallbacks), seen
                assert seen.slow == {*slow}
    return total


def cast(batch: Any, dtype: torch.dtype) -> Any:
    """The batch with its floating-point tensors in another type."""
    return map_tensors(batch, lambda t: t.to(dtype) if t.is_floating_point() else t)
