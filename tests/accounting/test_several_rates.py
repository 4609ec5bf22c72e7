"""Steps with different sample rates: runs with other batch sizes, composed."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import dither
from dither import accounting
from dither.accounting import pld

NEIGHBOURS = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
RUNS = [
    [(1.0, 0.01, 300), (1.4, 0.05, 100)],
    [(0.8, 0.001, 2000), (2.0, 0.2, 20), (3.0, 0.02, 500)],
    [(5.0, 1.0, 4), (1.1, 0.01, 400)],
    [(0.7, 0.004, 1), (8.0, 1.0, 1)],
]


def arrays(runs: list[tuple[float, float, int]]) -> tuple[np.ndarray, np.ndarray]:
    z = np.concatenate([np.full(count, z) for z, _, count in runs])
    q = np.concatenate([np.full(count, q) for _, q, count in runs])
    return z, q


def composed(
    accountant: dp_accounting.PrivacyAccountant, runs: list[tuple[float, float, int]]
) -> dp_accounting.PrivacyAccountant:
    for z, q, count in runs:
        event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
        accountant.compose(event, count)
    return accountant


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_the_peer_agrees(runs: list[tuple[float, float, int]], delta: float) -> None:
    z, q = arrays(runs)
    mine = accounting.epsilon(z, sample_rate=q, delta=delta)
    peer = composed(PLDAccountant(NEIGHBOURS, value_discretization_interval=1e-4), runs)
    theirs = peer.get_epsilon(delta)
    steps = sum(count for _, _, count in runs)
    assert mine.lower is not None
    assert mine.lower <= theirs
    # The peer rounds every step's losses up to its grid.
    assert theirs - 1e-4 * steps <= mine.epsilon <= 1.005 * theirs
    order = np.random.default_rng(0).permutation(z.size)
    assert accounting.epsilon(z[order], sample_rate=q[order], delta=delta) == mine
    back = accounting.delta(z, sample_rate=q, epsilon=mine.epsilon).delta
    assert back <= delta * 1.006  # a bracket of half a percent


@pytest.mark.parametrize("runs", RUNS[:3])
def test_renyi_divergences_add_up(runs: list[tuple[float, float, int]]) -> None:
    z, q = arrays(runs)
    bound = accounting.epsilon(z, sample_rate=q, delta=1e-5, accountant="rdp")
    peer = composed(RdpAccountant(list(accounting.ORDERS), NEIGHBOURS), runs)
    assert bound.epsilon == pytest.approx(peer.get_epsilon(1e-5), rel=1e-3)
    parts = [
        accounting.renyi_divergences([z] * count, sample_rate=q, orders=[2.0, 9.5])
        for z, q, count in runs
    ]
    whole = accounting.renyi_divergences(z, sample_rate=q, orders=[2.0, 9.5])
    assert np.allclose(whole, sum(parts), rtol=1e-9)


def test_rates_that_are_all_the_same_are_one() -> None:
    z = np.linspace(1.0, 2.0, 50)
    one = accounting.epsilon(z, sample_rate=0.01, delta=1e-5)
    assert accounting.epsilon(z, sample_rate=np.full(50, 0.01), delta=1e-5) == one
    full = accounting.epsilon(z, sample_rate=np.ones(50), delta=1e-5)
    assert full.sampling == "full"


def test_fixed_batches_of_two_sizes_cost_more_than_either_and_less_than_the_larger_for_both() -> (
    None
):
    z, q = np.full(200, 2.0), np.repeat([0.01, 0.03], 100)
    epsilons = [
        accounting.epsilon(z[:k], sample_rate=rate, delta=1e-5, sampling="fixed").epsilon
        for k, rate in ((100, 0.01), (100, 0.03), (200, q), (200, 0.03))
    ]
    assert epsilons == sorted(epsilons)


@pytest.mark.parametrize("accountant", ["gdp", "theorem", "advanced"])
def test_estimates_need_one_rate(accountant: str) -> None:
    with pytest.raises(
        ValueError, match=f"must be one number for accountant '{accountant}', got 2"
    ):
        dither.epsilon([1.0, 1.0], sample_rate=[0.1, 0.2], delta=1e-5, accountant=accountant)


def test_bad_rates() -> None:
    with pytest.raises(ValueError, match=r"one entry per step, 2 in all, got 3"):
        dither.epsilon([1.0, 1.0], sample_rate=[0.1, 0.2, 0.3], delta=1e-5)
    with pytest.raises(ValueError, match=r"sample_rate\[1\] must be in \(0, 1\]"):
        dither.epsilon([1.0, 1.0], sample_rate=[0.1, 1.5], delta=1e-5)


def test_sampled_steps_are_the_sum_of_their_parts() -> None:
    z, q = arrays(RUNS[1])
    whole = pld.sampled_steps(z, q, "poisson", 0.01)
    parts = [pld.sampled_steps(z[q == rate], float(rate), "poisson", 0.01) for rate in np.unique(q)]
    assert whole.number == z.size
    for theta in (0.5, 3.0, 20.0):
        total = sum(part.log_moment(theta, "poisson-remove") for part in parts)
        assert whole.log_moment(theta, "poisson-remove") == pytest.approx(total, rel=1e-12)
