"""The privacy theorem, proved again step by step from its lemmas on random settings."""

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dither.theory import (
    adp_condition,
    adp_epsilon,
    adp_sigma,
    adp_spent,
    amplification_by_sampling,
    b_delta,
    extended_advanced_composition,
    gaussian_mechanism,
)
from dither.types import EpsilonDelta, FloatArray

PAPER: dict[str, Any] = {
    "clip_norm": 1.0,
    "dataset_size": 50_000,
    "batch_size": 256,
    "epsilon": 16 * 0.8,
    "delta": 1e-5,
}


def composed(alphas: FloatArray, sigma: float, setting: dict[str, Any]) -> EpsilonDelta:
    """What the lemmas give for the theorem's noise: Gaussian, then sampled, then composed."""
    n, m, T, delta = setting["dataset_size"], setting["batch_size"], alphas.size, setting["delta"]
    delta_0 = n * delta / (12.8 * T * m)
    width = 2.0 * setting["clip_norm"] / m
    steps = [
        amplification_by_sampling(*gaussian_mechanism(width, alpha * sigma, delta_0), m / n)
        for alpha in alphas
    ]
    epsilons, deltas = (np.array(column) for column in zip(*steps, strict=True))
    return extended_advanced_composition(epsilons, deltas, delta * (1.0 - 1.0 / 12.8))


settings = st.fixed_dictionaries(
    {
        "clip_norm": st.floats(0.01, 100.0),
        "dataset_size": st.integers(2 * 10**3 + 1, 10**6),
        "batch_size": st.integers(1, 10**3),
        "epsilon": st.floats(1e-3, 20.0),
        "delta": st.floats(1e-12, 0.1),
    }
)
alphas = st.lists(st.floats(0.2, 5.0), min_size=1, max_size=60).map(np.array)


def strained(alpha: FloatArray, setting: dict[str, Any], spare: float) -> dict[str, Any]:
    """Lower ε until the condition on the noise holds with little to spare."""
    n, m, delta = setting["dataset_size"], setting["batch_size"], setting["delta"]
    assume(delta < 12.8 * alpha.size * m / n)
    noise = alpha.min() ** 2 * np.sum(alpha**-2.0)
    edge = math.sqrt(32 * math.log(1.25 / delta) * noise) * m / n
    return {**setting, "epsilon": min(setting["epsilon"], edge / spare)}


@given(alphas, settings, st.floats(1.000001, 1.5))
def test_where_the_condition_holds_the_lemmas_prove_the_claim(
    alpha: FloatArray, setting: dict[str, Any], spare: float
) -> None:
    setting = strained(alpha, setting, spare)
    assume(adp_condition(alpha, **setting))
    proved = composed(alpha, adp_sigma(alpha, **setting), setting)
    assert proved.epsilon <= setting["epsilon"]
    assert proved.delta <= setting["delta"] * (1 + 1e-12)


def test_the_proof_rejects_a_fifth_of_the_noise() -> None:
    alpha = np.ones(2_000)
    setting = {**PAPER, "epsilon": 0.05}
    assert adp_condition(alpha, **setting)
    sigma = adp_sigma(alpha, **setting)
    assert composed(alpha, sigma, setting).epsilon <= 0.05
    assert composed(alpha, 0.2 * sigma, setting).epsilon > 0.05


def test_the_papers_setting() -> None:
    alpha = np.ones(11_700)
    sigma = adp_sigma(alpha, **PAPER)
    assert f"{256 * sigma:.3f}" == "10.167"
    by_hand = math.sqrt(
        (16 / (50_000 * 12.8)) ** 2
        * math.log(16 * 11_700 * 256 / (50_000 * 1e-5))
        * math.log(1.25e5)
        * 11_700
    )
    assert sigma == pytest.approx(by_hand, rel=1e-13)
    condition = adp_condition(alpha, **PAPER)
    assert not condition
    assert not condition.holds
    assert condition.worst_step == 0
    assert condition.noise == pytest.approx(11_700)
    assert condition.required == pytest.approx(16_642.07, rel=1e-6)
    with pytest.raises(ValueError, match="sigma must be above"):
        composed(alpha[:1], sigma, {**PAPER, "delta": PAPER["delta"] / 11_700})


def test_the_condition_names_the_step_with_least_noise_and_every_reason() -> None:
    alpha = np.array([3.0, 0.5, 2.0])
    condition = adp_condition(
        alpha, dataset_size=100, batch_size=50, epsilon=100.0, delta=1e-5, clip_norm=3.0
    )
    assert condition.worst_step == 1
    assert condition.noise == pytest.approx(0.25 * (1 / 9 + 4 + 1 / 4))
    assert len(condition.reasons) == 3
    text = str(condition)
    assert text.startswith("the theorem's condition does not hold: ")
    assert "step 1" in text
    assert "m = 50 is not below n/2 = 50" in text
    assert "ε = 100 is above" in text
    good = adp_condition(np.ones(10**6), **{**PAPER, "epsilon": 1.0})
    assert str(good) == "the theorem's condition holds"


def test_each_condition_ends_where_its_formula_says() -> None:
    T, n, m, delta = 400, 10_000, 100, 1e-4
    alpha = np.full(T, 2.0)
    data: dict[str, Any] = {"dataset_size": n, "batch_size": m, "delta": delta}
    noise_edge = math.sqrt(32 * math.log(1.25 / delta) * T) * m / n
    assert adp_condition(alpha, epsilon=noise_edge * (1 - 1e-9), **data)
    assert not adp_condition(alpha, epsilon=noise_edge * (1 + 1e-9), **data)
    many = np.full(10**6, 2.0)
    drift_edge = math.sqrt(-8 * math.log(1.25 / delta) * math.log(delta * 11.8 / 12.8))
    assert adp_condition(many, epsilon=drift_edge * (1 - 1e-9), **data)
    failing = adp_condition(many, epsilon=drift_edge * (1 + 1e-9), **data)
    assert [reason[:1] for reason in failing.reasons] == ["ε"]
    half: dict[str, Any] = {"dataset_size": 200, "delta": delta, "epsilon": 0.1}
    assert adp_condition(many, batch_size=99, **half)
    assert not adp_condition(many, batch_size=100, **half)


def test_b_delta_ends_where_a_steps_share_is_one() -> None:
    edge = 12.8 * 3 * 5 / 1000
    data = {"dataset_size": 1000, "batch_size": 5}
    assert b_delta(3, delta=edge * (1 - 1e-9), **data) > 0
    with pytest.raises(ValueError, match="delta must be below"):
        b_delta(3, delta=edge, **data)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.int32, np.float64])
def test_sizes_of_any_number_type(kind: type) -> None:
    alpha = np.ones(11_700)
    setting = {**PAPER, "dataset_size": kind(20_000), "batch_size": kind(256)}
    plain = {**PAPER, "dataset_size": 20_000}
    assert adp_sigma(alpha, **setting) == adp_sigma(alpha, **plain)
    assert adp_condition(alpha, **setting) == adp_condition(alpha, **plain)


@given(alphas, settings)
def test_sigma_rounds_towards_privacy(alpha: FloatArray, setting: dict[str, Any]) -> None:
    n, m, delta = setting["dataset_size"], setting["batch_size"], setting["delta"]
    assume(delta < 12.8 * alpha.size * m / n)
    with mpmath.workdps(40):
        d = mpmath.mpf(delta)
        B = mpmath.log(mpmath.mpf(16) * alpha.size * m / (n * d)) * mpmath.log(
            mpmath.mpf("1.25") / d
        )
        total = mpmath.fsum(1 / mpmath.mpf(float(a)) ** 2 for a in alpha)
        true = 16 * mpmath.mpf(setting["clip_norm"]) / (n * mpmath.mpf(setting["epsilon"]))
        true *= mpmath.sqrt(B * total)
        assert true <= adp_sigma(alpha, **setting) <= true * (1 + mpmath.mpf(10) ** -13)


@given(alphas, settings)
def test_epsilon_inverts_sigma(alpha: FloatArray, setting: dict[str, Any]) -> None:
    n, m = setting["dataset_size"], setting["batch_size"]
    assume(setting["delta"] < 12.8 * alpha.size * m / n)
    sigma = adp_sigma(alpha, **setting)
    rest = {key: value for key, value in setting.items() if key != "epsilon"}
    assert adp_epsilon(alpha, sigma=sigma, **rest) == pytest.approx(setting["epsilon"], rel=1e-12)


@given(alphas, st.floats(1e-45, 1e45))
def test_only_ratios_of_alpha_matter(alpha: FloatArray, scale: float) -> None:
    base = alpha * adp_sigma(alpha, **PAPER)
    scaled = alpha * scale
    np.testing.assert_allclose(scaled * adp_sigma(scaled, **PAPER), base, rtol=1e-12)
    assert adp_condition(scaled, **PAPER).noise == pytest.approx(
        adp_condition(alpha, **PAPER).noise, rel=1e-12
    )


@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 0.8])
def test_sigma_squared_grows_like_a_power_of_the_steps(p: float) -> None:
    """σ²/B_δ = const·Σt^(−p), and Σt^(−p) = T^(1−p)/(1−p) + O(1)."""

    def reduced(T: int) -> float:
        alpha = np.arange(1, T + 1) ** (p / 2)
        data = {key: PAPER[key] for key in ("dataset_size", "batch_size", "delta")}
        return adp_sigma(alpha, **PAPER) ** 2 / b_delta(T, **data)

    T = 10**6
    slope = math.log2(reduced(2 * T) / reduced(T))
    # |ζ(p)| < 5 for these p: the O(1) term moves the ratio by less than 5·(1−p)/T^(1−p).
    assert slope == pytest.approx(1.0 - p, abs=5 * (1 - p) / T ** (1 - p) / math.log(2))


def test_sigma_squared_grows_like_the_logarithm_at_p_one() -> None:
    def total(T: int) -> float:
        alpha = np.sqrt(np.arange(1, T + 1))
        data = {key: PAPER[key] for key in ("dataset_size", "batch_size", "delta")}
        unit = (16.0 / (50_000 * 12.8)) ** 2
        return adp_sigma(alpha, **PAPER) ** 2 / b_delta(T, **data) / unit

    T = 10**6
    # Σ_{T<t≤2T} 1/t = log 2 − 1/(4T) + O(1/T²).
    assert total(2 * T) - total(T) == pytest.approx(math.log(2.0), abs=1.0 / T)


def test_spending_is_the_theorem_for_the_first_steps() -> None:
    alpha = np.array([1.0, 2.0, 0.5, 1.0])
    spent = adp_spent(alpha, epsilon=3.0)
    shares = np.array([1.0, 1.25, 5.25, 6.25]) / 6.25
    np.testing.assert_allclose(spent, 3.0 * np.sqrt(shares), rtol=1e-14)
    assert spent[-1] == 3.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delta": 0.0}, "delta must be strictly between 0 and 1, got 0.0"),
        ({"delta": 1.0}, "delta must be strictly between 0 and 1, got 1.0"),
        ({"epsilon": 0.0}, "epsilon must be a positive, finite number, got 0.0"),
        ({"clip_norm": math.inf}, "clip_norm must be a positive, finite number, got inf"),
        ({"batch_size": 50_001}, "batch_size must be at most dataset_size = 50000, got 50001"),
        ({"dataset_size": 0}, "dataset_size must be an integer of at least 1, got 0"),
        (
            {"batch_size": 1, "delta": 0.5},
            r"delta must be below 12.8·steps·batch_size/dataset_size = 0.000256, got 0.5",
        ),
    ],
)
def test_refuses_bad_settings(change: dict[str, Any], message: str) -> None:
    setting = {**PAPER, **change}
    for call in (adp_sigma, adp_condition):
        with pytest.raises(ValueError, match=message):
            call(np.ones(1), **setting)
    with pytest.raises(ValueError, match=r"alphas\[0\] must be positive and finite, got nan"):
        adp_sigma([math.nan], **PAPER)
