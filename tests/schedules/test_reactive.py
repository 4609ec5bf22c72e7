"""Rules for b against the formulas, written as loops."""

import copy
import itertools
import math
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dither import schedules
from dither.schedules import AdaGradNorm, Growth, Reactive, Schedule, UnsafeRawAdaGradNorm

Gradients = list[tuple[float, float]]
gradients = st.lists(st.tuples(st.floats(0.0, 1e3), st.floats(0.0, 1e3)), max_size=30)
positive = st.floats(1e-3, 1e3)
betas = st.one_of(st.none(), st.floats(0.1, 600.0))


def weight(beta: float | None, t: int) -> float:
    return 1.0 if beta is None else max(beta / ((t % 195) + 1), 1.0)


def walk(rule: Reactive, found: Gradients) -> list[Growth]:
    growths = [rule.start()]
    for squared_norm, noise in found:
        growths.append(rule.after(growths[-1], squared_norm, noise))
    return growths


@given(positive, positive, betas, gradients)
def test_adagrad_norm_is_the_formula(
    b0_squared: float, nu: float, beta: float | None, found: Gradients
) -> None:
    """Section 4 of the design: every b² from all gradients so far, added up anew."""
    growths = walk(AdaGradNorm(b0_squared, nu, beta), found)
    expected = b0_squared
    assert growths[0].b_squared == expected
    for t in range(len(found)):
        terms = [weight(beta, s) * (g - noise) for s, (g, noise) in enumerate(found[: t + 1])]
        expected = max(expected, b0_squared + max(math.fsum(terms), (t + 1) * nu))
        size = b0_squared + (t + 1) * nu + sum(map(abs, terms))
        assert growths[t + 1].steps == t + 1
        assert abs(growths[t + 1].b_squared - expected) <= 1e-14 * (t + 2) * size
        assert growths[t + 1].b == math.sqrt(growths[t + 1].b_squared)


@given(positive, positive, betas, gradients)
def test_b_never_falls_and_grows_by_nu_at_least(
    b0_squared: float, nu: float, beta: float | None, found: Gradients
) -> None:
    growths = walk(AdaGradNorm(b0_squared, nu, beta), found)
    for t, growth in enumerate(growths):
        assert growth.b_squared >= b0_squared + t * nu
        assert growth.b_squared >= growths[max(t - 1, 0)].b_squared
    raw = walk(UnsafeRawAdaGradNorm(b0_squared, nu, beta), found)
    for before, after in itertools.pairwise(raw):
        assert after.b_squared - before.b_squared >= nu - 1e-15 * after.b_squared * 4.0


def test_gradients_below_their_noise_are_remembered() -> None:
    rule = AdaGradNorm(4.0, 1.0)
    growths = walk(rule, [(0.0, 10.0), (12.0, 0.0), (20.0, 0.0)])
    assert [growth.b_squared for growth in growths] == [4.0, 5.0, 6.0, 26.0]
    assert [growth.total for growth in growths] == [0.0, -10.0, 2.0, 22.0]


def test_a_large_gradient_stays_counted_when_noise_follows() -> None:
    growths = walk(AdaGradNorm(4.0, 1.0), [(100.0, 0.0), (0.0, 90.0), (0.0, 90.0)])
    assert [growth.b_squared for growth in growths] == [4.0, 104.0, 104.0, 104.0]


@given(positive, positive, betas, gradients)
def test_the_unsafe_rule_is_that_of_the_paper(
    b0_squared: float, nu: float, beta: float | None, found: Gradients
) -> None:
    growths = walk(UnsafeRawAdaGradNorm(b0_squared, nu, beta), found)
    expected = b0_squared
    for t, (squared_norm, _) in enumerate(found):
        expected = expected + max(weight(beta, t) * squared_norm, nu)
        assert growths[t + 1].b_squared == pytest.approx(expected, rel=1e-14)
        assert growths[t + 1].steps == t + 1


def test_noise_alone_does_not_make_b_grow_beyond_its_floor() -> None:
    """d·σ² is what noise adds on average; a rule that cuts each difference adds up the rest."""
    d, sigma, nu, T = 1_000, 0.01, 4e-4, 20_000
    random = np.random.default_rng(1)
    norms = sigma**2 * random.chisquare(d, T)
    noise = d * sigma**2
    rule = AdaGradNorm(1.0, nu)
    grown = walk(rule, [(float(norm), noise) for norm in norms])[-1].b_squared - 1.0
    floor = T * nu
    # By reflection, a sum of T differences passes the floor with twice a normal tail's chance.
    spread = sigma**2 * math.sqrt(2.0 * d * T)
    assert math.erfc(floor / spread / math.sqrt(2.0)) < 1e-20
    assert grown == pytest.approx(floor, rel=1e-9)
    rectified = float(np.maximum(norms - noise, nu).sum())
    raw = walk(UnsafeRawAdaGradNorm(1.0, nu), [(float(norm), noise) for norm in norms])
    assert rectified > 4.0 * grown
    assert raw[-1].b_squared > 100.0 * grown


def test_a_gradient_under_much_noise_is_found_without_bias() -> None:
    """Σ(‖g + noise‖² − d·σ²) is Σ‖g‖² on average, with a spread of √(T·(2dσ⁴ + 4σ²‖g‖²))."""
    d, sigma, T = 1_000, 0.3, 5_000
    random = np.random.default_rng(2)
    norms = sigma**2 * random.noncentral_chisquare(d, 1.0 / sigma**2, T)  # ‖g‖ = 1
    found = walk(AdaGradNorm(1.0, 1e-6), [(float(norm), d * sigma**2) for norm in norms])
    spread = math.sqrt(T * (2.0 * d * sigma**4 + 4.0 * sigma**2))
    assert abs(found[-1].b_squared - 1.0 - T) < 4.9 * spread  # 1e-6 of a normal law
    rectified = float(np.maximum(norms - d * sigma**2, 1e-6).sum())
    unsubtracted = float(norms.sum())
    for wrong in (rectified, unsubtracted):
        assert abs(wrong - T) > 4.9 * spread


@given(st.floats(0.01, 1e4), st.integers(0, 2_000))
def test_the_weights_start_again_every_195_steps(beta: float, step: int) -> None:
    for rule in (AdaGradNorm(1.0, 1.0, beta), UnsafeRawAdaGradNorm(1.0, 1.0, beta)):
        assert rule.weight(step) == max(beta / ((step % 195) + 1), 1.0)
        assert rule.weight(step) == rule.weight(step + 195)


def test_the_weights_of_a_period() -> None:
    weights = [AdaGradNorm(1.0, 1.0, 4.0).weight(t) for t in (0, 1, 2, 3, 4, 194, 195, 196)]
    assert weights == [4.0, 2.0, 4.0 / 3.0, 1.0, 1.0, 1.0, 4.0, 2.0]
    assert {AdaGradNorm(1.0, 1.0).weight(t) for t in range(400)} == {1.0}
    grown = walk(AdaGradNorm(1.0, 1e-9, 4.0), [(3.0, 1.0), (5.0, 1.0)])
    assert [growth.total for growth in grown] == [0.0, 8.0, 16.0]


def test_a_rule_keeps_nothing_of_a_run() -> None:
    rule = AdaGradNorm(1.0, 0.1, 3.0)
    found = [(5.0, 1.0), (0.5, 1.0), (9.0, 1.0)]
    assert walk(rule, found) == walk(rule, found)
    start = rule.start()
    rule.after(start, 100.0, 0.0)
    assert start == rule.start() == Growth(0, 1.0, 0.0)


@pytest.mark.parametrize("kind", [AdaGradNorm, UnsafeRawAdaGradNorm])
def test_is_a_value(kind: type[AdaGradNorm] | type[UnsafeRawAdaGradNorm]) -> None:
    rule: Any = kind(20.0, 0.5, 3.0)
    assert rule == kind(b0_squared=20, nu=0.5, beta=3)
    assert hash(rule) == hash(kind(20.0, 0.5, 3.0))
    assert repr(rule) == f"{kind.__name__}(b0_squared=20.0, nu=0.5, beta=3.0)"
    assert eval(repr(rule), vars(schedules)) == rule  # noqa: S307 - our own repr
    assert repr(kind(20, 0.5)) == f"{kind.__name__}(b0_squared=20.0, nu=0.5, beta=None)"
    assert pickle.loads(pickle.dumps(rule)) == rule  # noqa: S301 - our own bytes
    assert copy.deepcopy(rule) == rule
    for other in (kind(21.0, 0.5, 3.0), kind(20.0, 0.6, 3.0), kind(20.0, 0.5), kind(20, 0.5, 4)):
        assert rule != other
    for name in ("b0_squared", "nu", "beta", "other"):
        with pytest.raises((FrozenInstanceError, TypeError)):
            setattr(rule, name, 1.0)
    assert isinstance(rule, Reactive)
    assert not isinstance(rule, Schedule)


def test_the_two_rules_are_never_equal() -> None:
    safe: Reactive = AdaGradNorm(20.0, 0.5)
    unsafe: Reactive = UnsafeRawAdaGradNorm(20.0, 0.5)
    assert safe != unsafe


def test_growth_is_frozen() -> None:
    growth: Any = Growth(1, 4.0, 2.0)
    assert growth.b == 2.0
    for name in ("steps", "b_squared", "total", "b"):
        with pytest.raises(AttributeError):
            setattr(growth, name, 1.0)


def test_a_rule_without_a_formula_is_none() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Reactive(1.0, 1.0)  # type: ignore[abstract]


@pytest.mark.parametrize("kind", [AdaGradNorm, UnsafeRawAdaGradNorm])
@pytest.mark.parametrize("name", ["b0_squared", "nu", "beta"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "1", True, 1e-60])
def test_refuses_bad_parameters(kind: type[AdaGradNorm], name: str, value: Any) -> None:
    setting: dict[str, Any] = {"b0_squared": 1.0, "nu": 1.0, name: value}
    with pytest.raises((ValueError, TypeError), match=f"^{name} must be "):
        kind(**setting)


@pytest.mark.parametrize("name", ["b0_squared", "nu"])
def test_only_beta_may_be_left_out(name: str) -> None:
    setting: dict[str, Any] = {"b0_squared": 1.0, "nu": 1.0, name: None}
    with pytest.raises(TypeError, match=f"^{name} must be a positive, finite number, got None"):
        AdaGradNorm(**setting)
