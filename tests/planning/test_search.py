"""A plan with a search costs what it claims: one composition of trials, scores and training."""

import functools
import json
from typing import Any

import numpy as np
import pytest

import dither
from dither import Plan, accounting
from dither.planning.search import FACTORS, with_search
from dither.schedules import Linear
from dither.types import Search


@functools.cache
def plain(sampling: str = "poisson", steps: int = 60, noise: str = "uniform") -> Plan:
    return dither.plan(
        epsilon=2.0, delta=1e-5, dataset_size=4000, batch_size=200, steps=steps,
        stepsizes=Linear(1.0, 0.05), sampling=sampling, noise=noise,
    )  # fmt: skip


def tuned(plan: Plan, share: float = 0.3, **settings: Any) -> Plan:
    return with_search(plan, share=share, trial_rate=ratio, **settings)


def ratio(trial: np.ndarray, rest: np.ndarray) -> float:
    return float(rest.mean() / trial.mean())


@pytest.fixture(scope="module")
def plan() -> Plan:
    return tuned(plain())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_claim_is_what_an_independent_accountant_finds(plan: Plan) -> None:
    peers: Any = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")

    def composed(noise: np.ndarray) -> float:
        total = None
        for z, count in zip(*np.unique(noise.round(3), return_counts=True), strict=True):
            step = peers.from_gaussian_mechanism(
                float(z), sampling_prob=plan.sample_rate, value_discretization_interval=2e-3,
                use_connect_dots=True,
            ).self_compose(int(count))  # fmt: skip
            total = step if total is None else total.compose(step)
        assert total is not None
        return float(total.get_epsilon_for_delta(plan.delta))

    assert plan.search is not None
    whole = composed(plan.noise_multipliers)
    assert whole == pytest.approx(plan.bound.epsilon, rel=0.01)
    # The comparison would notice a search that is not charged.
    assert composed(plan.noise_multipliers[plan.search.steps :]) < 0.99 * plan.bound.epsilon


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_search_costs_its_share_and_all_the_budget(sampling: str, share: float) -> None:
    before = plain(sampling)
    plan = tuned(before, share)
    assert plan.search is not None
    z, k = plan.noise_multipliers, plan.search.steps

    def cost(noise: np.ndarray) -> float:
        return accounting.epsilon(
            noise, sample_rate=plan.sample_rate, delta=plan.delta, sampling=sampling
        ).epsilon

    assert 0.99 * share * 2.0 < cost(z[:k]) <= share * before.bound.epsilon
    assert 0.995 * before.bound.epsilon <= plan.bound.epsilon <= before.bound.epsilon
    assert plan.bound.epsilon == cost(z)
    assert np.ptp(z[:k]) == 0.0
    assert 1.0 < z[k] / before.noise_multipliers[0] < 1.25


def test_the_rest_keeps_the_shape_of_its_noise() -> None:
    before = plain(noise="matched", steps=20)
    plan = tuned(before)
    ratio = plan.noise_multipliers[-20:] / before.noise_multipliers
    assert np.allclose(ratio, ratio[0])
    assert 1.0 < ratio[0] < 1.1


def test_trials_take_a_quarter_of_the_compute(plan: Plan) -> None:
    assert plan.search == Search(FACTORS, trial_steps=5, score_steps=20)
    assert tuned(plain(steps=600)).search == Search(FACTORS, trial_steps=30, score_steps=20)
    few = tuned(plain(steps=600), factors=(0.5, 1.0)).search
    assert few == Search((0.5, 1.0), trial_steps=75, score_steps=20)


def test_trials_have_the_rate_of_runs_as_short_and_noisy(plan: Plan) -> None:
    search = plan.search
    assert search is not None
    z, eta, t = plan.noise_multipliers, plan.stepsizes, search.trial_steps
    rest = z[search.steps :].mean()
    for j, factor in enumerate(search.factors):
        trial = eta[j * t : (j + 1) * t]
        assert trial[0] == pytest.approx(factor * rest / z[0])
        assert trial[-1] == pytest.approx(0.05 * trial[0])
    assert np.array_equal(eta[search.steps :], plain().stepsizes)


def test_a_plan_with_a_search_is_saved_and_read(plan: Plan) -> None:
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.search == plan.search
    assert "search" not in json.loads(plain().to_json())
    fields = json.loads(plan.to_json())
    fields["search"]["trial_steps"] = 6
    with pytest.raises(ValueError, match="fingerprint does not match"):
        Plan.from_json(json.dumps(fields))


def test_the_choice_multiplies_the_rest_and_is_kept(plan: Plan) -> None:
    assert plan.search is not None
    state = plan.new_state()
    for _ in range(plan.search.steps):
        state.spend()
    assert state.state_dict().keys() == {"spent"}
    state.choose(4.0)
    state.spend()
    again = plan.new_state()
    again.load_state_dict(json.loads(json.dumps(state.state_dict())))
    for each in (state, again):
        assert each.stepsize(..., lambda: 0.0) == 4.0 * plan.stepsizes[plan.search.steps]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"factor must be one of \(0.25, .*, 4.0\), got 3"):
        state.choose(3.0)
    with pytest.raises(ValueError, match=r"factor must be one of \(\), got 4.0"):
        plain().new_state().choose(4.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 0.0}, "tune must be .*, got 0"),
        ({"share": 0.6}, "tune must be at most 0.5, got 0.6"),
        ({"factors": (0.5, 2.0)}, "factors must be 1 and at most 4 others"),
        ({"factors": (1.0, 1.0)}, "factors must be 1 and at most 4 others"),
        ({"factors": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)}, "factors must be 1 and at most 4 others"),
        ({"factors": (1.0, -2.0)}, "factors"),
    ],
)
def test_other_searches_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tuned(plain(steps=3), **settings)
