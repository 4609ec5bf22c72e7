import hashlib
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dither
from dither import Plan
from dither.noise import Custom, GrowthBound, Matched, Optimal, Uniform
from dither.schedules import Constant, InverseSqrt, Linear, PiecewiseConstant

SETTING: dict[str, Any] = {
    "epsilon": 1.0,
    "delta": 1e-5,
    "dataset_size": 60_000,
    "batch_size": 256,
    "steps": 300,
}


FALLING = PiecewiseConstant(Linear(2.0, 0.1), 12)  # equal noise is accounted once


@pytest.fixture(scope="module")
def made() -> Plan:
    return dither.plan(stepsizes=FALLING, noise="matched", **SETTING)


def check_promise(*, epsilon: float, delta: float, sampling: str, **setting: Any) -> None:
    """The plan costs what was asked for, no more and hardly less, also when accounted again."""
    found = dither.plan(
        epsilon=epsilon, delta=delta, dataset_size=60_000, sampling=sampling, **setting
    )
    assert 0.995 * epsilon <= found.bound.epsilon <= epsilon
    again = dither.epsilon(
        found.noise_multipliers, sample_rate=found.sample_rate, delta=delta, sampling=sampling
    )
    assert again.epsilon <= epsilon


@given(
    st.floats(0.1, 8.0),
    st.sampled_from([1e-7, 1e-5, 1e-3]),
    st.sampled_from([64, 1024, 60_000]),
    st.integers(1, 400),
    st.sampled_from(["uniform", "matched", "optimal"]),
    st.sampled_from(["poisson", "fixed"]),
)
@settings(max_examples=6)
def test_every_plan_keeps_its_promise(
    epsilon: float, delta: float, batch_size: int, steps: int, noise: Any, sampling: str
) -> None:
    asked = {"epsilon": epsilon, "delta": delta, "batch_size": batch_size, "steps": steps}
    check_promise(
        stepsizes=PiecewiseConstant(InverseSqrt(5.0), 20), noise=noise, sampling=sampling, **asked
    )


@pytest.mark.evidence  # the test above has twenty noise levels
@given(
    st.floats(0.1, 8.0),
    st.sampled_from([1e-7, 1e-5, 1e-3]),
    st.sampled_from([64, 1024, 60_000]),
    st.integers(200, 1000),
    st.sampled_from(["matched", "optimal", GrowthBound(b0_squared=20.0, growth=0.5)]),
    st.sampled_from(["poisson", "fixed"]),
)
@settings(max_examples=25)
def test_every_plan_with_hundreds_of_noise_levels_keeps_its_promise(
    epsilon: float, delta: float, batch_size: int, steps: int, noise: Any, sampling: str
) -> None:
    asked = {"epsilon": epsilon, "delta": delta, "batch_size": batch_size, "steps": steps}
    check_promise(stepsizes=InverseSqrt(5.0), noise=noise, sampling=sampling, **asked)


@pytest.mark.parametrize("accountant", ["pld", "rdp", "gdp", "theorem", "advanced"])
def test_every_accountant_can_be_planned_with(accountant: str) -> None:
    found = dither.plan(stepsizes=FALLING, noise="matched", accountant=accountant, **SETTING)
    assert found.accountant == accountant
    assert 0.995 <= found.bound.epsilon <= 1.0
    if accountant in ("pld", "rdp"):
        assert found.bound.is_upper_bound
    if accountant == "gdp":
        assert not found.bound.is_upper_bound


def test_noise_keeps_its_shape(made: Plan) -> None:
    ratio = made.noise_multipliers / Matched().alphas(made.stepsizes)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-12)
    given_alphas = dither.plan(stepsizes=FALLING, noise=Matched().alphas(made.stepsizes), **SETTING)
    assert given_alphas == made
    custom = dither.plan(
        stepsizes=made.stepsizes, noise=Custom(Matched().alphas(made.stepsizes)), **SETTING
    )
    assert custom == made


def test_epochs_are_rounded_up() -> None:
    setting = {key: value for key, value in SETTING.items() if key != "steps"}
    assert dither.plan(epochs=1.5, noise=Uniform(), **setting).steps == 352


def test_full_batch_is_the_closed_form() -> None:
    found = dither.plan(
        epsilon=2.0, delta=1e-5, dataset_size=100, batch_size=100, steps=10, noise="uniform"
    )
    mu = math.sqrt(np.sum(found.noise_multipliers**-2.0))
    from dither.accounting.gaussian import gaussian_delta

    assert gaussian_delta(mu, 2.0) <= 1e-5
    assert found.bound.sampling == "full"


def test_json_is_exact(made: Plan) -> None:
    again = Plan.from_json(made.to_json())
    assert again == made
    assert hash(again) == hash(made)
    assert again.fingerprint == made.fingerprint
    np.testing.assert_array_equal(again.noise_multipliers, made.noise_multipliers)
    np.testing.assert_array_equal(again.stepsizes, made.stepsizes)
    assert again.bound == made.bound
    plain = Plan.unsafe_without_noise(steps=3, dataset_size=10, batch_size=2)
    assert Plan.from_json(plain.to_json()) == plain


def test_the_fingerprint_sees_everything(made: Plan) -> None:
    seen = {made.fingerprint}
    changes: list[dict[str, Any]] = [
        {"delta": 2e-5},
        {"clip_norm": 2.0},
        {"clipping": "automatic"},
        {"batch_size": 512, "dataset_size": 120_000},
        {"stepsizes": Constant(1.0)},
        {"sampling": "fixed"},
        {"noise_multipliers": made.noise_multipliers * (1 + 1e-15)},
    ]
    for change in changes:
        setting: dict[str, Any] = {
            "noise_multipliers": made.noise_multipliers,
            "delta": 1e-5,
            "dataset_size": 60_000,
            "batch_size": 256,
            "stepsizes": made.stepsizes,
            **change,
        }
        z = setting.pop("noise_multipliers")
        seen.add(Plan.from_noise_multipliers(z, **setting).fingerprint)
    assert len(seen) == 8


def test_automatic_clipping_costs_the_same_and_is_saved(made: Plan) -> None:
    automatic = replace(made, clipping="automatic")
    assert automatic.bound == made.bound
    assert automatic != made
    assert json.loads(automatic.to_json())["clipping"] == "automatic"
    again = Plan.from_json(automatic.to_json())
    assert again == automatic
    assert again.clipping == "automatic"
    assert "clip norm 1, automatic clipping\n" in str(automatic)


def test_a_flat_plan_is_saved_as_it_always_was(made: Plan) -> None:
    """Fingerprints in ledgers and run directories stay what they are."""
    assert made.clipping == "flat"
    assert "clipping" not in json.loads(made.to_json())
    assert "clipping" not in str(made)
    fields = json.loads(replace(made, clipping="automatic").to_json())
    del fields["clipping"]
    with pytest.raises(ValueError, match="plan must be unchanged since it was saved"):
        Plan.from_json(json.dumps(fields))


@pytest.mark.parametrize("clipping", ["per_layer", None, "Automatic"])
def test_other_ways_of_clipping_are_refused(clipping: Any) -> None:
    sizes: dict[str, Any] = {"dataset_size": 100, "batch_size": 10, "clipping": clipping}
    message = f"clipping must be one of automatic, flat, got {clipping!r}"
    with pytest.raises(ValueError, match=message):
        Plan.from_noise_multipliers([1.0], delta=1e-3, **sizes)
    with pytest.raises(ValueError, match=message):
        Plan.unsafe_without_noise(steps=1, **sizes)
    with pytest.raises(ValueError, match=message):
        dither.plan(epsilon=1.0, delta=1e-3, steps=1, **sizes)


def test_automatic_clipping_needs_a_finite_clip_norm() -> None:
    sizes: dict[str, Any] = {"steps": 1, "dataset_size": 100, "batch_size": 10}
    with pytest.raises(ValueError, match="clip_norm must be finite where clipping is 'automatic'"):
        Plan.unsafe_without_noise(clipping="automatic", **sizes)
    plan = Plan.unsafe_without_noise(clipping="automatic", clip_norm=1.0, **sizes)
    assert Plan.from_json(plan.to_json()) == plan
    with pytest.raises(ValueError, match="clip_norm must be finite"):
        replace(plan, clip_norm=math.inf)


def test_a_damaged_file_is_refused(made: Plan) -> None:
    fields = json.loads(made.to_json())
    fields["bound"]["epsilon"] = 0.5
    with pytest.raises(ValueError, match="plan must be unchanged since it was saved"):
        Plan.from_json(json.dumps(fields))


@pytest.mark.parametrize("factor", [0.7, 0.999])
def test_a_file_that_claims_too_little_is_refused(made: Plan, factor: float) -> None:
    """A plan that was saved with a wrong bound, its fingerprint included."""
    fields = json.loads(made.to_json())
    fields["noise_multipliers"] = (made.noise_multipliers * factor).tolist()
    del fields["fingerprint"]
    text = json.dumps(fields, sort_keys=True)
    fields["fingerprint"] = hashlib.sha256(text.encode()).hexdigest()
    with pytest.raises(ValueError, match="plan must not claim less than it costs"):
        Plan.from_json(json.dumps(fields))


def test_a_replaced_plan_has_its_own_bound(made: Plan) -> None:
    less = replace(made, noise_multipliers=made.noise_multipliers * 0.7)
    counted = dither.epsilon(less.noise_multipliers, sample_rate=made.sample_rate, delta=1e-5)
    assert less.bound == counted
    assert less.bound.epsilon > made.bound.epsilon
    assert less.spent(150) > made.spent(150)
    assert replace(made, batch_size=512).bound.epsilon > made.bound.epsilon
    clipped = replace(made, clip_norm=2.0)
    assert clipped.bound == made.bound
    assert clipped != made
    with pytest.raises(ValueError, match="bound"):
        replace(made, bound=made.bound)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "plan must be JSON"),
        ("[]", "plan must have the fields"),
        ('{"format": "other"}', "plan must have the fields"),
    ],
)
def test_other_files_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Plan.from_json(text)


def test_a_plan_is_frozen(made: Plan) -> None:
    with pytest.raises(AttributeError):
        made.clip_norm = 2.0  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        made.noise_multipliers[0] = 9.0
    with pytest.raises(ValueError, match="WRITEABLE"):
        made.stepsizes.flags.writeable = True


def test_spending_rises_to_the_bound_and_covers_every_prefix(made: Plan) -> None:
    curve = [made.spent(step) for step in range(made.steps + 1)]
    assert curve[0] == 0.0
    assert curve[-1] == made.bound.epsilon
    assert (np.diff(curve) >= 0.0).all()
    for step in (1, 2, 17, 150, 299):
        exact = dither.epsilon(
            made.noise_multipliers[:step], sample_rate=made.sample_rate, delta=1e-5
        )
        assert exact.lower is not None
        assert made.spent(step) >= exact.lower
    with pytest.raises(ValueError, match="step must be an integer from 0 to 300, got 301"):
        made.spent(301)
    with pytest.raises(ValueError, match="step must be an integer from 0 to 300, got -1"):
        made.spent(-1)


def test_without_noise_nothing_is_claimed() -> None:
    plain = Plan.unsafe_without_noise(
        steps=5, dataset_size=10, batch_size=2, stepsizes=Linear(1.0, 0.5)
    )
    assert plain.bound.epsilon == math.inf
    assert not plain.bound.is_upper_bound
    assert (plain.noise_multipliers == 0.0).all()
    assert plain.clip_norm == math.inf
    assert plain.spent(3) == math.inf
    assert plain.spent(0) == 0.0
    assert "UNSAFE" in str(plain)
    assert "∞" in str(plain)


def test_str_is_for_a_review(made: Plan) -> None:
    text = str(made)
    for part in ("300 steps", "poisson", "n = 60,000", "clip norm 1", "δ = 1e-05", "fingerprint"):
        assert part in text


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"epsilon": 0.0}, ValueError, "epsilon must be a positive, finite number, got 0.0"),
        ({"delta": 1.0}, ValueError, "delta must be strictly between 0 and 1, got 1.0"),
        ({"steps": 0}, ValueError, "steps must be an integer of at least 1, got 0"),
        ({"epochs": 2}, TypeError, "plan takes exactly one of steps and epochs"),
        ({"steps": None}, TypeError, "plan takes exactly one of steps and epochs"),
        ({"batch_size": 70_000}, ValueError, "batch_size must be at most dataset_size"),
        ({"clip_norm": -1.0}, ValueError, "clip_norm must be a positive, finite number, got -1.0"),
        (
            {"noise": "cosine"},
            ValueError,
            "noise must be one of correlated, matched, optimal, uniform",
        ),
        (
            {"noise": [1.0, 2.0]},
            ValueError,
            "noise must have one entry per step, 300 in all",
        ),
        ({"stepsizes": [1.0]}, ValueError, "stepsizes must have one entry per step, 300 in all"),
        ({"sampling": "shuffle"}, ValueError, "sampling must be one of fixed, poisson"),
        ({"accountant": "magic"}, ValueError, "accountant must be one of .*, got 'magic'"),
        (
            {"epsilon": 1e6, "steps": 20},
            ValueError,
            "epsilon must be one that noise between 0.02 and 1e",
        ),
        (
            {"epsilon": 1e-6, "accountant": "rdp", "steps": 20},
            ValueError,
            "epsilon must be one that noise between 0.02 and 1e",
        ),
        (
            {"noise": "optimal", "batch_size": 1, "delta": 0.01},
            ValueError,
            "sample_rate must be above delta = 0.01 for Optimal",
        ),
    ],
)
def test_bad_input(change: dict[str, Any], error: type[Exception], message: str) -> None:
    setting = {"noise": "uniform", **SETTING, **change}
    with pytest.raises(error, match=message):
        dither.plan(**setting)


def test_from_json_wants_text() -> None:
    with pytest.raises(TypeError, match="text must be a str, got"):
        Plan.from_json(None)  # type: ignore[arg-type]


def test_the_floor_of_optimal_noise_holds() -> None:
    setting: dict[str, Any] = {"delta": 1e-5, "dataset_size": 60_000, "batch_size": 256}
    made = dither.plan(
        epsilon=3.0,
        steps=400,
        stepsizes=PiecewiseConstant(InverseSqrt(1.0), 25),
        noise=Optimal(floor=0.58),
        **setting,
    )
    assert made.noise_multipliers.min() == 0.58
    assert made.noise_multipliers.max() > 0.6
    assert 3.0 * 0.995 <= made.bound.epsilon <= 3.0
    # A floor above what the budget takes leaves uniform noise, and the budget is used all the same.
    high, flat = (
        dither.plan(epsilon=1.0, steps=100, noise=noise, **setting)
        for noise in (Optimal(floor=100.0), "uniform")
    )
    assert 0.995 <= high.bound.epsilon <= 1.0
    np.testing.assert_allclose(high.noise_multipliers, flat.noise_multipliers, rtol=1e-3)
