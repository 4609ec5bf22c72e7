"""Buckets of unequal steps, with certified bounds both ways.

For every α > 0 the hockey-stick divergence of a step is a convex function of the total variation
distance D(μ) = 2Φ(μ/2) − 1 of its two Gaussians: with H_α(μ) = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ),
α = e^ε, one finds H″/H′ = ε²/μ³ − μ/4 ≥ −μ/4 = D″/D′ (derivatives in μ), and sampling only
rescales H and moves its ε. For a group of k records D(√(k² + (k−1)²)·μ) takes the place of D(μ), as
is shown below. Hence, for D between the edges D_j ≤ D ≤ D_{j+1} of a bucket,

- the mixture (1−p)·step_j + p·step_{j+1}, p = (D − D_j)/(D_{j+1} − D_j), dominates the step, and
- (1+λ)·step_j − λ·step_{j−1}, λ = (D − D_j)/(D_j − D_{j−1}), is dominated by it. It is a pair of
  laws: its density is not negative because the loss at μ_{j−1} is at most
  μ_j/μ_{j−1}·e^(k²·(μ_j² − μ_{j−1}²)/8) ≤ 1 + 1/λ times as dense as at μ_j; where that needs a
  smaller λ, it is made smaller.

Both err by the square of the bucket's width, and both are linear in the transforms of the edges. A
product over the k steps of a bucket is M_j^k·Π(1 + p_t·r), r = M_{j+1}/M_j − 1, whose logarithm is
a series in r with the power sums Σ p_t^m: the steps themselves are read once.

Groups. Let w be the likelihood ratio of a step (see `dither.accounting.ratio`), w(c) = α, and J and
V the mean and the variance of j = 1 … k under the weights j·B_j·e^(jμc − j²μ²/2). As
H_α(μ) = max_c Σ_j B_j·Φ(jμ − c) − α·Φ(−c), H′ = Σ_j B_j·j·φ(c − jμ). The derivative of c is
−(c − μJ)/μ, so that

    H″/H′ = (c − μJ/2)²/μ − μ·(J²/4 + V) ≥ −μ·(k² + (k−1)²)/4,

since j is between 1 and k; and D(√κ·μ) has D″/D′ = −κμ/4. Adding a group is the same pair of laws
the other way round. The density of w under N(0, 1) at α is φ(c)/w′(c) = φ(c)²/(μ·H′), and its
logarithm has the derivative (c − μJ/2)²/μ − 1/μ − μJ²/4 + μV ≥ −1/μ − μk²/4 in μ.
"""

import math
from dataclasses import dataclass

import numpy as np

from dither.accounting.ratio import Kind
from dither.accounting.transform import Transforms, distance_between, log_moments, transforms
from dither.types import FloatArray

_TERMS = 6
SORTABLE = 50_000
"""The most steps that are sorted: more are put into bins first."""

_BINS = 2**16


@dataclass(frozen=True)
class Sample:
    """log M(θ) of the full run and M(θ + iω)/M(θ) on a grid of ω, with a bound on the error.

    Attributes:
        log_moment: log M(θ).
        log_ratio: log of M(θ + i·n·spacing)/M(θ), complex.
        error: bound on the error of the sum of both, at each n.
    """

    log_moment: float
    log_ratio: np.ndarray
    error: FloatArray

    def __add__(self, other: "Sample") -> "Sample":
        """Return the sample of both runs one after the other."""
        return Sample(
            self.log_moment + other.log_moment,
            self.log_ratio + other.log_ratio,
            self.error + other.error,
        )


@dataclass(frozen=True)
class Buckets:
    """Steps between edges in increasing μ, and what each bucket needs to know of its steps.

    Attributes:
        edges: μ at the edges; bucket j lies between edges j and j+1, and bucket 0 is empty.
        counts: how many steps each bucket has.
        powers_up: Σ p_t^(m+1) over the steps of each bucket, one row for each m.
        powers_down: the same for λ_t.
    """

    edges: FloatArray
    counts: FloatArray
    powers_up: FloatArray
    powers_down: FloatArray

    @property
    def number(self) -> float:
        """How many steps there are."""
        return float(self.counts.sum())

    def log_moment(self, q: float, theta: float, kind: Kind) -> float:
        """Return an upper bound on log M(θ)."""
        used = np.flatnonzero(self.counts)
        needed = np.union1d(used, used + 1)
        log_m = np.zeros(self.edges.size)
        log_m[needed] = log_moments(self.edges[needed], q, theta, kind)
        k = self.counts[used]
        p = np.minimum(self.powers_up[0, used] / k, 1.0)
        gap = log_m[used + 1] - log_m[used]
        with np.errstate(over="ignore", divide="ignore"):
            far = np.logaddexp(np.log1p(-p), np.log(p) + gap)
            near = np.log1p(p * np.expm1(gap))
        # log is concave, so that the bucket's mean p stands for its steps from above.
        return float(k @ (log_m[used] + np.where(gap > 1.0, far, near)))

    def sample(
        self, q: float, theta: float, spacing: float, number: int, kind: Kind
    ) -> tuple[Sample, Sample]:
        """Return transforms of steps that dominate these, and of steps that these dominate."""
        used = np.flatnonzero(self.counts)
        needed = np.unique(np.concatenate([used - 1, used, used + 1]))
        found = transforms(self.edges[needed], q, theta, spacing, number, kind)
        below, here, above = (np.searchsorted(needed, used + k) for k in (-1, 0, 1))
        k = self.counts[used]
        log_ratio, error = log1p_bounded(found.excess[here], found.error[here])
        error += found.slack[here, None]
        base = Sample(float(k @ found.log_moment[here]), k @ log_ratio, k @ error)
        up, up_error = _quotient(found, above, here)
        down, down_error = _quotient(found, below, here)
        return (
            base + _series(up, up_error, self.powers_up[:, used], k),
            base + _series(-down, down_error, self.powers_down[:, used], k),
        )


def log1p_bounded(excess: np.ndarray, error: FloatArray) -> tuple[np.ndarray, FloatArray]:
    """Return log(1 + excess) and a bound on its error; numpy's own loses small real parts."""
    x, y = excess.real, excess.imag
    out = np.empty(excess.shape, dtype=complex)
    with np.errstate(divide="ignore"):
        log_size = 0.5 * np.log1p(np.maximum(2.0 * x + x * x + y * y, -1.0))
    out.real, out.imag = np.maximum(log_size, -690.0), np.arctan2(y, 1.0 + x)
    # The relative error of a factor that is nearly 0 may be vast: it counts times the factor.
    return out, np.log1p(error / np.exp(out.real)) + 4e-16 * np.abs(excess)


def _quotient(
    found: Transforms, over: np.ndarray, under: np.ndarray
) -> tuple[np.ndarray, FloatArray]:
    """Return M/M′ − 1 for rows of transforms, and a bound on its error."""
    gap = (found.log_moment[over] - found.log_moment[under])[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        divisor = 1.0 + found.excess[under]
        size = np.abs(divisor)
        divisor = np.where(size < 1e-290, 1e-290, divisor)
        value = np.expm1(gap)
        value = value + np.exp(gap) * (found.excess[over] - found.excess[under]) / divisor
        both = found.error[over] + found.error[under] + 1e-15 * np.abs(value)
        slack = (found.slack[over] + found.slack[under])[:, None] * np.exp(gap)
        error = slack + both * (np.exp(gap) + np.abs(value)) / np.maximum(size, 1e-290)
    return value, error


def _series(r: np.ndarray, r_error: FloatArray, powers: FloatArray, counts: FloatArray) -> Sample:
    """Return log Π(1 + p_t·r), p_t ≤ 1, by its series, at every frequency relative to the first.

    The terms left out are at most Σ p_t^7·|r|^7/(7·(1 − |r|)), and Σ p_t^7 ≤ Σ p_t^6. An error of
    r counts Σ p_t/(1 − |r|) times. Where a bucket's series does not converge it is left out, and
    the error bound only uses that each factor is at most 1 + |r| in size.
    """
    log_total = np.zeros(r.shape[1], dtype=complex)
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(r)
        most = np.where(np.isfinite(size + r_error), size + r_error, np.inf)
        diverges = ~(most < 0.9)
        left_out = counts @ np.where(diverges, np.maximum(np.log1p(most), 1.0), 0.0)
        r, size, r_error = (np.where(diverges, 0.0, x) for x in (r, size, r_error))
    power = np.ones_like(r)
    for m in range(_TERMS):
        power = power * r
        log_total += (-1.0) ** m / (m + 1.0) * (powers[m] @ power)
    rest = powers[_TERMS - 1] @ (size ** (_TERMS + 1) / (1.0 - size)) / (_TERMS + 1.0)
    error = rest + powers[0] @ (r_error / (1.0 - size - r_error)) + left_out
    start = float(log_total[0].real)
    return Sample(start + float(error[0]), log_total - start, error + error[0])


def make_buckets(mus: FloatArray, width: float, size: int) -> Buckets:
    """Return buckets of about that relative width that hold for the loss of ``size`` records."""
    above, below, each = mus, mus, np.ones(1)
    if mus.size > SORTABLE:
        above, below, each = _histogram(mus)
    edges = _edges(above, below, each, width)
    index = np.clip(np.searchsorted(edges, below, side="right") - 1, 1, edges.size - 2)
    # Rounded outwards: p up, λ down, by far more than the cancellation in the differences.
    lower, here, upper, margin = edges[index - 1], edges[index], edges[index + 1], 1e-9
    reach = math.hypot(size, size - 1)
    p = _share(reach * above, reach * here, reach * upper, otherwise=1.0) + margin
    lam = _share(reach * below, reach * here, reach * lower, otherwise=0.0) - margin
    with np.errstate(over="ignore"):
        denser = here / lower * np.exp(size**2 * (here - lower) * (here + lower) / 8.0) - 1.0
    number = edges.size
    return Buckets(
        edges,
        np.bincount(index, np.broadcast_to(each, index.shape), number).astype(np.float64),
        _powers(index, np.clip(p, 0.0, 1.0), each, number),
        _powers(index, np.clip(lam, 0.0, np.minimum(1.0 / denser, 1.0)), each, number),
    )


def _share(mu: FloatArray, here: FloatArray, there: FloatArray, *, otherwise: float) -> FloatArray:
    """Return |D(μ) − D(here)|/|D(there) − D(here)|, or what is safe where D is 1 to all digits."""
    whole = np.abs(distance_between(there, here))
    exact = whole > 1e-290
    return np.where(
        exact, np.abs(distance_between(mu, here)) / np.where(exact, whole, 1.0), otherwise
    )


def _edges(above: FloatArray, below: FloatArray, each: FloatArray, width: float) -> FloatArray:
    """Return the edges of buckets, in increasing μ, with one more below the lowest step.

    A bucket errs by the square of its width, in proportion to what its steps cost; so the buckets
    of steps with vast noise may be wide. Going down from the strongest step, the width is that for
    which all weaker steps together would err like the strong ones. Where the steps are bins, every
    edge between them is an end of bins.
    """
    low, high = float(below.min()), float(above.max()) * (1.0 + 1e-9)
    grid = np.geomspace(low, high, 513)
    where = np.clip(np.searchsorted(grid, above) - 1, 0, 511)
    cost = np.expm1(np.minimum(above**2, 50.0)) * each
    weaker = np.cumsum(np.bincount(where, weights=cost, minlength=512))
    widths = np.minimum(width / np.sqrt(weaker / weaker[-1]), 0.5)
    edges = [high]
    while edges[-1] > low:
        at = min(max(int(np.searchsorted(grid, edges[-1])) - 1, 0), 511)
        step = min(float(widths[at]), 1.0 / (1.0 + edges[-1] ** 2))
        lower = edges[-1] * math.exp(-step)
        if each.size > 1 and lower > low:
            bin_ = np.searchsorted(below, lower, side="right") - 1
            lower = float(below[bin_]) if above[bin_] > lower else lower
        edges.append(lower)
    edges.append(edges[-1] * math.exp(-math.log(edges[-2] / edges[-1])))
    return np.array(edges[::-1])


def _histogram(mus: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return fine bins of the steps: the upper end of each, its lower end, and its count.

    Which bin a step falls into is decided to about 1e-13 relative, far below what a transform's own
    error allows for.
    """
    low, high = float(mus.min()), float(mus.max())
    scale = math.log(high / low) / _BINS
    bins = np.clip(np.log(mus / low) / scale, 0, _BINS - 1).astype(np.intp)
    each = np.bincount(bins, minlength=_BINS).astype(np.float64)
    used = np.flatnonzero(each)
    return low * np.exp(scale * (used + 1.0)), low * np.exp(scale * used), each[used]


def _powers(index: np.ndarray, values: FloatArray, each: FloatArray, size: int) -> FloatArray:
    out = np.empty((_TERMS, size))
    power = np.broadcast_to(each, index.shape)
    for m in range(_TERMS):
        power = power * values
        out[m] = np.bincount(index, weights=power, minlength=size)
    return out
