"""Many unequal steps as few: groups of equal noise, which are exact, or buckets."""

import math
from dataclasses import dataclass

import numpy as np

from dither.accounting.buckets import SORTABLE, Buckets, Sample, log1p_bounded, make_buckets
from dither.accounting.ratio import Kind
from dither.accounting.transform import is_far, log_moments, node_count, transforms
from dither.types import FloatArray

_EXACT_GROUPS = 256
_STRONG = 64


@dataclass(frozen=True)
class Steps:
    """The steps of a run, reduced.

    Attributes:
        mus: μ of groups of equal steps, which are exact.
        counts: how many steps each group has.
        buckets: the other steps, or None.
    """

    mus: FloatArray
    counts: FloatArray
    buckets: Buckets | None = None

    @property
    def number(self) -> float:
        """T."""
        return float(self.counts.sum()) + (self.buckets.number if self.buckets else 0.0)

    @property
    def groups(self) -> int:
        """How many transforms the steps need."""
        buckets = np.count_nonzero(self.buckets.counts) if self.buckets else 0
        return int(self.mus.size + buckets)

    @property
    def strongest(self) -> float:
        """The largest μ."""
        tops = [float(self.mus.max())] if self.mus.size else []
        return max(tops + ([float(self.buckets.edges[-1])] if self.buckets else []))

    def log_moment(self, q: float, theta: float, kind: Kind) -> float:
        """Return an upper bound on log M(θ); exact without buckets."""
        total = float(self.counts @ log_moments(self.mus, q, theta, kind))
        return total + (self.buckets.log_moment(q, theta, kind) if self.buckets else 0.0)

    def sample(
        self, q: float, theta: float, spacing: float, number: int, kind: Kind
    ) -> tuple[Sample, Sample]:
        """Return transforms of a run that dominates this one, and of one that it dominates."""
        found = transforms(self.mus, q, theta, spacing, number, kind)
        log_ratio, error = log1p_bounded(found.excess, found.error)
        error += found.slack[:, None]
        log_m = float(self.counts @ found.log_moment)
        exact = Sample(log_m, self.counts @ log_ratio, self.counts @ error)
        if self.buckets is None:
            return exact, exact
        up, down = self.buckets.sample(q, theta, spacing, number, kind)
        return exact + up, exact + down

    def largest(self, most: int) -> list[tuple[FloatArray, float]]:
        """Return what decides most: μ and count of groups, edges j−1 … j+1 and count of buckets."""
        found = [
            (k * mu * mu, np.array([mu]), k) for mu, k in zip(self.mus, self.counts, strict=True)
        ]
        if self.buckets is not None:
            edges = self.buckets.edges
            for j in np.flatnonzero(self.buckets.counts):
                k = self.buckets.counts[j]
                found.append((k * edges[j] ** 2, edges[j - 1 : j + 2], k))
        found.sort(key=lambda entry: -entry[0])
        return [(mus, float(k)) for _, mus, k in found[:most]]


@dataclass(frozen=True)
class SampledSteps:
    """Reduced steps in parts, each with a sample rate of its own: one run, or several.

    Attributes:
        parts: steps and q.
    """

    parts: tuple[tuple[Steps, float], ...]

    @property
    def number(self) -> float:
        """T."""
        return sum(steps.number for steps, _ in self.parts)

    @property
    def groups(self) -> int:
        """How many transforms the steps need."""
        return sum(steps.groups for steps, _ in self.parts)

    def is_far(self, theta: float, kind: Kind) -> bool:
        """Return whether a part's moment at θ is only bounded."""
        return any(is_far(steps.strongest, theta, kind) for steps, _ in self.parts)

    def nodes(self, theta: float, omega: float, kind: Kind) -> int:
        """Return how many nodes the transforms need."""
        return max(node_count(steps.strongest, q, theta, omega, kind) for steps, q in self.parts)

    def log_moment(self, theta: float, kind: Kind) -> float:
        """Return an upper bound on log M(θ)."""
        return math.fsum(steps.log_moment(q, theta, kind) for steps, q in self.parts)

    def most_by_adding(self) -> float:
        """Return the largest loss of adding a record under Poisson sampling, −log(1−q) per step."""
        return math.fsum(
            -steps.number * math.log1p(-q) if q < 1.0 else math.inf for steps, q in self.parts
        )

    def sample(
        self, theta: float, spacing: float, number: int, kind: Kind
    ) -> tuple[Sample, Sample]:
        """Return transforms of a run that dominates this one, and of one that it dominates."""
        (up, down), *others = (
            steps.sample(q, theta, spacing, number, kind) for steps, q in self.parts
        )
        for more_up, more_down in others:
            up, down = up + more_up, down + more_down
        return up, down

    def largest(self, most: int) -> list[tuple[FloatArray, float, float]]:
        """Return what decides most: `Steps.largest` of all parts, with q."""
        found = [
            (count * (q * float(mus[-1])) ** 2, mus, count, q)
            for steps, q in self.parts
            for mus, count in steps.largest(most)
        ]
        found.sort(key=lambda entry: -entry[0])
        return [(mus, count, q) for _, mus, count, q in found[:most]]


def reduce_steps(mus: FloatArray, width: float, size: int = 1) -> Steps:
    """Return the steps in exact groups if few differ, else all but the strongest in buckets.

    ``size`` is k: the buckets hold for the loss of k records.
    """
    low, high = float(mus.min()), float(mus.max())
    if low == high:
        return Steps(np.array([low]), np.array([float(mus.size)]))
    cost = np.expm1(np.minimum(mus * mus, 50.0))
    # A step that matters by itself stays exact; there are at most 500 such, and 64 are kept.
    strong = cost > 0.002 * float(cost.sum())
    if np.count_nonzero(strong) > _STRONG:
        strong &= cost > np.partition(cost, -_STRONG - 1)[-_STRONG - 1]
    if mus.size <= SORTABLE:
        distinct, number = np.unique(mus, return_counts=True)
        if distinct.size <= _EXACT_GROUPS:
            return Steps(distinct, number.astype(np.float64))
    rest = mus[~strong]
    if rest.size and rest.min() == rest.max():
        strong, rest = np.ones(mus.size, dtype=bool), rest[:0]
    distinct, number = np.unique(mus[strong], return_counts=True)
    buckets = make_buckets(rest, width, size) if rest.size else None
    return Steps(distinct, number.astype(np.float64), buckets)
