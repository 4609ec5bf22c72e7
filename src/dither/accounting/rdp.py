"""Rényi accounting: moments of the privacy loss at many orders, added up over the steps.

RDP of order a is log M(a − 1)/(a − 1), with M the transform of the step's dominating pair
(`dither.accounting.transform`), at integer and fractional orders alike. (ε, δ) follows by the tight
conversion ε = log M/(a−1) + log((a−1)/a) − log(a·δ)/(a−1) (Canonne, Kamath and Steinke 2020,
proposition 12; Asoodeh et al. 2020), at the best of the orders.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from dither import validate
from dither.accounting.pld import KINDS, sampled_steps, sensitivity
from dither.accounting.steps import SampledSteps
from dither.accounting.transform import log_moments
from dither.types import FloatArray

#: From just above 1, where large ε are decided, to 4,000, where tiny ones are.
ORDERS: FloatArray = np.unique(
    np.concatenate([1.0 + np.geomspace(0.02, 4000.0, 100), np.arange(2.0, 33.0)])
)
_WIDTH = 0.005
_STRIDE = 8
_ROUNDING = 1e-10  # of one step's divergence, far above the error of its quadrature


def renyi_divergences(
    noise_multipliers: ArrayLike,
    *,
    sample_rate: ArrayLike,
    orders: ArrayLike = ORDERS,
    sampling: str = "poisson",
) -> FloatArray:
    """Return the RDP of all steps together at each order, in the direction that costs more.

    Under Poisson sampling that is removing a record, at every order (Mironov, Talwar and Zhang
    2019, theorem 5); the fixed-size pair is symmetric.

    Up to 256 different noise multipliers are rounded up by about 1e-11; more are put into fine
    buckets, rounded up by less than 1e-4 of the sum.

    Example:
        >>> renyi_divergences([1.0, 2.0], sample_rate=0.01, orders=[2.0, 8.5]).round(7)
        array([0.0002002, 0.0012126])
    """
    z = validate.positives(noise_multipliers=noise_multipliers)
    q = validate.rates(z.size, sample_rate=sample_rate)
    at = _check_orders(orders)
    validate.choice(KINDS, sampling=sampling)
    return _divergences(sampled_steps(z, q, sampling, _WIDTH), at, sampling)


def _divergences(steps: SampledSteps, orders: FloatArray, sampling: str) -> FloatArray:
    kind = KINDS[sampling][0]
    return np.array([steps.log_moment(a - 1.0, kind) / (a - 1.0) for a in orders])


def steps_epsilon(
    noise_multipliers: FloatArray, sample_rate: float | FloatArray, delta: float, sampling: str
) -> float:
    """Return the smallest ε that RDP of all steps gives for δ at any of `ORDERS`.

    (a − 1)·ε(a) is a sum of convex functions of the order, so that ε(a) has one valley: the best
    of every eighth order shows between which two it lies.
    """
    steps = sampled_steps(noise_multipliers, sample_rate, sampling, _WIDTH)
    few = np.append(ORDERS[::_STRIDE], ORDERS[-1])
    best = int(np.argmin(_divergences(steps, few, sampling) + conversion(few, delta)))
    low, high = few[max(best - 1, 0)], few[min(best + 1, few.size - 1)]
    orders = ORDERS[(low <= ORDERS) & (high >= ORDERS)]
    return renyi_epsilon(_divergences(steps, orders, sampling), orders, delta)


def _check_orders(orders: ArrayLike) -> FloatArray:
    at = validate.positives(orders=orders)
    if at.min() <= 1.0:
        raise validate.InvalidValueError(f"orders must be above 1, got {at.min():g}")
    return at


def renyi_epsilon(divergences: FloatArray, orders: FloatArray, delta: float) -> float:
    """Return the smallest ε that RDP at these orders gives for δ.

    Example:
        >>> divergences = renyi_divergences([1.0] * 100, sample_rate=0.01)
        >>> round(renyi_epsilon(divergences, ORDERS, 1e-5), 3)
        1.225
    """
    found = float(np.min(divergences + conversion(orders, delta)))
    return math.inf if math.isnan(found) else max(0.0, found)


def renyi_delta(divergences: FloatArray, orders: FloatArray, epsilon: float) -> float:
    """Return the smallest δ that RDP at these orders gives for ε.

    Example:
        >>> divergences = renyi_divergences([1.0] * 100, sample_rate=0.01)
        >>> f"{renyi_delta(divergences, ORDERS, 2.0):.1e}"
        '2.0e-08'
    """
    below = orders - 1.0
    log_delta = below * (divergences - epsilon + np.log1p(-1.0 / orders)) - np.log(orders)
    found = float(np.min(log_delta))
    return 1.0 if math.isnan(found) else math.exp(min(max(found, -690.0), 0.0))


class RenyiAccountant:
    """A running sum of Rényi divergences: one more step adds one number per order.

    Example:
        >>> accountant = RenyiAccountant()
        >>> for _ in range(100):
        ...     accountant.step(1.1, sample_rate=0.01)
        >>> round(accountant.epsilon(1e-5), 3)
        0.96
    """

    def __init__(self, *, orders: ArrayLike = ORDERS, sampling: str = "poisson") -> None:
        self.orders = _check_orders(orders)
        self.sampling = validate.choice(KINDS, sampling=sampling)
        self.divergences = np.zeros(self.orders.size)
        self._known: dict[tuple[float, float], FloatArray] = {}

    def step(self, noise_multiplier: float, *, sample_rate: float) -> None:
        """Count one step; for a noise multiplier seen before that is one addition."""
        key = (
            validate.positive(noise_multiplier=noise_multiplier),
            validate.rate(sample_rate=sample_rate),
        )
        if key not in self._known:
            self._known[key] = renyi_divergences(
                [key[0]], sample_rate=key[1], orders=self.orders, sampling=self.sampling
            )
        self.divergences += self._known[key]
        # Each addition may round down by half a unit in the last place.
        self.divergences *= 1.0 + 2.3e-16

    def epsilon(self, delta: float) -> float:
        """Return ε of the steps so far, if their number and noise were fixed in advance."""
        return renyi_epsilon(self.divergences, self.orders, validate.probability(delta=delta))


def conversion(orders: FloatArray, delta: float) -> FloatArray:
    """Return c(a, δ) = log((a−1)/a) − log(a·δ)/(a−1), what a divergence lacks to ε; rounded up."""
    gain, loss = np.log1p(-1.0 / orders), (math.log(delta) + np.log(orders)) / (orders - 1.0)
    size = (np.abs(gain) + (abs(math.log(delta)) + np.log(orders)) / (orders - 1.0)) * 1e-14
    return np.asarray(gain - loss + size)


def step_divergence(z: float, sample_rate: float, order: float, sampling: str) -> float:
    """Return the RDP of one step at one order, the larger of both directions, rounded up.

    It is never above the full batch's a·μ²/2.
    """
    mu = sensitivity(sampling) / z
    divergence = 0.5 * order * mu * mu
    if sample_rate < 1.0:
        moments = [
            float(log_moments(np.array([mu]), sample_rate, order - 1.0, kind)[0])
            for kind in KINDS[sampling]
        ]
        divergence = min(divergence, max(moments) / (order - 1.0))
    return divergence * (1.0 + _ROUNDING)
