"""From contributions to the clipped sum: norms, clip factors, weighted sums, in full precision."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from dither import validate
from dither.clipping.contributions import Clippable, unit_roundoff


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


STABILIZER = 0.01
"""γ of automatic clipping, a public constant: the value of Bu et al. (2023).

A gradient much longer than γ is scaled to almost the clip norm; one much shorter keeps its
proportion to the others, so that noise in a vanishing gradient is not blown up to full length, and
a gradient of zeros has a factor. The sensitivity does not depend on it.
"""


@dataclass(frozen=True)
class Clip:
    """How per-record gradients are clipped: by which factor each is multiplied.

    With C the norm and n an upper bound on the norm of a record's gradient, rounding included, the
    factor is min(1, C/n) for "flat", and C/(n + γ) for "automatic". Either way a record contributes
    at most C. The factor of "automatic" may exceed 1, up to C/γ, and a large input times a factor
    above 1 could overflow although the gradient is small. So it is split: `factors` are at most 1,
    and their sum is multiplied by `scale`, a power of two, which is exact. Whatever holds for the
    rounding of a sum with factors of at most 1 then holds for both.

    Attributes:
        norm: C_G; infinite for the plain sum, with "flat" only.
        mode: "flat" or "automatic".

    Example:
        >>> clip = Clip(2.0, "automatic")
        >>> clip.scale * clip.factors(torch.tensor([0.0, 0.99, 1e6]).double())
        tensor([2.0000e+02, 2.0000e+00, 2.0000e-06], dtype=torch.float64)
    """

    norm: float
    mode: str = "flat"

    def __post_init__(self) -> None:
        """Check the norm and the mode."""
        validate.clipping(clip_norm=self.norm, clipping=self.mode)

    @property
    def scale(self) -> float:
        """The power of two by which a sum with `factors` is multiplied; at least C/γ, or 1."""
        if self.mode == "flat":
            return 1.0
        above, below = math.frexp(self.norm)[1], math.frexp(STABILIZER)[1] - 1
        return 2.0 ** max(0, above - below)  # C < 2^above, γ ≥ 2^below

    def factors(self, norms: Tensor) -> Tensor:
        """Return factors of at most 1, from upper bounds on norms."""
        if self.mode == "flat":
            return (self.norm / norms).clamp_(max=1.0)
        return (self.norm / self.scale) / (norms + STABILIZER)


TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-11}
"""A record whose squared norm may be off by more than this share is computed again in float64."""

SMALLEST_FACTOR = 1e-20
"""A gradient times a factor below this may lose digits in float32: the record is computed in
float64."""

SMALLEST_CLIP_NORM = 1e-10
"""Below this, squares that are lost in float32 would matter: everything is done in float64."""


def bounded_weights(record_weights: Tensor) -> Tensor:
    """Return weights from 0 to 1, which multiply clipped gradients; NaN becomes 0."""
    return torch.nan_to_num(record_weights.detach().double(), nan=0.0).clamp(0.0, 1.0)


def sum_clipped(
    contributions: dict[str, Clippable], clip: Clip, weights: Tensor | None = None
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the sum of the clipped gradients by name, and every record's norm before clipping.

    A record adds its clipped gradient times its weight, which is from 0 to 1.

    The factor of a record is that of its norm *plus* the bound on what rounding hides of the
    norm. Squares that vanish in float32 are in no such bound: they are far below every norm that
    matters, the clip norm for flat clipping and γ for automatic clipping.

    Sums over no records are left out. The contributions are taken out of the dict, so that what is
    no longer needed is freed.

    Where that bound is more than the tolerance of the type, as it is if large terms cancel, or if
    the norm overflows, the record is computed again in float64, norm and sum. A record whose
    gradient is not finite even then counts as zero.
    """
    squared, bound = _totals(contributions)
    tolerance = min(TOLERANCE[part.dtype] for part in contributions.values())
    ordinary = bound - (1.0 + tolerance) * squared <= 0.0  # NaN and ∞ − ∞ are not
    factors = clip.factors(bound.sqrt())
    ordinary &= factors > SMALLEST_FACTOR
    if clip.norm < SMALLEST_CLIP_NORM:
        ordinary = torch.zeros_like(ordinary)
    if ordinary.all():
        factors = factors if weights is None else factors * weights
        return _sums(contributions, factors, clip.scale), squared.sqrt_()

    norms = squared.sqrt()
    weights = torch.ones_like(squared) if weights is None else weights
    doubtful, ordinary = (~ordinary).nonzero().squeeze(1), ordinary.nonzero().squeeze(1)
    again = {name: part.select(doubtful).double() for name, part in contributions.items()}
    exact, exact_bound = _totals(again)
    finite = torch.isfinite(exact_bound)
    norms[doubtful] = torch.where(finite, exact.clamp(min=0.0), torch.inf).sqrt()

    good = finite.nonzero().squeeze(1)
    exact_factors = clip.factors(exact_bound[good].sqrt()) * weights[doubtful][good]
    sums = _sums_of(contributions, ordinary, (factors * weights)[ordinary], clip.scale)
    more = _sums_of(again, good, exact_factors, clip.scale)
    if not sums or not more:
        return sums or more, norms
    return {name: total + more[name].to(total.dtype) for name, total in sums.items()}, norms


def _totals(contributions: Mapping[str, Clippable]) -> tuple[Tensor, Tensor]:
    """Return squared norms over all parameters, and upper bounds on them, rounding included."""
    found = [part.norms() for part in contributions.values()]
    squared = torch.stack([each for each, _ in found]).sum(0)
    rounding = 64.0 * max(unit_roundoff(part.dtype) for part in contributions.values())
    bound = squared.clamp(min=0.0) * (1.0 + rounding)
    hidden = [each for _, each in found if each is not None]
    return squared, bound + torch.stack(hidden).sum(0) if hidden else bound


def _sums(contributions: dict[str, Clippable], factors: Tensor, scale: float) -> dict[str, Tensor]:
    sums = {}
    for name in [*contributions]:
        part = contributions.pop(name)
        sums[name] = part.weighted_sum(factors.to(part.dtype))
        del part
    return sums if scale == 1.0 else {name: total.mul_(scale) for name, total in sums.items()}


def _sums_of(
    contributions: Mapping[str, Clippable], records: Tensor, factors: Tensor, scale: float
) -> dict[str, Tensor]:
    """Return the sums over some records, which are empty if there are none."""
    if not len(records):
        return {}
    chosen = {name: part.select(records) for name, part in contributions.items()}
    return _sums(chosen, factors, scale)


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
