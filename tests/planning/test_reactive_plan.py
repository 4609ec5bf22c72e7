"""Plans for step sizes that react: what they promise, and that their runs keep it."""

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.planning.reactive_runs import (
    GROWTH,
    RULE,
    SETTING,
    SHORT,
    FakeRelease,
    charge_all,
    expected_b,
    run,
    some_releases,
)

import dither
from dither import Plan
from dither.accounting import BudgetExceededError, Filter
from dither.noise import Correlated, GrowthBound
from dither.planning import ReactivePlan
from dither.schedules import AdaGradNorm, Constant, Reactive, UnsafeRawAdaGradNorm
from dither.types import SpentSoFar


def test_noise_fixed_in_advance_is_that_of_constant_step_sizes(fixed: ReactivePlan) -> None:
    plain = dither.plan(stepsizes=Constant(1.0), noise=GROWTH, **SHORT)
    assert fixed.noises is not None
    np.testing.assert_array_equal(fixed.noises.noise_multipliers, plain.noise_multipliers)
    assert fixed.noises == plain
    assert fixed.bound == plain.bound
    assert fixed.bound.is_upper_bound
    assert (fixed.steps, fixed.clip_norm, fixed.sampling) == (6, 1.0, "poisson")
    assert (fixed.dataset_size, fixed.batch_size) == (60_000, 256)
    assert fixed.sample_rate == plain.sample_rate


@pytest.mark.parametrize("noise", ["uniform", np.linspace(1.0, 2.0, 6)], ids=["name", "alphas"])
def test_uniform_noise_and_numbers_may_be_fixed_too(noise: Any) -> None:
    found = dither.plan(stepsizes=RULE, noise=noise, **SHORT)
    plain = dither.plan(noise=noise, **SHORT)
    assert found.noises == plain
    assert found.bound == plain.bound


def test_a_state_follows_noise_that_was_fixed(fixed: ReactivePlan) -> None:
    releases, run_state = some_releases(1), fixed.new_state()
    noises, stepsizes = run(run_state, releases)
    assert fixed.noises is not None
    assert noises == fixed.noises.noise_multipliers.tolist()
    np.testing.assert_allclose(
        stepsizes, 1.0 / np.array(expected_b(RULE, releases, 6)[1:]), rtol=1e-12
    )
    assert run_state.noise_multiplier is None
    with pytest.raises(BudgetExceededError, match="there is no next step"):
        run_state.spend()
    assert run_state.steps == 6


def test_what_a_state_has_cost_covers_every_prefix(fixed: ReactivePlan) -> None:
    run_state, z = (
        fixed.new_state(),
        fixed.noises.noise_multipliers if fixed.noises else np.zeros(0),
    )
    assert run_state.bound().epsilon == 0.0
    for released in some_releases(2, 6):
        run(run_state, [released])
        if run_state.steps in (1, 3, 5, 6):
            exact = dither.epsilon(z[: run_state.steps], sample_rate=256 / 60_000, delta=1e-5)
            claim = run_state.bound()
            assert exact.lower is not None
            assert exact.lower <= claim.epsilon <= fixed.bound.epsilon
            assert (claim.lower is None) == isinstance(claim, SpentSoFar) == (run_state.steps < 6)
            assert claim.is_upper_bound
    assert run_state.bound().epsilon == fixed.bound.epsilon


def test_noise_that_follows_is_scale_times_the_root_of_b(following: ReactivePlan) -> None:
    releases = some_releases(3)
    noises, stepsizes = run(following.new_state(), releases)
    b = np.array(expected_b(RULE, releases, len(noises)))
    np.testing.assert_allclose(noises, following.scale * np.sqrt(b[:-1]), rtol=1e-12)
    np.testing.assert_allclose(stepsizes, 1.0 / b[1:], rtol=1e-12)
    assert len(noises) == 60
    assert following.noises is None


@pytest.mark.parametrize("seed", [4, 5, None])
def test_a_filter_admits_what_a_state_has_run(following: ReactivePlan, seed: int | None) -> None:
    """Also with releases of nothing, after which b grows as slowly as it can."""
    releases = [FakeRelease(0.0)] * 200 if seed is None else some_releases(seed)
    run_state = following.new_state()
    noises, _ = run(run_state, releases)
    assert len(noises) > 50
    q, sampling = following.sample_rate, following.sampling
    again = Filter(1.0, 1e-5, orders=[following.order], sampling=sampling)
    charge_all(again, noises, q)
    found = dither.epsilon(noises, sample_rate=q, delta=1e-5, sampling=sampling, accountant="pld")
    assert found.is_upper_bound
    assert found.epsilon <= 1.0
    assert run_state.bound() == following.bound == again.bound
    # The same noise made smaller is refused on the way, and costs more than the budget.
    smaller = [0.7 * min(noises)] * len(noises)
    wrong = Filter(1.0, 1e-5, orders=[following.order], sampling=sampling)
    with pytest.raises(BudgetExceededError):
        charge_all(wrong, smaller, q)
    lower = dither.epsilon(smaller, sample_rate=q, delta=1e-5, sampling=sampling).lower
    assert lower is not None
    assert lower > 1.0


def test_slow_growth_uses_nearly_the_whole_budget(following: ReactivePlan) -> None:
    noises, _ = run(following.new_state(), [FakeRelease(0.0)] * 200)
    budget = Filter(1.0, 1e-5, orders=[following.order], sampling=following.sampling)
    charge_all(budget, noises, following.sample_rate)
    assert budget.remaining[0] < 2.0 / 60.0 * budget.budgets[0]  # two steps of sixty


# b_0 is the noise of the first step, b_1 that of the second: the search for the scale must not
# take the growth of step t for known at step t.
@pytest.mark.parametrize(
    ("b0_squared", "nu", "steps"), [(1.0, 0.1, 1), (1.0, 0.1, 24), (1.0, 1.0, 100), (0.01, 1.0, 60)]
)
def test_all_steps_fit_if_b_grows_as_slowly_as_it_can(
    b0_squared: float, nu: float, steps: int
) -> None:
    found = dither.plan(
        stepsizes=AdaGradNorm(b0_squared, nu), noise="filter", **{**SETTING, "steps": steps}
    )
    noises, _ = run(found.new_state(), [FakeRelease(0.0)] * (steps + 1))
    assert len(noises) == steps


@pytest.mark.parametrize("changed", [0, 1, 17, 58])
def test_noise_knows_earlier_releases_only(following: ReactivePlan, changed: int) -> None:
    releases = some_releases(6)
    others = [*releases]
    others[changed] = FakeRelease(1e4)
    (first, eta), (second, other_eta) = (run(following.new_state(), r) for r in (releases, others))
    assert first[: changed + 1] == second[: changed + 1]
    assert eta[:changed] == other_eta[:changed]
    assert eta[changed] > other_eta[changed]
    assert all(
        z < other for z, other in zip(first[changed + 1 :], second[changed + 1 :], strict=True)
    )


def test_a_run_ends_when_the_budget_is_spent(following: ReactivePlan) -> None:
    """Of a plan whose noise is two percent too small: fewer steps, and no more is claimed."""
    greedy = replace(following, scale=0.98 * following.scale)
    run_state = greedy.new_state()
    noises, _ = run(run_state, [FakeRelease(0.0)] * 200)
    assert 0 < len(noises) < 60
    budget = Filter(1.0, 1e-5, orders=[following.order], sampling=following.sampling)
    charge_all(budget, noises, following.sample_rate)
    next_z = greedy.scale * (RULE.b0_squared + len(noises) * RULE.nu) ** 0.25
    assert not budget.admits(next_z, following.sample_rate)
    assert run_state.noise_multiplier is None
    for _ in range(2):
        with pytest.raises(BudgetExceededError, match="there is no next step"):
            run_state.spend()
    assert run_state.steps == len(noises)
    assert run_state.bound().epsilon == 1.0


def test_raw_gradients_leave_no_claim(unsafe: ReactivePlan, fixed: ReactivePlan) -> None:
    assert unsafe.bound.epsilon == math.inf
    assert not unsafe.bound.is_upper_bound
    assert unsafe.bound.lower is None
    assert unsafe.noises == fixed.noises
    text = str(unsafe)
    assert "UNSAFE" in text
    assert "the step sizes follow the raw gradients' norms, which no noise protects" in text
    assert "ε = ∞" in text
    assert "UNSAFE" not in str(fixed)
    run_state = unsafe.new_state()
    for _ in range(3):
        run_state.spend()
        run_state.stepsize(FakeRelease(0.0), lambda: 4.0)
        assert run_state.bound().epsilon == math.inf
        assert not run_state.bound().is_upper_bound


def test_raw_gradients_drive_the_paper_s_rule(unsafe: ReactivePlan) -> None:
    run_state, b_squared = unsafe.new_state(), 20.0
    for raw in (4.0, 0.0, 2.5):
        run_state.spend()
        b_squared += max(raw, 1e-3)
        found = run_state.stepsize(FakeRelease(1e9), lambda raw=raw: raw)  # type: ignore[misc]
        assert found == pytest.approx(1.0 / math.sqrt(b_squared), rel=1e-14)


def test_str_is_for_a_review(fixed: ReactivePlan, following: ReactivePlan) -> None:
    for plan, noise in ((fixed, "fixed in advance"), (following, "follows b_t")):
        text = str(plan)
        for part in (
            f"up to {plan.steps} steps",
            plan.sampling,
            "n = 60,000",
            "m = 256",
            "clip norm 1",
            noise,
        ):
            assert part in text
        assert repr(RULE) in text
        assert str(plan.bound) in text
        assert plan.fingerprint[:16] in text
    assert "filter accountant" in str(following)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise": "optimal"}, 'noise must be "filter", "uniform", a GrowthBound .*\'optimal\'$'),
        ({"noise": "matched"}, 'noise must be "filter", "uniform", a GrowthBound .*\'matched\'$'),
        ({"noise": "cosine"}, 'noise must be "filter", "uniform", a GrowthBound .*\'cosine\'$'),
        ({}, 'noise must be "filter", "uniform", a GrowthBound .*\'optimal\'$'),
        ({"noise": "correlated"}, "got correlated noise, which is designed for step sizes that"),
        ({"noise": Correlated(bands=2)}, "got correlated noise, which is designed for step sizes"),
        ({"noise": [1.0]}, "noise must have one entry per step, 60 in all, got 1"),
        ({"noise": "filter", "accountant": "pld"}, "accountant must be None with noise='filter'"),
        ({"noise": "filter", "sampling": "shuffle"}, "sampling must be one of fixed, poisson"),
        ({"noise": "filter", "epsilon": -1.0}, "epsilon must be a positive, finite number"),
        ({"noise": "filter", "epsilon": 1e-9, "delta": 1e-9}, "epsilon must be above .* at delta"),
        ({"noise": "filter", "clip_norm": 0.0}, "clip_norm must be a positive, finite number"),
        (
            {"noise": "filter", "stepsizes": UnsafeRawAdaGradNorm(20.0, 1e-3)},
            "noise must be fixed in advance for UnsafeRawAdaGradNorm, got 'filter'",
        ),
        (
            {"noise": "filter", "stepsizes": Constant(1.0)},
            "noise must be one of correlated, matched, optimal, uniform, got 'filter'",
        ),
    ],
)
def test_bad_input(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dither.plan(**{"stepsizes": RULE, **SETTING, **change})


@pytest.mark.parametrize("kind", ["fixed", "following"])
def test_the_fingerprint_sees_everything(kind: str, request: pytest.FixtureRequest) -> None:
    plan: ReactivePlan = request.getfixturevalue("fixed")
    if kind == "following":
        plan = dither.plan(stepsizes=RULE, noise="filter", **SETTING)
    rules: list[Reactive] = [
        AdaGradNorm(20.5, 1e-3, 3.0),
        AdaGradNorm(20.0, 2e-3, 3.0),
        AdaGradNorm(20.0, 1e-3),
        AdaGradNorm(20.0, 1e-3, 3.0000001),
        UnsafeRawAdaGradNorm(20.0, 1e-3, 3.0),
    ]
    flat = Plan.from_noise_multipliers([1.0] * 6, delta=1e-5, dataset_size=60_000, batch_size=256)
    changes: list[dict[str, Any]] = [
        *({"stepsizes": rule} for rule in rules),
        {"noises": flat},
        {"steps": 61},
        {"clip_norm": 1.0 + 1e-15},
        {"clip_norm": math.inf},
        {"clipping": "automatic"},
        {"dataset_size": 60_001},
        {"batch_size": 255},
        {"sampling": "full"},
        {"scale": plan.scale + 1e-15},
        {"order": plan.order + 1e-12},
        *(
            {"bound": replace(plan.bound, **change)}
            for change in (
                {"epsilon": 1.01},
                {"epsilon": math.inf},
                {"delta": 2e-5},
                {"lower": 0.5},
                {"accountant": "other"},
                {"sampling": "other"},
                {"adjacency": "replace-one"},
                {"unit": "user"},
                {"is_upper_bound": False},
            )
        ),
    ]
    others = []
    for change in changes:
        other = copy.copy(plan)
        other.__dict__.pop("fingerprint", None)
        other.__dict__.update(change)
        others.append(other)
    assert len({plan.fingerprint, *(other.fingerprint for other in others)}) == len(others) + 1
    assert all(other != plan for other in others)


@pytest.mark.parametrize(
    "change", [{"dataset_size": 1_000}, {"batch_size": 512}, {"sampling": "fixed"}]
)
def test_other_sizes_than_the_noise_was_accounted_for_are_refused(
    fixed: ReactivePlan, change: dict[str, Any]
) -> None:
    assert replace(fixed, clip_norm=2.0).bound == fixed.bound
    with pytest.raises(ValueError, match="must be (accounted with|of) the plan's own"):
        replace(fixed, **change)


@pytest.mark.parametrize("noise", ["uniform", "filter"])
def test_automatic_clipping_costs_the_same(noise: str) -> None:
    flat, automatic = (
        dither.plan(stepsizes=RULE, noise=noise, clipping=clipping, **SHORT)
        for clipping in ("flat", "automatic")
    )
    assert (flat.clipping, automatic.clipping) == ("flat", "automatic")
    assert automatic.bound == flat.bound
    assert "clip norm 1, automatic clipping\n" in str(automatic)
    with pytest.raises(ValueError, match="clipping must be one of automatic, flat"):
        replace(flat, clipping="other")


def test_a_raw_rule_or_other_sampling_does_not_keep_the_bound(following: ReactivePlan) -> None:
    raw = UnsafeRawAdaGradNorm(b0_squared=20.0, nu=1e-3)
    other = "fixed" if following.sampling == "poisson" else "poisson"
    for change in ({"stepsizes": raw}, {"sampling": other}):
        with pytest.raises(ValueError, match="bound must be of the plan's own step sizes"):
            replace(following, **change)


def test_other_noise_with_the_old_bound_is_refused(fixed: ReactivePlan) -> None:
    assert fixed.noises is not None
    less = replace(fixed.noises, noise_multipliers=0.7 * fixed.noises.noise_multipliers)
    with pytest.raises(ValueError, match="noises must be accounted"):
        replace(fixed, noises=less)
    assert replace(fixed, noises=less, bound=less.bound).bound.epsilon > fixed.bound.epsilon


def test_equal_plans_are_equal_and_have_the_same_fingerprint(fixed: ReactivePlan) -> None:
    again = dither.plan(stepsizes=AdaGradNorm(20, 1e-3, 3), noise=GrowthBound(20, 0.5), **SHORT)
    assert again == fixed
    assert again.fingerprint == fixed.fingerprint
    assert len(fixed.fingerprint) == 64


def test_a_run_does_not_change_its_plan(fixed: ReactivePlan, following: ReactivePlan) -> None:
    again = dither.plan(stepsizes=RULE, noise="filter", **SETTING, sampling=following.sampling)
    run(following.new_state(), some_releases(12))
    assert again == following
    assert again.fingerprint == following.fingerprint != fixed.fingerprint


def test_a_plan_is_frozen(fixed: ReactivePlan) -> None:
    for name in ("clip_norm", "steps", "bound", "scale", "stepsizes", "fingerprint"):
        with pytest.raises(AttributeError):
            setattr(fixed, name, 2.0)


def test_full_batches_can_be_followed_too() -> None:
    """Every step costs order/(2·z²): the sum over all z is what the filter's budget allows."""
    found = dither.plan(
        epsilon=4.0, delta=1e-5, dataset_size=100, batch_size=100, steps=20,
        stepsizes=AdaGradNorm(20.0, 1e-3), noise="filter",
    )  # fmt: skip
    noises, _ = run(found.new_state(), some_releases(13))
    spent = math.fsum(found.order / (2.0 * z * z) for z in noises)
    allowed = (
        4.0 - math.log1p(-1.0 / found.order) + math.log(found.order * 1e-5) / (found.order - 1)
    )
    assert len(noises) == 20
    assert spent <= allowed
