"""The filter against closed forms, mpmath, and adversaries that choose the noise and stop."""

import functools
import itertools
import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.accounting.references import renyi_budget

from dither import accounting
from dither.accounting import BudgetExceededError, Filter, Odometer, order_for
from dither.types import FloatArray

CHARGE = Filter.charge


def sampled_divergence(z: float, q: float, order: int) -> mpmath.mpf:
    """RDP of the Poisson-sampled Gaussian at integer orders: a finite sum (Mironov et al. 2019)."""
    with mpmath.workdps(50):
        mu, rate = 1 / mpmath.mpf(z), mpmath.mpf(q)
        moment = mpmath.fsum(
            mpmath.binomial(order, k)
            * (1 - rate) ** (order - k)
            * rate**k
            * mpmath.exp(mu * mu * k * (k - 1) / 2)
            for k in range(order + 1)
        )
        return mpmath.log(moment) / (order - 1)


def fixed_divergence(z: float, q: float, order: float) -> mpmath.mpf:
    """RDP of a fixed batch: an integral of Balle, Barthe and Gaboardi's pair of laws, by mpmath."""
    with mpmath.workdps(25):
        mu, rate, a = 2 / mpmath.mpf(z), mpmath.mpf(q), mpmath.mpf(order)

        def integrand(x: mpmath.mpf) -> mpmath.mpf:
            w = 1 - rate + rate * mpmath.exp(mu * x - mu * mu / 2)
            return mpmath.npdf(x) * (w**a + w ** (1 - a))

        nodes = [mu / 2 + i * (a * mu + 12) / 12 for i in range(13)]
        atom = (1 - rate) * (2 * mpmath.ncdf(mu / 2) - 1)
        return mpmath.log(mpmath.quad(integrand, nodes) + atom) / (a - 1)


@given(st.floats(0.05, 50.0), st.floats(1e-12, 0.1), st.lists(st.floats(0.3, 1e6), max_size=20))
def test_full_batches_cost_what_the_closed_form_says(
    epsilon: float, delta: float, noise: list[float]
) -> None:
    for sampling, moved in (("poisson", 1), ("fixed", 2)):
        budget = Filter(epsilon, delta, sampling=sampling)
        (a,) = budget.orders
        exact = renyi_budget(epsilon, delta, a)
        assert 0.0 < budget.budgets[0] <= exact
        assert budget.budgets[0] == pytest.approx(float(exact), rel=1e-9)
        total = mpmath.mpf(0)
        for z in noise:
            cost = a * (moved / mpmath.mpf(z)) ** 2 / 2
            if total + cost > exact * (1 - 1e-8):
                continue
            budget.charge(z, 1.0)
            total += cost
            assert budget.spent[0] >= total
        assert budget.spent[0] == pytest.approx(float(total), rel=1e-9)
        assert budget.remaining[0] == budget.budgets[0] - budget.spent[0]


# At order 100 and more the far end of the tilted law, where Gaussian densities underflow, decides.
@pytest.mark.parametrize("order", [2, 3, 9, 32, 100, 200])
def test_the_cost_is_an_upper_bound_and_close(order: int) -> None:
    for q in (0.3, 0.01, 1e-3, 1e-6):
        turn = math.sqrt((order - 1) / (2.0 * math.log(1.0 / q)))  # where the two ends weigh alike
        for z in (*np.linspace(0.97, 1.05, 9) * turn, 0.5 * turn, 3.0 * turn, 30.0 * turn):
            odometer = Odometer(1e-5, orders=[order])
            odometer.charge(float(z), q)
            exact = sampled_divergence(float(z), q, order)
            assert odometer.spent[0] >= exact
            assert odometer.spent[0] <= exact * (1 + 1e-9) + 1e-10 / (order - 1)


@pytest.mark.parametrize("order", [1.3, 9.0, 128.0])
def test_the_cost_of_fixed_batches_is_an_upper_bound_and_close(order: float) -> None:
    for z, q in ((1.0 if order < 100.0 else 6.0, 0.01), (6.1, 1e-3), (20.0, 0.3)):
        odometer = Odometer(1e-5, orders=[order], sampling="fixed")
        odometer.charge(z, q)
        exact = fixed_divergence(z, q, order)
        assert odometer.spent[0] >= exact
        assert odometer.spent[0] <= exact * (1 + 1e-9) + 1e-10 / (order - 1)


def test_the_smallest_noise_costs_no_less_than_it_should() -> None:
    for order in (1.001, 2.0, 50.0):
        odometer = Odometer(1e-5, orders=[order])
        odometer.charge(0.02, 0.01)
        with mpmath.workdps(40):  # (u + v)^a ≥ u^a + v^a, and (1 − q)^a ≥ 1 − q·a
            far = mpmath.mpf("0.01") ** order * mpmath.exp(order * (order - 1) * 1250)
            least = mpmath.log(1 - 0.01 * order + far) / (order - 1)
        assert odometer.spent[0] >= least


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("orders", [None, [6.0], [3.0, 6.0, 12.0]])
@pytest.mark.parametrize("q", [1.0, 0.2, 0.003])
def test_affordable_is_admitted_and_tight(
    sampling: str, orders: list[float] | None, q: float
) -> None:
    for epsilon, steps in itertools.product((1.5 if orders is None else 6.0, 9.0), (1, 37)):
        budget = Filter(epsilon, 1e-5, orders=orders, sampling=sampling)
        budget.charge(3.0 * budget.affordable(q), q)
        z = budget.affordable(q, steps=steps)
        for _ in range(steps - 1):
            budget.charge(z, q)
        with pytest.raises(BudgetExceededError):
            budget.charge(z * 0.999 if steps == 1 else z * 0.96, q)
        budget.charge(z, q)
        assert budget.affordable(q) > 500.0 * z


def test_many_equal_steps_fill_the_budget() -> None:
    budget = Filter(1.0, 1e-6)
    z = budget.affordable(0.02, steps=5_000)
    for _ in range(5_000):
        budget.charge(z, 0.02)
    assert budget.remaining[0] < 1e-7 * budget.budgets[0]
    cheaper = Filter(1.0, 1e-6)
    for _ in range(4_980):
        cheaper.charge(0.999 * z, 0.02)
    assert cheaper.affordable(0.02, steps=20) > z


def test_vast_noise_costs_almost_nothing() -> None:
    for q in (1e-3, 1.0):
        budget = Filter(0.1, 1e-8)
        costs = []
        for z in (1e6, 1e9, 1e50):
            before = budget.spent[0]
            for _ in range(1_000):
                budget.charge(z, q)
            costs.append(budget.spent[0] - before)
        assert 0.0 < costs[0] <= 1_000 * budget.orders[0] / 2e12 * (1 + 1e-9)
        assert max(costs[1:]) < 1e-3 * costs[0]


def test_nothing_left_is_infinite() -> None:
    budget = Filter(1.0, 1e-5)
    for _ in range(60):
        z = budget.affordable(1.0)
        if z == math.inf:
            break
        budget.charge(z, 1.0)
    assert z == math.inf
    with pytest.raises(BudgetExceededError, match="none is left$"):
        budget.charge(1e50, 1.0)
    assert budget.spent[0] <= budget.budgets[0]


def test_a_generous_budget_affords_the_least_noise() -> None:
    budget = Filter(1e6, 1e-5)
    assert budget.affordable(0.5) == 0.02
    budget.charge(0.02, 0.5)


Choice = tuple[float, float, str, float | None]
SETTINGS: list[Choice] = [
    (0.3, 1e-5, "poisson", None),
    (1.0, 1e-5, "poisson", None),
    (3.0, 1e-6, "fixed", None),
    (8.0, 1e-9, "poisson", 3.7),
]


def adaptive_run(settings: Choice, random: np.random.Generator) -> tuple[float, list[float]]:
    """Charge full batches whose noise follows the outcomes; return the order and what was run."""
    epsilon, delta, sampling, order = settings
    orders = None if order is None else [order]
    budget = Filter(epsilon, delta, orders=orders, sampling=sampling)
    scale = 6.0 / epsilon * random.uniform(0.3, 3.0)
    run: list[float] = []
    state, refused = 0.0, 0
    while refused < 2 and len(run) < 30:
        z = scale * math.exp(0.5 * math.tanh(state) - 0.02 * len(run))
        if state > 2.0 and refused:
            z = min(budget.affordable(1.0), 1e9) * random.choice([0.999, 1.0, 1.001])
        try:
            budget.charge(z, 1.0)
        except BudgetExceededError:
            refused, state = refused + 1, state + 2.0
            continue
        run.append(z)
        state = 0.7 * state + random.standard_normal() + 1.0 / z
    return budget.orders[0], run


def passes(settings: Choice, order: float, run: list[float]) -> bool:
    """Whether the run costs more than ε allows, by the closed form of full batches."""
    epsilon, delta, sampling, _ = settings
    moved = 2.0 if sampling == "fixed" else 1.0
    spent = math.fsum(order * (moved / z) ** 2 / 2.0 for z in run)
    return spent > allowed(epsilon, delta, order)


@functools.cache
def allowed(epsilon: float, delta: float, order: float) -> float:
    return float(renyi_budget(epsilon, delta, order))


def passing_runs(number: int) -> int:
    random = np.random.default_rng(20)
    found = 0
    for index in range(number):
        settings = SETTINGS[index % len(SETTINGS)]
        found += passes(settings, *adaptive_run(settings, random))
    return found


def test_ten_thousand_adaptive_runs_keep_the_budget() -> None:
    assert passing_runs(10_000) == 0


def test_the_adaptive_runs_come_close_to_the_budget() -> None:
    random = np.random.default_rng(21)
    shares = []
    for settings in SETTINGS * 25:
        order, run = adaptive_run(settings, random)
        moved = 2.0 if settings[2] == "fixed" else 1.0
        spent = math.fsum(order * (moved / z) ** 2 / 2.0 for z in run)
        shares.append(spent / allowed(settings[0], settings[1], order))
    assert np.mean(np.array(shares) > 0.95) > 0.3


def charge_the_previous(self: Filter, noise_multiplier: float, sample_rate: float) -> None:
    """An off-by-one: what is counted, and refused, is the step before."""
    CHARGE(self, self.__dict__.get("last", 1e6), sample_rate)
    self.__dict__["last"] = noise_multiplier


def fits_before(self: Filter, spent: FloatArray) -> bool:
    """Another: a step is admitted if budget is left before it, not after it."""
    return bool((self._spent <= self._budgets).any())


@pytest.mark.parametrize(
    ("name", "planted"), [("charge", charge_the_previous), ("_fits", fits_before)]
)
def test_the_runs_catch_an_off_by_one(
    name: str, planted: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Filter, name, planted)
    assert passing_runs(400) > 100


@pytest.mark.parametrize(("sampling", "q"), [("poisson", 0.02), ("poisson", 1.0), ("fixed", 0.02)])
@pytest.mark.parametrize("shares", [(1.0,), (0.9, 1.2, 1.8)])
def test_fixed_charges_keep_the_certified_epsilon(
    sampling: str, q: float, shares: tuple[float, ...]
) -> None:
    for seed, epsilon in enumerate((2.0, 6.0)):
        random = np.random.default_rng(seed)
        orders = np.array(shares) * Filter(epsilon, 1e-5).orders[0]
        budget = Filter(epsilon, 1e-5, orders=orders, sampling=sampling)
        start = budget.affordable(q, steps=1_000)
        run: list[float] = []
        for z in start * random.choice([0.95, 1.0, 1.2], 3_000):
            try:
                budget.charge(float(z), q)
            except BudgetExceededError:
                break
            run.append(float(z))
        run.append(budget.affordable(q))
        budget.charge(run[-1], q)
        bound = accounting.epsilon(run, sample_rate=q, delta=1e-5, sampling=sampling)
        assert bound.is_upper_bound
        assert 0.5 * epsilon < bound.epsilon <= epsilon
        wrong = accounting.epsilon(run * 3, sample_rate=q, delta=1e-5, sampling=sampling)
        assert wrong.lower is not None
        assert wrong.lower > epsilon


GAME = {"epsilon": 1.0, "delta": 0.05, "sample_rate": 0.3}
GAME_NOISE = (0.5, 1.2, 3.0)
LOSSES = np.linspace(-6.0, 14.0, 1_001)


def best_adversary(orders: list[float], kind: str, *, one_too_many: bool = False) -> float:
    """δ at ε of the adversary who sees every privacy loss and chooses the next noise by it.

    Backwards over all multisets of steps that the filter admits: the worst expectation of
    (1 − e^(ε−L))₊ given the loss so far, on a grid of losses.
    """
    q = GAME["sample_rate"]
    x = np.linspace(-9.0, 11.0, 101)
    density = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi) * (x[1] - x[0])
    laws = []
    for z in GAME_NOISE:
        w = 1.0 - q + q * np.exp(x / z - 0.5 / z**2)
        laws.append((np.log(w), density * w) if kind == "remove" else (-np.log(w), density))

    @functools.cache
    def admitted(counts: tuple[int, ...]) -> bool:
        """Whether some order of these steps is admitted: they add up, so that any is or none."""
        budget = Filter(GAME["epsilon"], GAME["delta"], orders=orders)
        try:
            for z, count in zip(GAME_NOISE, counts, strict=True):
                for _ in range(count):
                    budget.charge(z, q)
        except BudgetExceededError:
            return False
        return True

    @functools.cache
    def worst(counts: tuple[int, ...], over: bool) -> FloatArray:
        best = np.maximum(0.0, -np.expm1(GAME["epsilon"] - LOSSES))
        for index, (loss, weight) in enumerate(laws):
            more = tuple(c + (i == index) for i, c in enumerate(counts))
            fits = admitted(more)
            if over or not (fits or one_too_many):
                continue
            then = worst(more, not fits)
            expected = np.interp(LOSSES[:, None] + loss, LOSSES, then) @ weight
            best = np.maximum(best, expected)
        return best

    return float(np.interp(0.0, LOSSES, worst((0, 0, 0), False)))


@pytest.mark.parametrize("orders", [[6.0], [4.0, 9.0], [3.5, 7.0, 14.0]])
def test_no_adversary_beats_the_filter(
    orders: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Filter, "affordable", lambda self, q: math.inf)  # of messages only
    for kind in ("remove", "add"):
        assert 1e-4 < best_adversary(orders, kind) <= GAME["delta"]
    assert best_adversary(orders, "remove", one_too_many=True) > GAME["delta"]


def test_a_refusal_changes_nothing() -> None:
    budget = Filter(3.0, 1e-5, orders=[6.0, 10.0])
    budget.charge(1.5, 0.1)
    before = (budget.spent, budget.remaining, budget.affordable(0.1))
    message = "^a step with noise_multiplier 0.3 at sample_rate 0.1 would pass the budget ε = 3, "
    for _ in range(3):
        with pytest.raises(BudgetExceededError, match=message) as refusal:
            budget.charge(0.3, 0.1)
        assert isinstance(refusal.value, RuntimeError)
        assert "\n" not in str(refusal.value)
    with pytest.raises(ValueError, match="sample_rate must be"):
        budget.charge(1.5, 0.0)
    assert (budget.spent, budget.remaining, budget.affordable(0.1)) == before
    least = float(str(refusal.value).rsplit(" ", 1)[1])
    budget.charge(least, 0.1)


def test_an_order_that_was_passed_stays_passed() -> None:
    budget = Filter(4.0, 1e-5, orders=[4.0, 40.0])
    budget.charge(0.8, 0.05)
    assert budget.remaining[1] == 0.0 < budget.remaining[0]
    assert budget.spent[1] > budget.budgets[1]
    while budget.affordable(0.05) < 50.0:
        budget.charge(budget.affordable(0.05, steps=3), 0.05)
    assert budget.spent[0] <= budget.budgets[0]


def test_several_orders_split_delta() -> None:
    orders = [6.0, 8.0, 16.0]
    budget = Filter(3.0, 3e-5, orders=orders)
    for a, rho in zip(orders, budget.budgets, strict=True):
        assert rho == pytest.approx(float(renyi_budget(3.0, 1e-5, a)), rel=1e-9)


def test_the_default_order_affords_the_most_large_noise() -> None:
    for epsilon, delta in ((0.01, 1e-5), (1.0, 1e-5), (8.0, 1e-6), (100.0, 1e-9)):
        best = Filter(epsilon, delta)
        for a in 1.0 + np.geomspace(1e-3, 1e4, 200):
            if renyi_budget(epsilon, delta, a) > 0:
                other = Filter(epsilon, delta, orders=[a])
                assert other.budgets[0] / a <= best.budgets[0] / best.orders[0] * 1.001


def test_the_planned_order_is_as_good_as_any() -> None:
    for epsilon, q, steps, sampling in ((1.0, 0.001, 3_000, "poisson"), (4.0, 0.05, 200, "fixed")):
        order = order_for(epsilon, 1e-5, steps=steps, sample_rate=q, sampling=sampling)
        planned, default = (
            Filter(epsilon, 1e-5, orders=orders, sampling=sampling) for orders in ([order], None)
        )
        z = planned.affordable(q, steps=steps)
        assert z <= default.affordable(q, steps=steps)
        for a in 1.0 + (order - 1.0) * np.geomspace(0.4, 2.5, 9):
            if renyi_budget(epsilon, 1e-5, a) > 0:
                other = Filter(epsilon, 1e-5, orders=[a], sampling=sampling)
                assert z <= other.affordable(q, steps=steps) * 1.002


def test_settings_are_read_only_and_the_bound_describes_them() -> None:
    budget = Filter(2.0, 1e-5, sampling="fixed")
    for name in ("epsilon", "delta", "orders", "sampling", "budgets", "spent", "remaining"):
        with pytest.raises(AttributeError):
            setattr(budget, name, 1.0)
    assert (budget.epsilon, budget.delta, budget.sampling) == (2.0, 1e-5, "fixed")
    assert (budget.bound.epsilon, budget.bound.accountant) == (2.0, "filter")
    assert budget.bound.adjacency == "replace-one"


def test_bad_input_is_one_line_with_the_name() -> None:
    budget, odometer = Filter(1.0, 1e-5), Odometer(1e-5)
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: Filter(0.0, 1e-5), "epsilon must be a positive, finite number, got 0.0"),
        (lambda: Filter(1.0, 1.0), "delta must be strictly between 0 and 1, got 1.0"),
        (lambda: Filter(1e-9, 1e-9), "epsilon must be above .* at delta = 1e-09, got 1e-09"),
        (lambda: Filter(1.0, 1e-5, orders=[]), "orders must be a list of at least one number, .*"),
        (lambda: Filter(1.0, 1e-5, orders=[1.0]), r"orders\[0\] must be from 1.000001 to .* 1"),
        (lambda: Filter(1.0, 1e-5, orders=[20, 2]), r"orders\[1\] must leave a budget at .* got 2"),
        (lambda: Filter(1.0, 1e-5, orders=[20, 20]), "orders must be different, got .*"),
        (lambda: Filter(1.0, 1e-5, orders=[math.nan]), r"orders\[0\] must be .*, got nan"),
        (lambda: Filter(1.0, 1e-5, sampling="shuffle"), "sampling must be one of .* 'shuffle'"),
        (lambda: budget.charge(0.0, 0.1), "noise_multiplier must be a positive, .*, got 0.0"),
        (lambda: budget.charge(0.01, 0.1), "noise_multiplier must be at least 0.02, got 0.01"),
        (lambda: budget.charge(1.0, 1.5), "sample_rate must be above 0 and at most 1, got 1.5"),
        (lambda: budget.affordable(0.0), "sample_rate must be above 0 and at most 1, got 0.0"),
        (lambda: budget.affordable(0.1, steps=0), "steps must be an integer of .*, got 0"),
        (lambda: Odometer(0.0), "delta must be strictly between 0 and 1, got 0.0"),
        (lambda: Odometer(1e-5, orders=[1e6]), r"orders\[0\] must be from .* to .*, got 1e\+06"),
        (lambda: Odometer(1e-5, sampling="full"), "sampling must be one of .*, got 'full'"),
        (lambda: odometer.charge(math.inf, 0.1), "noise_multiplier must be a positive, .* inf"),
        (lambda: odometer.charge(1.0, -0.1), "sample_rate must be .*, got -0.1"),
        (
            lambda: order_for(1.0, 1e-5, steps=0, sample_rate=0.1),
            "steps must be an integer of at least 1, got 0",
        ),
    ]
    for call, message in calls:
        with pytest.raises(ValueError, match=f"^{message}$"):
            call()
    with pytest.raises(TypeError, match="^noise_multiplier must be .*, got '1' \\(str\\)$"):
        budget.charge("1", 0.1)  # type: ignore[arg-type]
    assert budget.spent == (0.0,)
    assert odometer.epsilon() == 0.0
