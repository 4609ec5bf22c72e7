"""From contributions to the clipped sum: norms, clip factors, weighted sums, in full precision."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from dither.clipping.contributions import Contribution, unit_roundoff


@dataclass(frozen=True, eq=False, repr=False)
class ClippedSum:
    """The sum of clipped per-record gradients of one batch. Sensitive: no noise has been added.

    Attributes:
        gradients: parameter name → sum over the records, for every trainable parameter; float32
            where the parameter is of half precision, else of the parameter's own type.
        norms: one norm per record, before clipping; infinite where the record's gradient is not
            finite, and such a record counts as zero.

    Example:
        >>> ClippedSum({"weight": torch.zeros(2)}, norms=torch.ones(3))
        ClippedSum(gradients of weight; 3 norms: sensitive)
    """

    gradients: dict[str, Tensor]
    norms: Tensor

    def __repr__(self) -> str:
        """Show names only: the values belong to the records."""
        names = ", ".join(self.gradients)
        return f"ClippedSum(gradients of {names}; {len(self.norms)} norms: sensitive)"


TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-11}
"""A record whose squared norm may be off by more than this share is computed again in float64."""

SMALLEST_FACTOR = 1e-30
"""A clip factor below this would lose digits in float32: the record is computed in float64."""

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
    squared, bound = _totals(contributions)
    tolerance = min(TOLERANCE[part.dtype] for part in contributions.values())
    ordinary = bound - (1.0 + tolerance) * squared <= 0.0  # NaN and ∞ − ∞ are not
    ordinary &= clip_norm * bound.rsqrt() > SMALLEST_FACTOR
    if clip_norm < SMALLEST_CLIP_NORM:
        ordinary = torch.zeros_like(ordinary)
    if ordinary.all():
        return _sums(contributions, _weights(bound, clip_norm)), squared.sqrt_()

    norms = squared.sqrt()
    doubtful, ordinary = (~ordinary).nonzero().squeeze(1), ordinary.nonzero().squeeze(1)
    again = {name: part.select(doubtful).double() for name, part in contributions.items()}
    exact, exact_bound = _totals(again)
    finite = torch.isfinite(exact_bound)
    norms[doubtful] = torch.where(finite, exact.clamp(min=0.0), torch.inf).sqrt()

    rest = {name: part.select(ordinary) for name, part in contributions.items()}
    sums = _sums(rest, _weights(bound[ordinary], clip_norm))
    good = finite.nonzero().squeeze(1)
    kept = {name: part.select(good) for name, part in again.items()}
    more = _sums(kept, _weights(exact_bound[good], clip_norm))
    return {name: total + more[name].to(total.dtype) for name, total in sums.items()}, norms


def _totals(contributions: Mapping[str, Contribution]) -> tuple[Tensor, Tensor]:
    """Return squared norms over all parameters, and upper bounds on them, rounding included."""
    found = [part.norms() for part in contributions.values()]
    squared = torch.stack([each for each, _ in found]).sum(0)
    rounding = 64.0 * max(unit_roundoff(part.dtype) for part in contributions.values())
    bound = squared.clamp(min=0.0) * (1.0 + rounding)
    hidden = [each for _, each in found if each is not None]
    return squared, bound + torch.stack(hidden).sum(0) if hidden else bound


def _weights(bound: Tensor, clip_norm: float) -> Tensor:
    return (clip_norm * bound.rsqrt()).clamp_(max=1.0)


def _sums(contributions: Mapping[str, Contribution], weights: Tensor) -> dict[str, Tensor]:
    return {name: _sum(part, weights) for name, part in contributions.items()}


def _sum(part: Contribution, weights: Tensor) -> Tensor:
    if part.records == 0:
        return part.rows(0, 0).sum(0)
    return part.weighted_sum(weights.to(part.dtype))


_PRECISION_SETTINGS: dict[str, tuple[Any, ...]] = {
    "cpu": attrgetter("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")(torch.backends),
    "cuda": attrgetter("cuda.matmul", "cudnn.conv", "cudnn.rnn")(torch.backends),
}


@contextmanager
def full_precision(device: str) -> Iterator[None]:
    """Compute float32 in float32: no autocast, and no products of numbers with fewer digits.

    Torch can be told to round the factors of float32 products to TF32 or bfloat16, and on GPUs
    convolutions do so by default. A norm and a sum that are computed like that can differ by more
    than `dither.release.margin` covers. What a model does on its way to the losses may be as
    coarse as its user likes: the gradient that is measured is the one that is added.

    Args:
        device: the type of the device, such as "cpu".
    """
    coarse = {
        setting: setting.fp32_precision
        for setting in _PRECISION_SETTINGS.get(device, ())
        if setting.fp32_precision not in ("ieee", "none")
    }
    try:
        for setting in coarse:
            setting.fp32_precision = "ieee"
        with torch.autocast(device, enabled=False):
            yield
    finally:
        for setting, precision in coarse.items():
            setting.fp32_precision = precision
