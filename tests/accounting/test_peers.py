"""The privacy loss accountant against Google's dp-accounting on random schedules."""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from dither import accounting
from dither.types import FloatArray

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
peers: Any = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")

TOLERANCE = 0.005
# What the discretisation of the peer may add to its ε, relative to ε or to 0.1.
PEER_ERROR = 1e-3


class Case(NamedTuple):
    noise: FloatArray
    counts: FloatArray
    sample_rate: float
    delta: float

    @property
    def schedule(self) -> FloatArray:
        return np.repeat(self.noise, self.counts.astype(np.intp))


def random_case(seed: int) -> Case:
    """2 to 30 different z in [0.5, 10], each up to 10 or up to 200 times."""
    random = np.random.default_rng([seed, 11])
    number = int(random.integers(2, 31)) if seed % 3 == 0 else int(random.integers(2, 9))
    most = 200 if seed % 4 == 1 else 10
    return Case(
        np.exp(random.uniform(math.log(0.5), math.log(10.0), number)),
        random.integers(1, most + 1, number).astype(np.float64),
        float(np.exp(random.uniform(math.log(0.001), math.log(0.3)))),
        float(10.0 ** random.uniform(-8, -3)),
    )


def composed(case: Case, interval: float, *, pessimistic: bool = True) -> Any:
    total = None
    for z, count in zip(case.noise, case.counts, strict=True):
        step = peers.from_gaussian_mechanism(
            float(z),
            sampling_prob=case.sample_rate,
            value_discretization_interval=interval,
            pessimistic_estimate=pessimistic,
            use_connect_dots=True,
        ).self_compose(int(count))
        total = step if total is None else total.compose(step)
    return total


def peer_epsilon(case: Case, interval: float, *, pessimistic: bool = True) -> float:
    whole = composed(case, interval, pessimistic=pessimistic)
    return float(whole.get_epsilon_for_delta(case.delta))


def fine_peer(case: Case, guess: float) -> tuple[float, float, float]:
    """The peer's ε from above, what its discretisation adds to that, and its interval.

    "Connect the dots" splits a loss between the ends of its cell of width h so that both laws keep
    their mass: that multiplies M(θ) by at most e^(θ·(θ+1)·h²/8) a step. So the error is of second
    order in h, a third of the difference to cells twice as wide; twice the third is returned. The
    cells are narrowed until it is below `PEER_ERROR`.
    """
    spread = np.expm1(case.noise**-2.0) @ case.counts * case.sample_rate**2
    theta = math.sqrt(-2.0 * math.log(case.delta) / spread)
    allowed = PEER_ERROR * max(guess, 0.1)
    interval = min(math.sqrt(8.0 * allowed / ((theta + 1.0) * case.schedule.size)), 0.02)
    before = peer_epsilon(case, 2.0 * interval)
    while True:
        here = peer_epsilon(case, interval)
        error = 2.0 / 3.0 * (before - here) + 1e-6 * max(here, 1e-3)
        if error <= PEER_ERROR * max(here, 0.1):
            return here, error, interval
        before, interval = here, 0.5 * interval


def check(case: Case, *, optimistic: bool) -> None:
    """lower ≤ peer from above, peer from below ≤ ε ≤ 1.005 of the peer from above."""
    ours = accounting.epsilon(
        case.schedule, sample_rate=case.sample_rate, delta=case.delta, tolerance=TOLERANCE
    )
    assert ours.lower is not None
    assert ours.is_upper_bound
    assert ours.epsilon < 1e-3 or ours.lower >= ours.epsilon * (1.0 - TOLERANCE)
    peer, error, interval = fine_peer(case, ours.epsilon)
    # The peer cuts off 1e-15 of every composed law and counts it as lost.
    rounding = 1e-6 * max(peer, 1e-3)
    assert ours.lower <= peer + rounding
    # Our two ends are within the tolerance of each other, with the truth between.
    assert ours.epsilon < 1e-3 or ours.epsilon * (1.0 - TOLERANCE) <= peer + rounding
    assert ours.epsilon >= peer - error
    if optimistic:
        assert ours.epsilon >= peer_epsilon(case, interval, pessimistic=False)


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=pytest.mark.evidence if seed >= 80 else ()) for seed in range(200)],
)
def test_random_schedules(seed: int) -> None:
    check(random_case(seed), optimistic=seed % 10 == 0)


@pytest.mark.evidence
@pytest.mark.parametrize("seed", range(1_000, 1_250))
def test_many_more_random_schedules(seed: int) -> None:
    check(random_case(seed), optimistic=True)


@pytest.mark.parametrize("seed", [4, 7])
def test_the_error_of_the_peer_is_of_second_order(seed: int) -> None:
    """From cells 4h and 2h the error at h is foretold within a fifth, as `fine_peer` assumes."""
    case = random_case(seed)
    _, _, h = fine_peer(case, 1.0)
    wide, middle, narrow = (peer_epsilon(case, f * h) for f in (4.0, 2.0, 1.0))
    assert (wide - middle) / (middle - narrow) == pytest.approx(4.0, rel=0.2)


@pytest.mark.parametrize("seed", [4, 7])
def test_the_check_rejects_noise_that_is_one_percent_off(seed: int) -> None:
    case = random_case(seed)
    peer, error, _ = fine_peer(case, 1.0)
    for factor in (1.01, 0.99):
        claimed = accounting.epsilon(
            case.schedule * factor, sample_rate=case.sample_rate, delta=case.delta
        ).epsilon
        too_small, too_large = claimed < peer - error, claimed * (1.0 - TOLERANCE) > peer
        assert (too_small, too_large) == (factor > 1.0, factor < 1.0)


def test_nothing_is_spent_where_delta_covers_all() -> None:
    """δ above T·q: the record takes part with less than that chance."""
    case = Case(np.array([5.0, 8.0]), np.array([2.0, 3.0]), 1e-4, 1e-3)
    ours = accounting.epsilon(case.schedule, sample_rate=case.sample_rate, delta=case.delta)
    assert (ours.lower, ours.epsilon) == (0.0, 0.0)
    assert peer_epsilon(case, 1e-3) == 0.0


@pytest.mark.parametrize("seed", range(6))
def test_delta_against_the_peer(seed: int) -> None:
    case = random_case(3 * seed + 1)
    q = case.sample_rate
    bound = accounting.epsilon(case.schedule, sample_rate=q, delta=case.delta)
    _, error, interval = fine_peer(case, bound.epsilon)
    whole = composed(case, interval)
    for epsilon in (0.5 * bound.epsilon, bound.epsilon):
        ours = accounting.delta(case.schedule, sample_rate=q, epsilon=epsilon).delta
        more = float(whole.get_delta_for_epsilon(epsilon))
        less = float(whole.get_delta_for_epsilon(epsilon + 2.0 * error))
        assert less <= ours * (1.0 + 1e-6)
        assert ours * (1.0 - TOLERANCE) <= more + 1e-13
