"""Correlated noise with cyclic sampling: the whole mechanism by brute force, against the claim.

A run with clip norm 1 releases Y = C·G + N(0, I), C = B·diag(1/z). A record that contributes 1
whenever it takes part shifts Y by C·x, x being 1 in the steps in which it takes part. So the law of
Y is a Gaussian mixture over all subsets of the record and all of its draws, and is written down
here component by component. δ(ε), in both directions, is computed by quadrature for two and three
steps, and for more by the mean of (1 − e^(ε − loss))₊ over samples, within the empirical Bernstein
bound of Maurer and Pontil (2009, theorem 4). No formula of dither is used.

The rate of a case is the probability b·q with which a record of a subset is drawn. Where a record's
subset is known the claim is the truth; where it is drawn in secret the truth is below the claim.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr

from dither import accounting
from dither.types import FloatArray

SAMPLES = 200_000
FAILURE = 1e-6
"""Probability with which an interval misses the truth: below a thousandth for all of this file."""
TOLERANCE = 0.005
"""How far the accountant's upper bound on δ may be above δ, relatively."""


# The mechanism.


def correlation(theta: Sequence[float], steps: int, starts: Iterable[int] = ()) -> FloatArray:
    """B: unit columns of the coefficients, cut at the last row and where the ring starts empty."""
    B = np.zeros((steps, steps))
    ends = [*sorted(starts), steps]
    for t in range(steps):
        end = min(next(end for end in ends if end > t), t + len(theta))
        B[t:end, t] = theta[: end - t]
    normed: FloatArray = B / np.linalg.norm(B, axis=0)
    return normed


class Assignment(NamedTuple):
    """With this probability the record is one that may be drawn in these steps."""

    probability: float
    steps: tuple[int, ...]

    @property
    def known(self) -> list["Assignment"]:
        return [Assignment(1.0, self.steps)]


def cyclic(steps: int, bands: int, start: int = 0) -> list[Assignment]:
    """Each of the subsets, with equal probability."""
    return [
        Assignment(1 / bands, tuple(range(start + j, start + steps, bands))) for j in range(bands)
    ]


def independent(*parts: list[Assignment]) -> list[Assignment]:
    """A new assignment in every part of a run."""
    return [
        Assignment(
            math.prod(part.probability for part in chosen),
            tuple(itertools.chain.from_iterable(part.steps for part in chosen)),
        )
        for chosen in itertools.product(*parts)
    ]


class Draws(NamedTuple):
    """In which steps a record takes part (patterns × steps), and with which probabilities."""

    weights: FloatArray
    patterns: FloatArray


def draws(steps: int, assignments: list[Assignment], rate: float) -> Draws:
    """Every assignment and every pattern of draws, each with probability ``rate``."""
    found: dict[tuple[int, ...], float] = {}
    for probability, at in assignments:
        for drawn in itertools.product((0, 1), repeat=len(at)):
            weight = probability * math.prod(rate if each else 1 - rate for each in drawn)
            taken = tuple(itertools.compress(at, drawn))
            if weight > 0.0:
                found[taken] = found.get(taken, 0.0) + weight
    assert math.isclose(math.fsum(found.values()), 1.0)
    patterns = np.zeros((len(found), steps))
    for row, taken in zip(patterns, found, strict=True):
        row[list(taken)] = 1.0
    return Draws(np.array([*found.values()]), patterns)


class Mixture(NamedTuple):
    """A law of Y: Gaussians around ``means`` (components × steps) with covariance I."""

    weights: FloatArray
    means: FloatArray

    def log_density(self, y: FloatArray) -> FloatArray:
        """The logarithm of the density over that of N(0, I)."""
        found: FloatArray = np.log(
            np.exp(y @ self.means.T - (self.means**2).sum(axis=1) / 2) @ self.weights
        )
        return found


def mixture(C: FloatArray, assignments: list[Assignment], rate: float) -> Mixture:
    weights, patterns = draws(len(C), assignments, rate)
    return Mixture(weights, patterns @ C.T)


# The truth.


class Interval(NamedTuple):
    low: float
    high: float


def mean_of(values: FloatArray) -> Interval:
    """The mean of a variable in [0, 1]: either side misses it with probability FAILURE/2."""
    log = math.log(4 / FAILURE)
    reach = math.sqrt(2 * values.var(ddof=1) * log / values.size)
    reach += 7 * log / (3 * (values.size - 1))
    mean = float(values.mean())
    return Interval(mean - reach, mean + reach)


class Losses(NamedTuple):
    """Privacy losses of samples with the record, and without it."""

    removed: FloatArray
    added: FloatArray

    def delta(self, epsilon: float) -> Interval:
        """δ(ε), the worse of both directions."""
        ways = [mean_of(-np.expm1(np.minimum(epsilon - loss, 0.0))) for loss in self]
        return Interval(max(way.low for way in ways), max(way.high for way in ways))


@functools.cache
def noise(steps: int) -> FloatArray:
    return np.random.default_rng([steps, 26]).standard_normal((SAMPLES, steps))


def sampled(one: Mixture, other: Mixture | None = None) -> Losses:
    """Losses between two laws; the other one is N(0, I) if it is not given."""
    other = other or Mixture(np.ones(1), np.zeros((1, one.means.shape[1])))
    random = np.random.default_rng(62)

    def losses(of: Mixture, against: Mixture) -> FloatArray:
        y = of.means[random.choice(of.weights.size, SAMPLES, p=of.weights)]
        y += noise(y.shape[1])
        return of.log_density(y) - against.log_density(y)

    return Losses(losses(one, other), losses(other, one))


def sampled_delta(one: Mixture, epsilon: float) -> Interval:
    return sampled(one).delta(epsilon)


def exact_delta(record: Mixture, epsilon: float, width: float = 0.2) -> float:
    """δ(ε) against N(0, I) by quadrature: the worse of both directions.

    No mean is negative, so that the loss rises in the last coordinate and the innermost integral is
    one over a half-line, which has a closed form. What is left is smooth, where the trapezoidal
    rule converges faster than any power of its width.
    """
    weights, means = record
    assert means.min() >= 0.0
    axis = np.arange(-8.0, 8.0 + means.max(), width)
    others = means.shape[1] - 1
    y = np.stack(np.meshgrid(*[axis] * others, indexing="ij"), axis=-1).reshape(-1, others)
    density = np.exp(-(y**2).sum(axis=1) / 2) * (width / math.sqrt(2 * math.pi)) ** others
    # e^loss is Σ exp(factors + slopes·x) at x, and masses·Φ(slopes − c) what it has above c.
    slopes = means[:, -1]
    factors = np.log(weights) + y @ means[:, :-1].T - (means**2).sum(axis=1) / 2
    masses = np.exp(factors + slopes**2 / 2)
    cut = crossing(factors, slopes, epsilon)
    removed = (masses * ndtr(slopes - cut[:, None])).sum(axis=1) - math.exp(epsilon) * ndtr(-cut)
    cut = crossing(factors, slopes, -epsilon)
    added = ndtr(cut) - math.exp(epsilon) * (masses * ndtr(cut[:, None] - slopes)).sum(axis=1)
    return max(float(density @ removed), float(density @ added))


def crossing(factors: FloatArray, slopes: FloatArray, level: float) -> FloatArray:
    """Where log Σ exp(factors + slopes·x) rises above a level, by bisection between ±40."""
    low, high = np.full(len(factors), -40.0), np.full(len(factors), 40.0)
    for _ in range(50):
        middle = (low + high) / 2
        below = np.logaddexp.reduce(factors + slopes * middle[:, None], axis=1) < level
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low


# The claim.


def claim(z: Sequence[float], rate: float, bands: int, epsilon: float) -> float:
    """δ(ε) of a cyclic run by the accountant."""
    return accounting.delta(
        z, sample_rate=rate / bands, epsilon=epsilon, sampling="cyclic", bands=bands
    ).delta


class Case(NamedTuple):
    theta: tuple[float, ...]
    z: tuple[float, ...]
    rate: float

    @property
    def bands(self) -> int:
        return len(self.theta)

    @property
    def matrix(self) -> FloatArray:
        found: FloatArray = correlation(self.theta, len(self.z)) / np.array(self.z)
        return found

    @property
    def secret(self) -> Mixture:
        """The record's subset is drawn in secret."""
        return mixture(self.matrix, cyclic(len(self.z), self.bands), self.rate)

    def subsets(self) -> Iterator[Mixture]:
        """The record's subset is known: the laws for each of them."""
        for subset in cyclic(len(self.z), self.bands):
            yield mixture(self.matrix, subset.known, self.rate)

    def claim(self, epsilon: float) -> float:
        return claim(self.z, self.rate, self.bands, epsilon)


EPSILONS = (0.5, 2.0)
SMALL = [
    Case((1.0, 0.6), (1.0, 1.0), 1.0),
    Case((1.0, 0.6), (1.0, 1.0), 0.5),
    Case((1.0, 0.9), (0.7, 1.5), 0.4),
    Case((1.0, 0.6), (1.0, 1.0, 1.3), 0.7),
    Case((1.0, 0.5, 0.375), (1.2, 0.9, 1.0), 0.5),
]
"""Two and three steps, all with the last columns cut."""

EQUAL_IN_CYCLES = [
    Case((1.0, 0.6), (0.8, 0.8, 1.2, 1.2), 0.6),
    Case((1.0, -0.7), (1.0, 1.0, 0.9, 0.9), 1.0),
    Case((1.0, 0.6), (0.9,) * 6, 0.5),
    Case((1.0, 0.5, 0.375), (1.0, 1.0, 1.0, 0.8, 0.8, 0.8), 1.0),
    Case((1.0, 0.8, -0.3), (0.8,) * 6, 0.3),
]
"""Whole cycles of equal z, where every subset costs what is claimed."""

UNEQUAL = [
    Case((1.0, 0.6), (0.8, 1.0, 0.7, 1.2, 0.9), 1.0),
    Case((1.0, 0.9), (0.6, 0.9, 0.8, 0.6, 2.0), 0.5),
    Case((1.0, 0.5, 0.375), (0.8, 0.8, 0.8, 0.8), 0.6),
    Case((1.0, 0.8, 0.6), (1.0, 0.6, 0.7, 0.9, 0.9), 1.0),
    Case((1.0, 0.8, 0.6), (0.5, 1.5, 0.9, 0.7, 1.1, 0.6), 0.5),
]
"""Unequal z in a cycle, or a last cycle that is not complete."""


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("case", SMALL)
def test_two_and_three_steps_by_quadrature(case: Case, epsilon: float) -> None:
    claimed = case.claim(epsilon)
    assert exact_delta(case.secret, epsilon) < claimed
    for law in case.subsets():
        assert exact_delta(law, epsilon) <= claimed


@pytest.mark.parametrize("case", [*EQUAL_IN_CYCLES, *UNEQUAL])
def test_up_to_six_steps_by_sampling(case: Case) -> None:
    secret, known = sampled(case.secret), [sampled(law) for law in case.subsets()]
    for epsilon in EPSILONS:
        claimed = case.claim(epsilon)
        assert secret.delta(epsilon).high < claimed
        assert all(each.delta(epsilon).low <= claimed for each in known)


@pytest.mark.parametrize("case", EQUAL_IN_CYCLES)
def test_the_claim_is_the_truth_where_the_subset_is_known(case: Case) -> None:
    """To the width of an interval, which is a tenth or less."""
    claimed = case.claim(1.0)
    for law in case.subsets():
        low, high = sampled_delta(law, 1.0)
        assert low <= claimed <= high * (1 + TOLERANCE)
        assert high < 1.1 * low


@pytest.mark.parametrize(("case", "subset"), [(SMALL[0], 1), (SMALL[1], 0), (SMALL[3], 0)])
def test_the_claim_is_the_truth_by_quadrature(case: Case, subset: int) -> None:
    truth = exact_delta([*case.subsets()][subset], 1.0)
    assert truth <= case.claim(1.0) <= truth * (1 + TOLERANCE)


def test_the_price_of_a_cycle_is_its_smallest_z() -> None:
    """Priced by its largest or its mean z it is less than the truth."""
    case = Case((1.0, 0.6), (0.4, 0.8, 0.4, 0.8, 0.4, 0.8), 0.5)
    truth = sampled_delta(case.secret, 4.0)
    assert truth.high < case.claim(4.0)
    for priced in (0.6, 0.8):
        assert truth.low > claim([priced] * 6, 0.5, 2, 4.0)


def test_both_ways_to_compute_the_truth_agree() -> None:
    for case in SMALL:
        exact = exact_delta(case.secret, 0.5)
        low, high = sampled_delta(case.secret, 0.5)
        assert low <= exact <= high
        assert high < 1.1 * low
        finer = exact_delta(case.secret, 0.5, width=0.15)
        assert finer == pytest.approx(exact, rel=1e-9)


def test_the_intervals_reject_a_mean_that_is_three_percent_off() -> None:
    values = np.random.default_rng(0).random(SAMPLES) ** 2  # 1/3
    low, high = mean_of(values)
    assert low <= 1 / 3 <= high
    assert high < 1.03 / 3
    assert low > 0.97 / 3


# Rings that start empty, and resumed runs.


def test_the_ring_may_start_empty_at_fixed_steps() -> None:
    """The assignments stay. Steps with B = I are such starts one after the other."""
    z = np.array([0.7, 0.7, 0.9, 0.9, 0.8, 0.8])
    for starts in ([3], [1, 2, 3], [4, 5]):
        found = sampled(mixture(correlation([1.0, 0.8], 6, starts) / z, cyclic(6, 2), 0.6))
        for epsilon in EPSILONS:
            assert found.delta(epsilon).high < claim([*z], 0.6, 2, epsilon)


def test_a_column_that_is_cut_and_not_scaled_costs_less() -> None:
    """A run that ends before its plan, and a ring that starts empty without being planned to."""
    case = Case((1.0, 0.8), (0.8,) * 6, 1.0)
    shorter = case.matrix[:5, :5]
    assert np.linalg.norm(shorter[:, 4]) < 1 / 0.8
    for subset in cyclic(5, 2):
        law = mixture(shorter, subset.known, 1.0)
        assert sampled_delta(law, 1.0).low <= case.claim(1.0)


RESUMED = independent(cyclic(3, 2), cyclic(3, 2, start=3))
"""Three steps and then three more, with new assignments."""


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 20.0])
def test_a_resumed_run_costs_its_cycles_and_those_of_the_rest(epsilon: float) -> None:
    """Three steps are two cycles, so that four are charged."""
    law = mixture(correlation([1.0, 0.6], 6, [3]) / 0.4, RESUMED, 1.0)
    assert sampled_delta(law, epsilon).high < claim([0.4] * 8, 1.0, 2, epsilon)


def test_a_resumed_run_costs_more_than_one_that_was_not_interrupted() -> None:
    """Charged as six steps in three cycles it is charged too little."""
    law = mixture(correlation([1.0, 0.6], 6, [3]) / 0.4, RESUMED, 1.0)
    assert sampled_delta(law, 20.0).low > 1.3 * claim([0.4] * 6, 1.0, 2, 20.0)


# Directions that follow earlier releases.

Plane = NDArray[np.complex128]


class Directions(NamedTuple):
    """Unit vectors of both records, one array of samples per step."""

    record: list[Plane]
    second: list[Plane]


def adaptive(C: FloatArray, record: Draws, second: Draws) -> Losses:
    """Losses where gradients are unit vectors in the plane that follow earlier releases.

    The record's points to the sum of all releases so far. A second record is in both datasets; its
    direction turns with the first one's. Densities are sums over all patterns of both records.
    """
    nobody = Draws(np.ones(1), np.zeros((1, len(C))))
    random = np.random.default_rng(62)

    def losses(of: Draws, against: Draws) -> FloatArray:
        taken = [
            each.patterns[random.choice(len(each.weights), SAMPLES, p=each.weights)]
            for each in (of, second)
        ]
        rows: list[Plane] = []
        directions = Directions([], [])
        total = np.zeros(SAMPLES, np.complex128)
        for t in range(len(C)):
            angle = np.angle(total)
            directions.record.append(np.exp(1j * angle))
            directions.second.append(np.exp(1j * (2 * angle + t)))
            row: Plane = noise(2 * len(C))[:, 2 * t : 2 * t + 2] @ np.array([1.0, 1.0j])
            for part, vectors in zip(taken, directions, strict=True):
                for s in range(t + 1):
                    row += C[t, s] * part[:, s] * vectors[s]
            rows.append(row)
            total += row
        return density(of, rows, directions) - density(against, rows, directions)

    def density(of: Draws, rows: list[Plane], directions: Directions) -> FloatArray:
        """The logarithm of the density, up to a constant."""
        total = np.zeros(SAMPLES)
        pairs = itertools.product(zip(*of, strict=True), zip(*second, strict=True))
        for (weight, first), (other, then) in pairs:
            exponent = np.zeros(SAMPLES)
            for t, row in enumerate(rows):
                rest = row.copy()
                for part, vectors in zip((first, then), directions, strict=True):
                    for s in np.flatnonzero(C[t] * part):
                        rest -= C[t, s] * vectors[s]
                exponent -= (rest.real**2 + rest.imag**2) / 2
            total += weight * other * np.exp(exponent)
        found: FloatArray = np.log(total)
        return found

    return Losses(losses(record, nobody), losses(nobody, record))


SECRET = cyclic(4, 2)
KNOWN = SECRET[0].known
ADAPTIVE = np.array([0.7, 0.7, 0.9, 0.9])


@pytest.mark.parametrize("rate", [1.0, 0.6])
def test_directions_may_follow_earlier_releases(rate: float) -> None:
    C = correlation([1.0, 0.8], 4) / ADAPTIVE
    second = draws(4, SECRET, 1.0)
    secret = adaptive(C, draws(4, SECRET, rate), second)
    known = adaptive(C, draws(4, KNOWN, rate), second)
    for epsilon in EPSILONS:
        claimed = claim([*ADAPTIVE], rate, 2, epsilon)
        assert secret.delta(epsilon).high < claimed
        assert known.delta(epsilon).high < claimed


def test_the_claim_is_the_truth_where_both_subsets_are_known() -> None:
    """At rate 1: whatever the directions are, a step shifts Y by a vector of the same length."""
    both = draws(4, KNOWN, 1.0)
    low, high = adaptive(correlation([1.0, 0.8], 4) / ADAPTIVE, both, both).delta(1.0)
    assert low <= claim([*ADAPTIVE], 1.0, 2, 1.0) <= high
    assert high < 1.05 * low


# Mistakes: each has a true δ above what is claimed.

LOW = 0.4
"""Small noise, with which a record's steps are seen in the releases even if they are secret."""


def test_one_band_too_many_is_caught() -> None:
    """Three bands and two subsets: a record's columns overlap in one row."""
    for theta, z, rate in (((1.0, 0.6, 0.6), 0.7, 1.0), ((1.0, 0.7, 0.5), 0.8, 0.7)):
        found = sampled(mixture(correlation(theta, 6) / z, cyclic(6, 2), rate))
        for epsilon in (1.0, 4.0):
            assert found.delta(epsilon).low > 1.1 * claim([z] * 6, rate, 2, epsilon)


def test_one_band_too_many_is_caught_where_directions_follow_releases() -> None:
    secret = draws(4, SECRET, 1.0)
    found = adaptive(correlation([1.0, 0.8, 0.8], 4) / 0.7, secret, secret)
    assert found.delta(4.0).low > 1.3 * claim([0.7] * 4, 1.0, 2, 4.0)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_assignments_that_change_within_a_run_are_caught(rate: float) -> None:
    """A record may then take part in the last step of a cycle and in the first of the next."""
    cycles = [cyclic(2, 2, start) for start in (0, 2, 4)]
    found = sampled(mixture(correlation([1.0, 1.0], 6) / LOW, independent(*cycles), rate))
    assert found.delta(16.0).low > 1.3 * claim([LOW] * 6, rate, 2, 16.0)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_new_assignments_need_an_empty_ring(rate: float) -> None:
    """The same with the ring empty before every cycle is three runs of one cycle each."""
    cycles = [cyclic(2, 2, start) for start in (0, 2, 4)]
    law = mixture(correlation([1.0, 1.0], 6, [2, 4]) / LOW, independent(*cycles), rate)
    assert sampled_delta(law, 16.0).high < claim([LOW] * 6, rate, 2, 16.0)


@pytest.mark.parametrize("case", EQUAL_IN_CYCLES)
def test_half_of_the_noise_is_caught(case: Case) -> None:
    found = sampled(Mixture(case.secret.weights, 2 * case.secret.means))
    assert found.delta(2.0).low > 1.5 * case.claim(2.0)


def test_a_paused_ring_is_caught() -> None:
    """A parameter that is frozen in every other step, and whose ring only counts the others."""
    C = np.zeros((6, 6))
    C[::2, ::2] = correlation([1.0, 0.8], 3) / LOW
    found = sampled(mixture(C, cyclic(6, 2), 1.0))
    assert found.delta(16.0).low > 1.3 * claim([LOW] * 6, 1.0, 2, 16.0)


def test_a_ring_that_advances_while_a_parameter_is_frozen_is_covered() -> None:
    """Its rows are those of steps to which nobody contributes."""
    C = correlation([1.0, 0.8], 6) / LOW
    C[:, 1::2] = 0.0
    found = sampled(mixture(C, cyclic(6, 2), 1.0))
    assert found.delta(16.0).high < claim([LOW] * 6, 1.0, 2, 16.0)


def test_a_vector_of_the_ring_that_is_used_twice_is_caught() -> None:
    """u_(t−1) in place of u_(t−2), too: B has columns that are longer than 1."""
    theta = np.array([1.0, 0.8, 0.8])
    B = (np.eye(6) + (theta[1] + theta[2]) * np.eye(6, k=-1)) / np.linalg.norm(theta)
    found = sampled(mixture(B / LOW, cyclic(6, 3), 1.0))
    assert found.delta(8.0).low > 1.3 * claim([LOW] * 6, 1.0, 3, 8.0)


def test_subsets_by_index_are_caught() -> None:
    """Without the first record, the second one has its index and is in its subset."""
    C = correlation([1.0, 0.6], 4)
    first, second = (np.isin(np.arange(4) % 2, j).astype(float) for j in (0, 1))
    both = Mixture(np.ones(1), (C @ (second - first))[None])
    alone = Mixture(np.ones(1), (C @ first)[None])
    assert sampled(both, alone).delta(2.0).low > 2.0 * claim([1.0] * 4, 1.0, 2, 2.0)
