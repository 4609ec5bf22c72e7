"""Which records take part in a step.

The one method of every sampler, ``draw(length, stream, step)``, returns the indices of a step's
records, in ascending order. `sampler_for` returns the one that a plan was accounted for: the two
cannot disagree.
"""

import math
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dither import validate
from dither.accounting.cyclic import cycle_rate
from dither.planning import Plan, ReactivePlan
from dither.randomness import Source, Stream

__all__ = ["Cyclic", "Fixed", "FullBatch", "Poisson", "Sampler", "sampler_for"]

Indices = NDArray[np.int64]


@runtime_checkable
class Sampler(Protocol):
    """Draws the records of one step.

    Example:
        >>> isinstance(Poisson(0.1), Sampler)
        True
    """

    def draw(self, length: int, stream: Stream, step: int = 0) -> Indices:
        """Return ascending indices from 0 … length−1, none twice."""
        ...


@final
@dataclass(frozen=True)
class Poisson:
    """Poisson sampling: every record independently with probability q.

    A record is decided by a random byte, and where the byte alone does not decide, by one more
    64-bit word: it is included with probability q rounded down to a multiple of 2^(−72), never
    above q.

    Args:
        sample_rate: q, in (0, 1].

    Example:
        >>> from dither.randomness import Source
        >>> Poisson(0.004).draw(1000, Source(seed=1).stream("sampling", 0))
        array([426, 780, 788])
    """

    sample_rate: float

    def __post_init__(self) -> None:
        """Check the rate."""
        object.__setattr__(self, "sample_rate", validate.rate(sample_rate=self.sample_rate))

    def draw(self, length: int, stream: Stream, step: int = 0) -> Indices:
        """Return the records that are included."""
        if self.sample_rate == 1.0:
            return np.arange(length)
        threshold, rest = divmod(self.sample_rate * 2.0**8, 1.0)
        drawn = stream.bytes(length)
        included = drawn < threshold
        undecided = np.flatnonzero(drawn == threshold)
        # q·2^8 is exact in floating point, and so is its fraction times 2^64 but for its last bits.
        included[undecided] = stream.words(undecided.size) < np.uint64(math.floor(rest * 2.0**64))
        return np.flatnonzero(included)


@final
@dataclass(frozen=True)
class Fixed:
    """Batches of fixed size: m distinct records, every set of m as likely as any other.

    Args:
        batch_size: m.

    Example:
        >>> from dither.randomness import Source
        >>> Fixed(4).draw(1000, Source(seed=1).stream("sampling", 0))
        array([295, 344, 416, 643])
    """

    batch_size: int

    def __post_init__(self) -> None:
        """Check the number."""
        object.__setattr__(self, "batch_size", validate.count(batch_size=self.batch_size))

    def draw(self, length: int, stream: Stream, step: int = 0) -> Indices:
        """Return the first m distinct numbers of a uniform sequence, in order."""
        m = self.batch_size
        if m > length:
            raise validate.InvalidValueError(
                f"batch_size must be at most the number of records, {length}, got {m}"
            )
        if 2 * m > length:  # the records that are left out are fewer, and as uniform
            left_out = _draw_distinct(length, length - m, stream)
            return np.setdiff1d(np.arange(length), left_out, assume_unique=True)
        return np.sort(_draw_distinct(length, m, stream))


def _draw_distinct(length: int, count: int, stream: Stream) -> Indices:
    found = np.empty(0, np.int64)
    while found.size < count:
        drawn = np.concatenate([found, stream.below(length, count - found.size)])
        _, first = np.unique(drawn, return_index=True)
        found = drawn[np.sort(first)]
    return found


@final
class Cyclic:
    """Cyclic Poisson sampling: steps take turns with random subsets of the records.

    Every record is in one of b subsets, uniformly and independently. Step t draws every record of
    subset t mod b independently with probability b·q.

    Args:
        sample_rate: q, at most 1/b.
        bands: b.
        length: how many records there are.
        stream: of the assignments, which are as secret as the noise.

    Example:
        >>> from dither.randomness import Source
        >>> source = Source(seed=2)
        >>> sampler = Cyclic(0.5, 2, 8, source.stream("subsets", 0))
        >>> [sampler.draw(8, source.stream("sampling", t), t).tolist() for t in range(3)]
        [[0, 2, 6, 7], [1, 3, 4, 5], [0, 2, 6, 7]]
    """

    def __init__(self, sample_rate: float, bands: int, length: int, stream: Stream) -> None:
        self._poisson = Poisson(cycle_rate(sample_rate, bands))
        subsets = stream.below(bands, length)
        self._subsets = [np.flatnonzero(subsets == j) for j in range(bands)]

    def draw(self, length: int, stream: Stream, step: int = 0) -> Indices:
        """Return the records of the step's subset that are included."""
        subset = self._subsets[step % len(self._subsets)]
        return subset[self._poisson.draw(subset.size, stream)]


@final
@dataclass(frozen=True)
class FullBatch:
    """Every record in every step: gradient descent without sampling.

    Example:
        >>> from dither.randomness import Source
        >>> FullBatch().draw(3, Source().stream("sampling", 0))
        array([0, 1, 2])
    """

    def draw(self, length: int, stream: Stream, step: int = 0) -> Indices:
        """Return all indices."""
        return np.arange(length)


def sampler_for(
    plan: Plan | ReactivePlan,
    *,
    length: int,
    own_length: int | None = None,
    subsets: Stream | None = None,
) -> Sampler:
    """Return the sampler whose batches the plan's accountant has counted.

    Args:
        plan: the plan.
        length: how many records there are. It may be any number, since q = m/dataset_size is
            public; fixed-size and full batches are accounted for exactly ``plan.dataset_size``.
        own_length: how many of them this process has; None is all.
        subsets: where the assignments of cyclic sampling come from; None is the operating system.

    Example:
        >>> plan = Plan.unsafe_without_noise(steps=1, dataset_size=100, batch_size=10)
        >>> sampler_for(plan, length=97)
        Poisson(sample_rate=0.1)
    """
    if validate.count(length=length) != plan.dataset_size and plan.sampling == "fixed":
        raise validate.InvalidValueError(
            f"the data must have the plan's dataset_size, {plan.dataset_size} records, under "
            f"{plan.sampling} sampling, got {length}"
        )
    if plan.sampling == "cyclic":
        stream = Source().stream("subsets", 0) if subsets is None else subsets
        own = length if own_length is None else own_length
        return Cyclic(plan.sample_rate, plan.bands, own, stream)
    if plan.sample_rate == 1.0:
        return FullBatch()
    return Poisson(plan.sample_rate) if plan.sampling == "poisson" else Fixed(plan.batch_size)
