"""From contributions to the sum of clipped gradients: norms, clip factors, weighted sums."""

from collections.abc import Mapping

import torch
from torch import Tensor

from dither.clipping.contributions import Contribution, unit

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-11}
"""A record whose squared norm may be off by more than this share is computed again in float64."""

SMALLEST_CLIP_NORM = 1e-10
"""Below this, squares that are lost in float32 would matter: everything is done in float64."""


def clip(
    contributions: Mapping[str, Contribution], clip_norm: float
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the sum of the clipped gradients by name, and every record's norm before clipping.

    The clip factor of a record is ``clip_norm`` over its norm *plus* the bound on what rounding
    hides of the norm. Where that bound is more than the tolerance of the type, as it is if large
    terms cancel, or if the norm overflows, the record is computed again in float64, norm and sum.
    A record whose gradient is not finite even then counts as zero.
    """
    squared, error = _totals(contributions)
    tolerance = min(TOLERANCE[part.dtype] for part in contributions.values())
    ordinary = error - tolerance * squared <= 0.0  # NaN and ∞ − ∞ are not
    if clip_norm < SMALLEST_CLIP_NORM:
        ordinary = torch.zeros_like(ordinary)
    if ordinary.all():
        weights = _weights(squared, error, clip_norm)
        return _sums(contributions, weights), squared.sqrt()

    norms = squared.sqrt()
    doubtful, ordinary = (~ordinary).nonzero().squeeze(1), ordinary.nonzero().squeeze(1)
    again = {name: part.select(doubtful).double() for name, part in contributions.items()}
    exact, exact_error = _totals(again)
    exact = exact.clamp(min=0.0)
    finite = torch.isfinite(exact + exact_error)
    exact = torch.where(finite, exact, torch.inf)
    norms[doubtful] = exact.sqrt().to(norms.dtype)

    rest = {name: part.select(ordinary) for name, part in contributions.items()}
    sums = _sums(rest, _weights(squared[ordinary], error[ordinary], clip_norm))
    good = finite.nonzero().squeeze(1)
    kept = {name: part.select(good) for name, part in again.items()}
    more = _sums(kept, _weights(exact[good], exact_error[good], clip_norm))
    return {name: total + more[name].to(total.dtype) for name, total in sums.items()}, norms


def _totals(contributions: Mapping[str, Contribution]) -> tuple[Tensor, Tensor]:
    """Return squared norms over all parameters, and bounds on what rounding hides of them."""
    found = [part.norms() for part in contributions.values()]
    squared = torch.stack([each.double() for each, _ in found]).sum(0)
    error = 64.0 * max(unit(part.dtype) for part in contributions.values()) * squared
    for _, hidden in found:
        error = error if hidden is None else error + hidden
    return squared, error


def _weights(squared: Tensor, error: Tensor, clip_norm: float) -> Tensor:
    return (clip_norm / (squared + error).sqrt()).clamp(max=1.0)


def _sums(contributions: Mapping[str, Contribution], weights: Tensor) -> dict[str, Tensor]:
    return {name: _sum(part, weights) for name, part in contributions.items()}


def _sum(part: Contribution, weights: Tensor) -> Tensor:
    if part.records == 0:
        return part.rows(0, 0).sum(0)
    return part.weighted_sum(weights.to(part.dtype))
