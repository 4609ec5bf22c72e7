"""How a clipped sum is compared with the truth: a loop over single records in float64."""

import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dither.clipping import ClippedSum, FallbackWarning, clipped_sum
from dither.clipping.batch import forward, take


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """One loss a record; a sequence's is the mean over its tokens."""
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


def quietly(*arguments: Any, **settings: Any) -> ClippedSum:
    """A clipped sum, without the warnings that something is slow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        return clipped_sum(*arguments, **settings)


def by_loop(
    model: nn.Module, loss: Any, inputs: Any, targets: Any, clip_norm: float, records: int
) -> tuple[dict[str, Tensor], Tensor]:
    """The definition: every record alone through plain autograd, clipped, added up."""
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    sums = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in parameters.items()}
    norms = []
    for record in range(records):
        one = slice(record, record + 1)
        value = loss(forward(model, take(inputs, one)), take(targets, one)).sum()
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
        for name, gradient in zip(parameters, gradients, strict=True):
            sums[name] += factor * gradient.double()
    return sums, torch.stack(norms)


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
    **settings: Any,
) -> ClippedSum:
    """Compare the fast engine and the oracle with a loop, in float64 and in float32."""
    exact = deepcopy(model).double()
    wide = _cast(inputs, torch.float64)
    records = len(next(iter(_leaves(inputs))))
    _, norms = by_loop(exact, loss, wide, targets, float("inf"), records)
    clip_norm = float(norms.median()) or 1.0
    expected, norms = by_loop(exact, loss, wide, targets, clip_norm, records)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        cast = deepcopy(model).to(dtype)
        batch = _cast(inputs, dtype)
        for engine in ("oracle", "fast"):
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                total = clipped_sum(
                    cast, loss, batch, targets, clip_norm=clip_norm, engine=engine, **settings
                )
            assert distance(total.gradients, expected) < tolerance, (engine, dtype)
            assert bool(((total.norms.double() - norms).abs() <= tolerance * norms).all())
            messages = [str(w.message) for w in told if issubclass(w.category, FallbackWarning)]
            if engine == "fast":
                assert (fallback is None) == (not messages), messages
                assert fallback is None or any(fallback in message for message in messages)
            others = [w for w in told if not issubclass(w.category, FallbackWarning)]
            assert not others, [str(w.message) for w in others]
    return total


def _leaves(batch: Any) -> list[Tensor]:
    if isinstance(batch, dict):
        return list(batch.values())
    return list(batch) if isinstance(batch, tuple) else [batch]


def _cast(batch: Any, dtype: torch.dtype) -> Any:
    if isinstance(batch, dict):
        return {key: _cast(value, dtype) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_cast(value, dtype) for value in batch)
    return batch.to(dtype) if batch.is_floating_point() else batch
