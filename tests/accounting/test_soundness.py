"""What every certified bracket promises, whatever the schedule."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dither import accounting
from dither.accounting import renyi_divergences, renyi_epsilon
from dither.types import FloatArray

TOLERANCE = 0.005
# A case takes a tenth of a second, not a millisecond: few of them, and no search for smaller ones.
few = settings(
    max_examples=max(8, settings().max_examples // 6), phases=[Phase.explicit, Phase.generate]
)


class Run(NamedTuple):
    noise: FloatArray
    sample_rate: float
    delta: float
    sampling: str = "poisson"

    def bracket(self, tolerance: float = TOLERANCE) -> tuple[float, float]:
        """(lower, upper) of ε, checked to be as close as promised: from ε = 1e-3 on."""
        bound = accounting.epsilon(
            self.noise,
            sample_rate=self.sample_rate,
            delta=self.delta,
            sampling=self.sampling,
            tolerance=tolerance,
        )
        assert bound.lower is not None
        assert bound.is_upper_bound
        assert 0.0 <= bound.lower <= bound.epsilon
        assert bound.epsilon < 1e-3 or bound.lower >= bound.epsilon * (1.0 - tolerance)
        return bound.lower, bound.epsilon

    def delta_at(self, epsilon: float) -> float:
        return accounting.delta(
            self.noise, sample_rate=self.sample_rate, epsilon=epsilon, sampling=self.sampling
        ).delta


@st.composite
def runs(draw: st.DrawFn) -> Run:
    groups = draw(
        st.lists(st.tuples(st.floats(0.6, 20.0), st.integers(1, 200)), min_size=2, max_size=6)
    )
    noise = np.repeat([z for z, _ in groups], [k for _, k in groups])
    rate = draw(st.floats(-2.0, -0.3).map(lambda power: 10.0**power))
    delta = draw(st.floats(-9.0, -4.0).map(lambda power: 10.0**power))
    return Run(noise, rate, delta, draw(st.sampled_from(["poisson", "fixed"])))


def spread_run(seed: int) -> Run:
    """600 different steps, which are put into buckets."""
    random = np.random.default_rng(seed)
    noise = np.exp(random.uniform(0.0, 3.0, 600))
    return Run(noise, 10.0 ** random.uniform(-2.0, -0.5), 1e-6, ("poisson", "fixed")[seed % 2])


@few
@given(runs(), st.floats(0.5, 30.0))
def test_one_more_step_is_not_cheaper(run: Run, z: float) -> None:
    dearer = run._replace(noise=np.append(run.noise, z))
    assert run.bracket()[0] <= dearer.bracket()[1]


@few
@given(runs(), st.floats(1.0, 1.5))
def test_a_larger_rate_is_not_cheaper(run: Run, factor: float) -> None:
    dearer = run._replace(sample_rate=min(1.0, run.sample_rate * factor))
    assert run.bracket()[0] <= dearer.bracket()[1]


@few
@given(runs(), st.floats(0.7, 1.0))
def test_less_noise_is_not_cheaper(run: Run, factor: float) -> None:
    dearer = run._replace(noise=run.noise * factor)
    assert run.bracket()[0] <= dearer.bracket()[1]


@few
@given(runs(), st.floats(0.01, 1.0))
def test_a_smaller_delta_is_not_cheaper(run: Run, factor: float) -> None:
    dearer = run._replace(delta=run.delta * factor)
    assert run.bracket()[0] <= dearer.bracket()[1]


def test_the_brackets_tell_such_runs_apart() -> None:
    """One percent less noise, more steps or rate, or a tenth less δ: the brackets are disjoint."""
    run = Run(np.linspace(1.0, 2.0, 300), 0.05, 1e-6)
    _, upper = run.bracket(1e-3)
    for dearer in (
        run._replace(noise=0.99 * run.noise),
        run._replace(noise=np.append(run.noise, run.noise[:12])),
        run._replace(sample_rate=0.0505),
        run._replace(delta=0.9e-6),
    ):
        assert dearer.bracket(1e-3)[0] > upper


def check_same(run: Run, other: Run) -> None:
    """Two ways to write down the same run: each bracket contains the truth, so that they meet."""
    (low, high), (other_low, other_high) = run.bracket(), other.bracket()
    assert low <= other_high
    assert other_low <= high
    assert max(high, other_high) < 1e-3 or abs(high - other_high) <= TOLERANCE * high


@few
@given(runs(), st.randoms(use_true_random=False))
def test_the_order_of_the_steps_does_not_matter(run: Run, random: object) -> None:
    shuffled = run.noise.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    check_same(run, run._replace(noise=shuffled))


@pytest.mark.parametrize("seed", range(2))
def test_the_order_and_the_parts_of_many_steps_do_not_matter(seed: int) -> None:
    run = spread_run(seed)
    shuffled = np.random.default_rng(seed).permutation(run.noise)
    check_same(run, run._replace(noise=shuffled))
    half = run.noise.size // 2
    check_same(run, run._replace(noise=np.concatenate([run.noise[half:], run.noise[:half]])))


@pytest.mark.parametrize("seed", range(2))
def test_buckets_and_bins_and_groups_agree(seed: int) -> None:
    """250 steps a hundred times or more: exact groups, and bins with the same steps moved a bit."""
    random = np.random.default_rng([seed, 41])
    noise = np.exp(random.uniform(1.0, 3.0, 250))
    run = Run(np.tile(noise, 210), 0.01, 1e-6, ("poisson", "fixed")[seed])
    groups = run._replace(noise=np.tile(noise, 199))
    jitter = 1.0 + 1e-9 * random.uniform(-1.0, 1.0, groups.noise.size)
    check_same(groups, groups._replace(noise=groups.noise * jitter))
    jitter = 1.0 + 1e-9 * random.uniform(-1.0, 1.0, run.noise.size)
    check_same(run, run._replace(noise=run.noise * jitter))
    assert groups.bracket()[0] <= run.bracket()[1]


@few
@given(runs())
def test_delta_and_epsilon_are_consistent(run: Run) -> None:
    """δ(ε) ≤ δ at the upper end, and the accountant of δ finds that within its tolerance."""
    low, high = run.bracket()
    # δ's own bracket is 0.005 wide, with a true δ(ε) ≤ δ inside; and δ(lower) ≥ δ.
    assert run.delta_at(high) * (1.0 - TOLERANCE) <= run.delta
    if low > 0.0:
        assert run.delta_at(low) >= run.delta * (1.0 - 1e-9)


@few
@given(runs())
def test_moments_are_looser(run: Run) -> None:
    """Also at a few orders only, which is all that fixed batches are asked for here."""
    low, high = run.bracket()
    orders = np.array([1.1, 1.3, 1.7, 2.5, 4.0, 6.0, 10.0, 17.0, 30.0])
    divergences = renyi_divergences(
        run.noise, sample_rate=run.sample_rate, orders=orders, sampling=run.sampling
    )
    moments = renyi_epsilon(divergences, orders, run.delta)
    assert low <= high <= moments * (1.0 + 1e-9)


@few
@given(runs())
def test_a_finer_bracket_meets_a_coarse_one(run: Run) -> None:
    coarse, fine = run.bracket(0.05), run.bracket(0.001)
    assert coarse[0] <= fine[1]
    assert fine[0] <= coarse[1]


@few
@given(runs())
def test_sampling_never_costs(run: Run) -> None:
    full = run._replace(sample_rate=1.0)
    assert run.bracket()[0] <= full.bracket()[1]


@few
@given(runs())
def test_replacing_is_between_one_and_two_sensitivities(run: Run) -> None:
    """No cheaper than removing a record that moves the sum by 2·C: a concrete pair of datasets."""
    fixed = run._replace(sampling="fixed")
    removed = run._replace(sampling="poisson", noise=0.5 * run.noise)
    assert removed.bracket()[0] <= fixed.bracket()[1]
    assert run._replace(sampling="poisson").bracket()[0] <= fixed.bracket()[1]
