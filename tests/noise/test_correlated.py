"""Correlated noise against dense matrices, and that its plans meet their budgets."""

import json
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import solve_triangular

import dither
from dither import Plan, accounting
from dither.accounting.cyclic import cycle_rate
from dither.noise import Budget, Correlated, Optimal
from dither.noise.correlated import (
    Design,
    _coefficients,
    _gram,
    _log_error,
    check_coefficients,
    column_norms,
    error,
    inverse,
)
from dither.noise.iterates import iterate_variances
from dither.noise.workload import Workload
from dither.schedules import Linear
from dither.types import FloatArray

DELTA = 1e-5
UNEQUAL = np.array([1.0, 0.3, 0.9, 0.2, 0.7, 0.05, 0.6])
WORKLOADS = [
    (momentum, contraction, eta)
    for momentum in (0.0, 0.9)
    for contraction in (0.0, 0.03, 0.7)
    for eta in (np.ones(7), UNEQUAL, 5.0 * UNEQUAL[::-1])
]
every_workload = pytest.mark.parametrize(("momentum", "contraction", "eta"), WORKLOADS)


def dense_workload(eta: FloatArray, momentum: float, contraction: float) -> FloatArray:
    """Return AᵀA/T, column t of A being what descent makes of noise 1 at step t."""
    T, eta = eta.size, eta / eta.max()
    A = np.zeros((T, T))
    for t in range(T):
        position = velocity = 0.0
        for k in range(T):
            velocity = momentum * velocity + float(k == t)
            position = (1.0 - contraction * eta[k]) * position + eta[k] * velocity
            A[k, t] = position
    return np.asarray(A.T @ A / T)


def dense_bands(coefficients: tuple[float, ...], steps: int) -> FloatArray:
    """Return B of unit columns."""
    B = sum(c * np.eye(steps, k=-s) for s, c in enumerate(coefficients))
    return np.asarray(B / np.linalg.norm(B, axis=0))


def dense_error(W: FloatArray, design: Design) -> float:
    B = dense_bands(design.coefficients, len(W))
    noise = design.alphas[:, None] * solve_triangular(B, np.eye(len(W)), lower=True)
    return float(np.sum(W * (noise @ noise.T)))


@every_workload
def test_the_workload_is_that_of_descent(
    momentum: float, contraction: float, eta: FloatArray
) -> None:
    W = dense_workload(eta, momentum, contraction)
    found = Workload.of(eta, momentum=momentum, contraction=contraction, lags=5)
    assert found.steps == eta.size
    diagonals = [*found.diagonals()]
    assert len(diagonals) == 5
    for lag, diagonal in enumerate(diagonals):
        assert_allclose(diagonal, np.diag(W, lag), rtol=1e-12)
    assert Workload.of(eta, momentum=momentum, contraction=contraction, lags=100).lags == 7


@every_workload
def test_errors_are_those_of_dense_matrices(
    momentum: float, contraction: float, eta: FloatArray
) -> None:
    W = dense_workload(eta, momentum, contraction)
    workload = Workload.of(eta, momentum=momentum, contraction=contraction, lags=eta.size)
    scale = np.linspace(0.5, 2.0, eta.size)
    for theta in ((1.0,), (1.0, 0.6), (1.0, 0.5, -0.3, 0.2)):
        r = inverse(theta, eta.size)
        noise = scale[:, None] * sum(c * np.eye(eta.size, k=-s) for s, c in enumerate(r))
        covariance = noise @ noise.T
        expected = float(np.sum(W * covariance))
        assert_allclose(r @ workload.gram(scale) @ r, expected, rtol=1e-12)
        pulled = (W * covariance) @ np.ones(eta.size) / scale
        assert_allclose(workload.pull(scale, r), pulled, rtol=1e-12)
        design = Design(scale, theta)
        assert_allclose(error(workload, design), dense_error(W, design), rtol=1e-12)


def test_few_lags_are_enough_where_the_inverse_dies_out() -> None:
    eta, theta = np.linspace(1.0, 0.01, 80), (1.0, 0.5)
    W = dense_workload(eta, 0.5, 0.03)
    cut = Workload.of(eta, momentum=0.5, contraction=0.03, lags=40)
    design = Design(np.linspace(1.0, 3.0, 80), theta)
    # The rest of the inverse is 2^(−40), and W[t, s] is at most as large as W[t, t].
    assert_allclose(error(cut, design), dense_error(W, design), rtol=1e-9)


def test_bands_have_unit_columns_and_the_inverse_of_the_stream() -> None:
    theta, T = (1.0, 0.6, 0.5, -0.2), 9
    norms = column_norms(theta, T)
    B = sum(c * np.eye(T, k=-s) for s, c in enumerate(theta)) / norms
    assert_allclose(np.linalg.norm(B, axis=0), 1.0, rtol=1e-15)
    streamed = norms[:, None] * sum(c * np.eye(T, k=-s) for s, c in enumerate(inverse(theta, T)))
    assert_allclose(streamed @ B, np.eye(T), atol=1e-14)
    assert_allclose(column_norms(theta, 2), np.sqrt([1.36, 1.0]))


def test_the_gradient_of_the_search() -> None:
    workload = Workload.of(UNEQUAL, momentum=0.4, contraction=0.1, lags=7)
    function = _log_error(workload.gram(np.linspace(1.0, 2.0, 7)), bands=4)
    for x in (np.array([12.0, 9.0, 7.0]), np.array([-5.0, 3.0, 20.0])):
        value, gradient = function(x)
        differences = [
            (function(x + step)[0] - function(x - step)[0]) / 2e-3 for step in 1e-3 * np.eye(3)
        ]
        # A step of h leaves about h² + 1e-16/h of the derivative.
        assert_allclose(gradient, differences, rtol=1e-6, atol=1e-9)
        assert np.isfinite(value)


@pytest.mark.parametrize("bands", [2, 3, 4, 8])
@pytest.mark.parametrize(("momentum", "contraction"), [(0.0, 0.0), (0.0, 0.03), (0.9, 0.03)])
def test_the_coefficients_are_a_minimum(bands: int, momentum: float, contraction: float) -> None:
    eta = Linear(1.0, 0.01).stepsizes(120)
    H = Workload.of(eta, momentum=momentum, contraction=contraction, lags=120).gram(np.ones(120))

    def at(theta: FloatArray) -> float:
        r = inverse(tuple(theta), 120)
        return float(theta @ theta * (r @ H @ r))

    theta, least = _coefficients(H, bands)
    best = np.array(theta)
    assert theta[0] == 1.0
    assert len(theta) == bands
    assert_allclose(at(best), least, rtol=1e-12)
    assert least < H[0, 0]  # that of independent noise
    check_coefficients(theta, 5_000)
    random = np.random.default_rng(0)
    for size in (1e-3, 1e-2, 0.1):
        for _ in range(5):
            direction = random.standard_normal(bands)
            direction[0] = 0.0
            tried = best + size * direction / np.linalg.norm(direction)
            assert at(tried) >= least * (1.0 - 1e-6)
            assert at(tried) > least or size < 0.1


def test_a_search_that_goes_too_far_comes_back() -> None:
    # 1/(1 + θ·x) grows without bounds for θ > 1; warnings of overflows are errors here.
    function = _log_error(np.diag(np.linspace(1.0, 0.1, 512)), bands=2)
    for theta in (1.5, -3.0, 1e6):
        value, gradient = function(np.array([20.0 * theta]))
        assert value >= 1e3
        assert not gradient.any()


@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.999])
@pytest.mark.parametrize("contraction", [0.0, 0.03])
def test_what_happens_beyond_the_lags_is_not_exploited(momentum: float, contraction: float) -> None:
    # With momentum, noise that sums to 0 within the lags and grows after them seemed best.
    T = 1_000
    noise = Correlated(momentum=momentum, contraction=contraction)
    cut, full = noise.workload(np.ones(T), 256), noise.workload(np.ones(T), T)
    scale = np.linspace(1.0, 3.0, T)
    for bands in (2, 8):
        design = Design(scale, _coefficients(_gram(cut, scale), bands)[0])
        best = Design(scale, _coefficients(_gram(full, scale), bands)[0])
        assert_allclose(error(cut, design), error(full, design), rtol=1e-3)
        assert error(full, design) <= 1.01 * error(full, best)
        check_coefficients(design.coefficients, 5_000)


def budget_of(epsilon: float, sample_rate: float) -> Budget:
    return Budget(epsilon, DELTA, sample_rate)


# Step sizes, ε and q; then how many bands are best, 1 where none are.
CELLS = {
    "small noise": (np.ones(50), 8.0, 0.05, {4}),
    "shaped": (np.linspace(1.0, 0.05, 60), 8.0, 0.05, {16}),
    "little to gain": (np.ones(200), 3.0, 0.05, {1}),
    "headroom that cannot be used": (np.ones(200), 2.0, 0.05, {1}),
    "large noise": (np.linspace(1.0, 0.05, 100), 0.3, 0.1, {1}),
    "rate of 1/2": (np.ones(20), 1.0, 0.5, {1}),
    "full batch": (np.ones(20), 8.0, 1.0, {1}),
}


@pytest.mark.parametrize("cell", CELLS)
def test_never_worse_than_optimal_noise(cell: str) -> None:
    eta, epsilon, q, expected = CELLS[cell]
    budget = budget_of(epsilon, q)
    design = Correlated().design(eta, budget=budget)
    assert (1 if design is None else len(design.coefficients)) in expected
    if design is None:
        return
    T, b = eta.size, len(design.coefficients)
    assert design.alphas.size == T
    cycles = np.arange(T) // b
    assert (design.alphas == design.alphas[cycles * b]).all()
    W = dense_workload(eta, 0.0, 0.03)
    optimal = Design(Optimal().alphas(eta, budget=budget), (1.0,))
    assert dense_error(W, design) < 0.9 * dense_error(W, optimal)
    # Up to a scale very close to 1, it meets the budget.
    spent = accounting.epsilon(
        design.alphas, sample_rate=q, delta=DELTA, sampling="cyclic", bands=b
    )
    assert 0.98 * epsilon <= spent.epsilon <= 1.005 * epsilon


def test_close_numbers_of_bands_get_a_schedule_each(monkeypatch: pytest.MonkeyPatch) -> None:
    eta, budget = np.linspace(1.0, 0.05, 96), replace(budget_of(8.0, 0.05), accountant="gdp")
    errors = {}
    workload = Correlated().workload(eta)
    for b in (2, 4, 8, 16):
        design = Correlated(bands=b).design(eta, budget=budget)
        assert design is not None
        errors[b] = error(workload, design)
    best = min(errors, key=lambda b: errors[b])
    for close in (1.0, 100.0):
        monkeypatch.setattr("dither.noise.correlated._CLOSE", close)
        chosen = Correlated().design(eta, budget=budget)
        assert chosen is not None
        assert len(chosen.coefficients) == best


SETTING: dict[str, Any] = {
    "epsilon": 8.0,
    "delta": DELTA,
    "dataset_size": 1_000,
    "batch_size": 50,
    "steps": 51,
}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return dither.plan(noise="correlated", stepsizes=Linear(1.0, 0.2), **SETTING)


def test_a_plan_meets_its_budget(plan: Plan) -> None:
    assert plan.bands == 8
    assert plan.sampling == "cyclic"
    assert plan.charge_rate == pytest.approx(0.4)
    assert 0.995 * 8.0 <= plan.bound.epsilon <= 8.0
    exact = accounting.epsilon(plan.charges, sample_rate=0.4, delta=DELTA, tolerance=1e-4)
    assert exact.lower is not None
    assert exact.lower <= plan.bound.epsilon
    assert 0.99 * 8.0 <= exact.epsilon <= 8.0
    # 51 steps are six cycles of 8 and 3 steps: the other subsets have one step less.
    subsets = [
        accounting.epsilon(z, sample_rate=0.4, delta=DELTA).epsilon
        for z in (plan.noise_multipliers[j::8] for j in (0, 2, 3))
    ]
    assert subsets[0] == subsets[1] == plan.bound.epsilon
    assert subsets[2] < plan.bound.epsilon


@pytest.mark.filterwarnings("ignore:correlated noise of 2 bands")
@pytest.mark.parametrize("accountant", ["gdp", "theorem"])
def test_other_accountants_have_designs_of_their_own(accountant: str) -> None:
    made = dither.plan(noise=Correlated(bands=2), accountant=accountant, **SETTING)
    assert made.bands == 2
    assert 0.995 * 8.0 <= made.bound.epsilon <= 8.0


def test_all_records_of_a_subset_may_be_drawn() -> None:
    made = dither.plan(noise=Correlated(bands=20), **SETTING)
    assert made.charge_rate == 1.0
    assert 0.995 * 8.0 <= made.bound.epsilon <= 8.0


@pytest.mark.parametrize("cell", ["headroom that cannot be used", "full batch"])
def test_where_correlation_does_not_pay_the_plan_has_optimal_noise(cell: str) -> None:
    eta, epsilon, q, _ = CELLS[cell]
    setting: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": DELTA,
        "dataset_size": 1_000,
        "batch_size": round(1_000 * q),
        "steps": eta.size,
        "stepsizes": eta,
    }
    gains_nothing = "correlated noise gains nothing over optimal noise"
    with pytest.warns(UserWarning, match=gains_nothing) as seen:
        made = dither.plan(noise="correlated", **setting)
    assert [each.filename for each in seen] == [__file__]
    assert made.correlation is None
    assert made.sampling == "poisson"
    assert made == dither.plan(noise="optimal", **setting)


@pytest.mark.parametrize(("bands", "epsilon"), [(2, 1.0), (4, 1.0), (2, 8.0), (4, 8.0)])
def test_given_bands_that_gain_nothing_are_warned_of(bands: int, epsilon: float) -> None:
    setting = {**SETTING, "epsilon": epsilon, "batch_size": 100}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        made = dither.plan(noise=Correlated(bands=bands), **setting)
    assert made.bands == bands
    variance, optimal, usual = (
        float(np.mean(iterate_variances(each.stepsizes, each.noise_multipliers, correlation=theta)))
        for each, theta in (
            (made, made.correlation),
            (dither.plan(noise="optimal", **setting), None),
            (dither.plan(noise="uniform", **setting), None),
        )
    )
    assert bool(seen) == (variance > min(optimal, usual)) == (epsilon == 1.0)
    for warning in seen:
        assert warning.filename == __file__
        figures = [float(found) for found in re.findall(r"([\d.]+) times", str(warning.message))]
        assert figures == pytest.approx([variance / usual, optimal / usual], rel=0.02)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dither.plan(noise=Correlated(), **{**setting, "epsilon": 8.0})


def test_a_plan_survives_json(plan: Plan) -> None:
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.correlation == plan.correlation
    assert again.bound == plan.bound


def test_the_fingerprint_covers_the_correlation(plan: Plan) -> None:
    assert plan.correlation is not None
    changed = replace(plan, correlation=(*plan.correlation[:-1], plan.correlation[-1] + 1e-12))
    assert changed.fingerprint != plan.fingerprint
    fields = json.loads(plan.to_json())
    fields["correlation"][1] *= 0.5
    with pytest.raises(ValueError, match="its fingerprint does not match"):
        Plan.from_json(json.dumps(fields))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Correlated(bands=0), 'bands must be "auto" or an integer of at least 2, got 0'),
        (lambda: Correlated(bands=1), 'bands must be "auto" or an integer of at least 2, got 1'),
        (
            lambda: Correlated(bands="many"),
            "bands must be \"auto\" or an integer of at least 2, got 'many'",
        ),
        (
            lambda: Correlated(bands=cast(int, 1.5)),
            'bands must be "auto" or an integer of at least 2, got 1.5',
        ),
        (
            lambda: Correlated(bands=True),
            'bands must be "auto" or an integer of at least 2, got True',
        ),
        (lambda: Correlated(momentum=1.0), "momentum must be below 1, got 1.0"),
        (lambda: Correlated(momentum=-0.1), "momentum must be a finite number of at least 0"),
        (lambda: Correlated(contraction=1), "contraction must be below 1, got 1"),
        (lambda: Correlated(contraction=-0.1), "contraction must be a finite number of at least 0"),
        (
            lambda: Correlated(contraction=float("nan")),
            "contraction must be a finite number of at least 0, got nan",
        ),
        (
            lambda: Correlated(bands=21).design(np.ones(50), budget=budget_of(1.0, 0.05)),
            "bands must be at most n/m = 20 and at most the number of steps, 50, got 21",
        ),
        (
            lambda: Correlated(bands=8).design(np.ones(7), budget=budget_of(1.0, 0.05)),
            "bands must be at most n/m = 20 and at most the number of steps, 7, got 8",
        ),
        (
            lambda: Correlated().design([1.0, -1.0], budget=budget_of(1.0, 0.05)),
            r"stepsizes\[1\] must be positive and finite, got -1.0",
        ),
        (
            lambda: dither.plan(noise="correlated", sampling="fixed", **SETTING),
            "sampling must be poisson or cyclic for correlated noise, got 'fixed'",
        ),
        (
            lambda: dither.plan(noise="optimal", sampling="cyclic", **SETTING),
            "sampling must be poisson or fixed for noise that is not correlated, got 'cyclic'",
        ),
    ],
)
def test_refusals(make: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_given_coefficients_must_have_an_inverse_that_does_not_grow() -> None:
    def made(*correlation: float) -> Plan:
        return Plan.from_noise_multipliers(
            [1.0] * 8, delta=DELTA, dataset_size=1_000, batch_size=10, correlation=correlation
        )

    assert made(1.0, 0.5).bands == 2
    assert made(1.0, -1.0).bands == 2  # a sum of all noise so far, which does not grow
    with pytest.raises(ValueError, match="inverse that does not grow, .* whose inverse reaches"):
        made(1.0, 1.2)
    with pytest.raises(ValueError, match="inverse that does not grow"):
        made(1.0, -2.5, 1.0)
    for wrong in ((1.0,), (2.0, 1.0), ()):
        with pytest.raises(ValueError, match="correlation must be "):
            made(*wrong)
    with pytest.raises(ValueError, match="correlation must be numbers, got 1 NaN"):
        made(1.0, float("nan"))


def test_cyclic_steps_cost_the_composition_of_their_cycles() -> None:
    z = np.linspace(1.5, 3.0, 11)
    for b, charges in ((2, z[::2]), (3, z[::3])):
        found = accounting.epsilon(z, sample_rate=0.01, delta=DELTA, sampling="cyclic", bands=b)
        composed = accounting.epsilon(charges, sample_rate=cycle_rate(0.01, b), delta=DELTA)
        assert found == replace(composed, sampling="cyclic")
        at_delta = accounting.delta(z, sample_rate=0.01, epsilon=1.0, sampling="cyclic", bands=b)
        composed = accounting.delta(charges, sample_rate=cycle_rate(0.01, b), epsilon=1.0)
        assert at_delta == replace(composed, sampling="cyclic")
    # Never below what the subsets cost, z rising in each cycle.
    subsets = [accounting.epsilon(z[j::3], sample_rate=0.03, delta=DELTA).epsilon for j in range(3)]
    assert found.epsilon >= max(subsets)
    with pytest.raises(ValueError, match="bands must be at most 1/sample_rate = 2.5, got 3"):
        accounting.epsilon(z, sample_rate=0.4, delta=DELTA, sampling="cyclic", bands=3)
    with pytest.raises(ValueError, match="bands must be None unless sampling is cyclic, got 3"):
        accounting.epsilon(z, sample_rate=0.1, delta=DELTA, bands=3)


def test_an_inverse_that_grows_slowly_is_refused_for_many_steps() -> None:
    def made(steps: int) -> dither.Plan:
        return dither.Plan.from_noise_multipliers(
            np.ones(steps), delta=1e-5, dataset_size=1000, batch_size=10, correlation=[1.0, 1.005]
        )

    assert made(100).bands == 2
    with pytest.raises(ValueError, match="correlation must have an inverse that does not grow"):
        made(3000)


@pytest.mark.parametrize("bands", [None, 1])
def test_cyclic_sampling_needs_its_bands(bands: int | None) -> None:
    with pytest.raises(ValueError, match="bands must be at least 2 under cyclic sampling"):
        accounting.epsilon([1.0] * 8, sample_rate=0.01, delta=1e-5, sampling="cyclic", bands=bands)
