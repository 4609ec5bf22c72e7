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
from dither.accounting.pld import KINDS, sampled
from dither.accounting.transform import log_moments
from dither.types import FloatArray

#: From just above 1, where large ε are decided, to 4,000, where tiny ones are.
ORDERS: FloatArray = np.unique(
    np.concatenate([1.0 + np.geomspace(0.02, 4000.0, 100), np.arange(2.0, 33.0)])
)


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
    at = _checked_orders(orders)
    validate.choice(KINDS, sampling=sampling)
    steps = sampled(z, q, sampling, 0.005)
    kind = KINDS[sampling][0]
    return np.array([steps.log_moment(a - 1.0, kind) / (a - 1.0) for a in at])


def _checked_orders(orders: ArrayLike) -> FloatArray:
    at = validate.positives(orders=orders)
    if at.min() <= 1.0:
        raise validate.InvalidValueError(f"orders must be above 1, got {at.min():g}")
    return at


def renyi_epsilon(divergences: FloatArray, orders: FloatArray, delta: float) -> float:
    """Return the smallest ε that RDP at these orders gives for δ."""
    below = orders - 1.0
    room = np.log1p(-1.0 / orders) - (math.log(delta) + np.log(orders)) / below
    found = float(np.min(divergences + room))
    return math.inf if math.isnan(found) else max(0.0, found)


def renyi_delta(divergences: FloatArray, orders: FloatArray, epsilon: float) -> float:
    """Return the smallest δ that RDP at these orders gives for ε."""
    below = orders - 1.0
    log_delta = below * (divergences - epsilon + np.log1p(-1.0 / orders)) - np.log(orders)
    found = float(np.min(log_delta))
    return 1.0 if math.isnan(found) else math.exp(min(max(found, -690.0), 0.0))


class RenyiAccountant:
    """A running sum: one more step costs one number an order.

    Example:
        >>> accountant = RenyiAccountant()
        >>> for _ in range(100):
        ...     accountant.step(1.1, sample_rate=0.01)
        >>> round(accountant.epsilon(1e-5), 3)
        0.96
    """

    def __init__(self, *, orders: ArrayLike = ORDERS, sampling: str = "poisson") -> None:
        self.orders = _checked_orders(orders)
        self.sampling = validate.choice(KINDS, sampling=sampling)
        self.divergences = np.zeros(self.orders.size)
        self._known: dict[tuple[float, float], FloatArray] = {}

    def step(self, noise_multiplier: float, *, sample_rate: float) -> None:
        """Count one step; a noise multiplier that was seen before costs an addition."""
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


def step_divergence(mu: float, sample_rate: float, order: float, sampling: str) -> float:
    """Return the RDP of one step at one order, the larger of both directions."""
    moments = (
        log_moments(np.array([mu]), sample_rate, order - 1.0, kind)[0] for kind in KINDS[sampling]
    )
    return float(max(moments)) / (order - 1.0)
