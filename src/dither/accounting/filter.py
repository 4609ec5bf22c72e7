"""Noise chosen while training: a filter that certifies a budget, and an odometer that reads ε.

Let P and Q be the laws of all releases on two neighbouring datasets, L_t = log dP/dQ of the first t
releases, and S_t(a) the sum of the first t steps' Rényi divergences of order a, each the largest
over neighbours and both directions. As long as a step's noise and sample rate are functions of
earlier releases, E_P[e^((a−1)·(L_t − L_{t−1}))] given those is at most e^((a−1)·(S_t(a) −
S_{t−1}(a))): M_t(a) = e^((a−1)·(L_t − S_t(a))) is a supermartingale under P with M_0 = 1, and
E_P[M_N(a)] ≤ 1 at every stopping time N. This is what proves the fully adaptive
composition theorem of Feldman and Zrnic (2021). (1 − e^(−x))₊ is at most (a−1)^(a−1)·a^(−a)·
e^((a−1)x), and therefore

    (1 − e^(ε−L_N))₊ ≤ δ_a·M_N(a)   wherever   S_N(a) + c(a, δ_a) ≤ ε,                           (1)

with c(a, δ) = log((a−1)/a) − log(a·δ)/(a−1), the tight conversion of `dither.accounting.rdp`. Fix
orders a_1 … a_k and δ_1 + … + δ_k = δ beforehand.

- *Filter.* If S_N(a_i) + c(a_i, δ_i) ≤ ε for at least one i, whichever it turns out to be, the left
  side of (1) is at most Σ_i δ_i·M_N(a_i), and its expectation at most Σ_i δ_i = δ. So a run that
  continues only while one order has budget left is (ε, δ)-differentially private. With
  k = 1 it is the Rényi filter of Feldman and Zrnic; several orders cost log(k)/(a−1) in ε.
- *Odometer.* The same sum bounds (1) for ε_N = min_i S_N(a_i) + c(a_i, δ_i): at every stopping time
  P(O) ≤ E_Q[e^(ε_N); O] + δ for every set O of outcomes. By Ville's inequality, moreover, with
  probability 1 − δ no L_t ever passes min_i S_t(a_i) + log(1/δ_i)/(a_i−1), at all t together.

What the proof needs: the budget, the orders and the split of δ are fixed before the first release;
every z and q, and the decision to stop, is made from earlier releases and public facts alone, never
from the data; a step draws its batch and its noise afresh, and the batch stays secret; every step
is charged before its release is seen.
"""

import math
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from dither import validate
from dither.accounting.pld import KINDS, least_noise, sensitivity
from dither.accounting.rdp import conversion, step_divergence
from dither.types import FloatArray, PrivacyBound, adjacency_of

LARGEST_ORDER = 1e5


class BudgetExceededError(RuntimeError):
    """A step was refused, and nothing was counted: it would have exceeded the run's budget.

    Example:
        >>> try:
        ...     Filter(1.0, 1e-5).charge(0.5, sample_rate=1.0)
        ... except BudgetExceededError:
        ...     print("refused")
        refused
    """


class RenyiSums(ABC):
    """The steps' Rényi divergences, added up at each order; the settings are read-only."""

    def __init__(self, delta: float, orders: tuple[float, ...], sampling: str) -> None:
        self._delta = delta
        self._orders = orders
        self._sampling = sampling
        self._spent = np.zeros(len(orders))

    @property
    def delta(self) -> float:
        """δ of the claim."""
        return self._delta

    @property
    def orders(self) -> tuple[float, ...]:
        """The Rényi orders."""
        return self._orders

    @property
    def sampling(self) -> str:
        """How every step draws its batch."""
        return self._sampling

    @property
    def spent(self) -> tuple[float, ...]:
        """The Rényi divergence of the steps so far at each order, rounded up."""
        return tuple(self._spent.tolist())

    @abstractmethod
    def charge(self, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step."""

    def _check_step(self, noise_multiplier: float, sample_rate: float) -> tuple[float, float]:
        z, least = validate.positive(noise_multiplier=noise_multiplier), least_noise(self.sampling)
        if z < least:
            raise validate.InvalidValueError(
                f"noise_multiplier must be at least {least}, got {noise_multiplier!r}"
            )
        return z, validate.rate(sample_rate=sample_rate)

    def _after(self, z: float, q: float, k: int) -> FloatArray:
        """Return what would be spent after k such steps, no less than k charges add up to."""
        added = k * np.array(_costs(z, q, self.orders, self.sampling))
        total: FloatArray = (self._spent + added) * (1.0 + (k - 1) * 2e-15)
        return np.nextafter(total, np.inf)

    def _bound(self, epsilon: float, accountant: str) -> PrivacyBound:
        adjacency = adjacency_of(self._sampling)
        return PrivacyBound(epsilon, self._delta, accountant, self._sampling, adjacency)


@final
class Filter(RenyiSums):
    """A Rényi filter: whatever steps it admits, all releases together keep to (ε, δ).

    Guarantees: if every step is charged first and run only when admitted, all releases of the run
    together are (ε, δ)-differentially private, wherever the run stops; the noise and the sample
    rate of a step may depend on all releases before it. Theorem: fully adaptive composition for
    Rényi divergences, and for several orders the sum over them; proof and conditions in
    `dither.accounting.filter`.

    Args:
        epsilon: ε, the budget.
        delta: δ, in (0, 1); k orders get δ/k each.
        orders: the Rényi orders, above 1. None is the one order that affords the most steps whose
            noise is large; `order_for` finds the best for a number of steps that is planned. A step
            is admitted while it fits the budget of at least one order.
        sampling: "poisson" or "fixed", the same in every step.

    Raises:
        ValueError: an argument is outside its range, or an order has no budget at this ε and δ.

    Example:
        >>> budget = Filter(2.0, 1e-5)
        >>> for _ in range(500):
        ...     budget.charge(1.2, 0.01)
        >>> round(budget.affordable(0.01, steps=500), 3)
        1.064
        >>> budget.charge(0.3, 0.01)
        Traceback (most recent call last):
        dither.accounting.filter.BudgetExceededError: a step with noise_multiplier 0.3 at
        sample_rate 0.01 would pass the budget ε = 2, δ = 1e-05: the least that fits is 0.930432

    Reference:
        Feldman and Zrnic, Individual privacy accounting via a Rényi filter, NeurIPS 2021.
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        *,
        orders: ArrayLike | None = None,
        sampling: str = "poisson",
    ) -> None:
        self._epsilon = validate.positive(epsilon=epsilon)
        delta = validate.probability(delta=delta)
        if orders is None:
            orders = [_default_order(self.epsilon, delta)]
        chosen = check_orders(orders)
        super().__init__(delta, chosen, validate.choice(KINDS, sampling=sampling))
        self._budgets = _budgets(self.epsilon, delta / len(chosen), np.array(chosen))
        for index, rho in enumerate(self._budgets):
            if rho <= 0.0:
                raise validate.InvalidValueError(
                    f"orders[{index}] must leave a budget at ε = {self.epsilon:g} and a δ of "
                    f"{delta / len(chosen):g} per order, got {chosen[index]:g}"
                )

    @property
    def epsilon(self) -> float:
        """ε, the budget."""
        return self._epsilon

    @property
    def budgets(self) -> tuple[float, ...]:
        """The Rényi divergence that each order allows."""
        return tuple(self._budgets.tolist())

    @property
    def remaining(self) -> tuple[float, ...]:
        """What is left at each order, 0 at one that has been passed."""
        return tuple(np.maximum(self._budgets - self._spent, 0.0).tolist())

    @property
    def bound(self) -> PrivacyBound:
        """The claim: ε and δ of the full run, whatever is still charged."""
        return self._bound(self._epsilon, "filter")

    def charge(self, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step, which may be run once this has returned.

        Args:
            noise_multiplier: z of the step, chosen from earlier releases only.
            sample_rate: q of the step, in (0, 1], chosen likewise.

        Raises:
            BudgetExceededError: the step fits the budget of no order; nothing was counted.
            ValueError: an argument is outside its range; nothing was counted.
        """
        z, q = self._check_step(noise_multiplier, sample_rate)
        after = self._after(z, q, 1)
        if not self._fits(after):
            least = self.affordable(q) * (1.0 + 1e-5)
            way_out = f"the least that fits is {least:.6g}" if least < math.inf else "none is left"
            raise BudgetExceededError(
                f"a step with noise_multiplier {z:g} at sample_rate {q:g} would pass the budget "
                f"ε = {self.epsilon:g}, δ = {self.delta:g}: {way_out}"
            )
        self._spent = after

    def admits(self, noise_multiplier: float, sample_rate: float) -> bool:
        """Return whether `charge` would count such a step, without counting it."""
        z, q = self._check_step(noise_multiplier, sample_rate)
        return self._fits(self._after(z, q, 1))

    def cost(self, noise_multiplier: float, sample_rate: float) -> tuple[float, ...]:
        """Return what a step would add to `spent`."""
        z, q = self._check_step(noise_multiplier, sample_rate)
        return _costs(z, q, self.orders, self.sampling)

    def affordable(self, sample_rate: float, *, steps: int = 1) -> float:
        """Return the smallest noise multiplier that ``steps`` more steps can have.

        Args:
            sample_rate: q of these steps.
            steps: how many steps with this noise are to fit; 1 spends all that is left.

        Returns:
            z, at least 0.02 (0.04 for fixed batches), on the safe side: charging it ``steps`` times
            is admitted. math.inf when nothing is left.
        """
        q, k = validate.rate(sample_rate=sample_rate), validate.step_count(steps=steps)
        z = min(self._least_noise(index, q, k) for index in range(len(self.orders)))
        nudge = 1e-13
        while z <= validate.LARGEST and nudge < 1.0:
            if self._fits(self._after(z, q, k)):
                return z
            z *= 1.0 + nudge
            nudge *= 2.0
        return math.inf

    def _fits(self, spent: FloatArray) -> bool:
        return bool((spent <= self._budgets).any())

    def _least_noise(self, index: int, q: float, k: int) -> float:
        """Return about the z whose cost at one order is a k-th of what is left there.

        With b = a·μ²/2, a step's divergence is at most b, and at least b less
        (a·log(1/q) + log 2)/(a−1), since w ≥ q·e^y with y > 0 for half of the tilted law or more.
        """
        from scipy.optimize import brentq

        a = self.orders[index]
        left = float(self._budgets[index] - self._spent[index]) / k
        if left <= 0.0:
            return math.inf
        saved = (math.log(2.0) - a * math.log(q)) / (a - 1.0)
        reach = sensitivity(self.sampling) * math.sqrt(0.5 * a)
        low, high = 0.999 * reach / math.sqrt(left + saved), 1.001 * reach / math.sqrt(left)

        def excess(log_z: float) -> float:
            return math.log(step_divergence(math.exp(log_z), q, a, self.sampling) / left)

        low = max(low, least_noise(self.sampling))
        if high <= low or excess(math.log(low)) <= 0.0:
            return low
        return math.exp(brentq(excess, math.log(low), math.log(high), xtol=1e-13, rtol=1e-13))


def order_for(
    epsilon: float, delta: float, *, steps: int, sample_rate: float, sampling: str = "poisson"
) -> float:
    """Return the order at which a `Filter` needs the least noise for a number of equal steps.

    It is for what is planned, from public facts: the steps that are run may be others, and the
    filter certifies them just the same.

    Args:
        epsilon: ε of the filter.
        delta: δ of the filter.
        steps: T, the number of steps that are planned.
        sample_rate: q, the sample rate that is planned.
        sampling: "poisson" or "fixed".

    Example:
        >>> planned = order_for(2.0, 1e-5, steps=10_000, sample_rate=0.001)
        >>> for orders in (None, [planned]):
        ...     budget = Filter(2.0, 1e-5, orders=orders)
        ...     print(f"{budget.affordable(0.001, steps=10_000):.2f}")
        0.86
        0.70
    """
    from scipy.optimize import minimize_scalar

    default = Filter(epsilon, delta, sampling=sampling)

    def noise(log_below: float) -> float:
        order = 1.0 + math.exp(log_below)
        if _budgets(default.epsilon, default.delta, np.array([order]))[0] <= 0.0:
            return validate.LARGEST
        budget = Filter(epsilon, delta, orders=[order], sampling=sampling)
        return min(budget.affordable(sample_rate, steps=steps), validate.LARGEST)

    centre = math.log(default.orders[0] - 1.0)
    bounds = (centre - 3.0, min(centre + 1.0, math.log(LARGEST_ORDER - 1.0)))
    found = minimize_scalar(noise, bounds=bounds, method="bounded", options={"xatol": 0.02})
    best = float(found.x) if noise(float(found.x)) < noise(centre) else centre
    return 1.0 + math.exp(best)


def _budgets(epsilon: float, delta: float, orders: FloatArray) -> FloatArray:
    """Return the largest divergence that keeps to ε and δ by each order alone, rounded down."""
    return np.asarray(epsilon * (1.0 - 1e-15) - conversion(orders, delta))


@lru_cache(maxsize=256)
def _default_order(epsilon: float, delta: float) -> float:
    """Return the order with the largest budget for steps that cost a·μ²/2 each."""
    orders = 1.0 + np.geomspace(1e-3, LARGEST_ORDER - 1.0, 2_000)
    worth = _budgets(epsilon, delta, orders) / orders
    best = int(np.argmax(worth))
    if worth[best] <= 0.0:
        least = float(conversion(orders, delta).min())
        raise validate.InvalidValueError(
            f"epsilon must be above {least:.3g} at delta = {delta:g}, got {epsilon:g}"
        )
    return float(orders[best])


def check_orders(orders: ArrayLike) -> tuple[float, ...]:
    """Return Rényi orders if they are distinct and in range."""
    values = validate.positives(orders=orders)
    for index, a in enumerate(values):
        if not 1.0 + 1e-6 <= a <= LARGEST_ORDER:
            raise validate.InvalidValueError(
                f"orders[{index}] must be from 1.000001 to {LARGEST_ORDER:g}, got {a:g}"
            )
    if np.unique(values).size < values.size:
        raise validate.InvalidValueError(f"orders must be different, got {values.tolist()}")
    return tuple(values.tolist())


@lru_cache(maxsize=4096)
def _costs(z: float, q: float, orders: tuple[float, ...], sampling: str) -> tuple[float, ...]:
    return tuple(step_divergence(z, q, a, sampling) for a in orders)
