"""The scale at which relative noise costs a given ε, found on the safe side."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dither import validate
from dither.accounting import epsilon, estimates, pld
from dither.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dither.types import Budget, FloatArray

_MOST_NOISE = 1e8
_STEEPEST, _FLATTEST = -20.0, -0.2


class Scale(NamedTuple):
    """A scale of relative noise, and how fast its cost falls there.

    Attributes:
        value: c.
        slope: about d log ε/d log c.
    """

    value: float
    slope: float


def calibrate(
    alphas: FloatArray,
    budget: Budget,
    *,
    accuracy: float = 0.004,
    start: float | None = None,
    floor: float = 0.0,
    share: float = 1.0,
) -> float:
    """Return c such that noise max(c·α, floor) costs that share of ε or up to ``accuracy`` less.

    Raises:
        ValueError: if no noise from the floor, or 0.02, to 1e8 times the clip norm has that ε.
    """
    return find_scale(
        alphas, budget, accuracy=accuracy, start=start, floor=floor, share=share
    ).value


def find_scale(
    alphas: FloatArray,
    budget: Budget,
    *,
    accuracy: float,
    start: float | None = None,
    floor: float = 0.0,
    share: float = 1.0,
) -> Scale:
    """Return what `calibrate` does, and the slope there.

    The search is a secant in log c and log ε, kept inside a bracket; every probe is an upper bound.
    ``start`` is a guess for c; by default the central limit gives one.
    """
    least = max(pld.least_noise(budget.sampling), floor)
    cost = _cost(alphas, budget, least)
    lowest = math.log(least / float(alphas.max())) + 1e-9
    highest = math.log(_MOST_NOISE / float(alphas.min()))
    target = math.log(share * budget.epsilon)
    aim = target + math.log1p(-0.5 * accuracy)
    guess = central_limit_log_scale(alphas, budget) if start is None else math.log(start)
    x = min(max(guess, lowest), highest)
    low, high = (lowest, math.inf), (highest, -math.inf)
    slope = _central_limit_slope(alphas, budget, x)
    for _ in range(60):
        y = cost(x)
        if target + math.log1p(-accuracy) <= y <= target:
            return Scale(math.exp(x), slope)
        previous = low if y > target else high
        if math.isfinite(previous[1]) and abs(x - previous[0]) > 1e-12 and y != previous[1]:
            slope = secant_slope(previous, (x, y))
        if y > target:
            low = (x, y)
        else:
            high = (x, y)
        if high[0] - low[0] < 1e-12:
            break
        step = (y - aim) / -slope if math.isfinite(y) else 0.5
        proposed = x + min(max(step, -1.0), 1.0)
        if proposed <= lowest and low[1] == math.inf:
            x = lowest
        elif proposed >= highest and high[1] == -math.inf:
            x = highest
        else:
            x = proposed if low[0] < proposed < high[0] else 0.5 * (low[0] + high[0])
    raise validate.InvalidValueError(
        f"epsilon must be one that noise between {least:g} and {_MOST_NOISE:g} clip norms can "
        f"reach with this schedule, got {budget.epsilon!r}"
    )


def secant_slope(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the slope between two points (log c, log ε), within what noise can have.

    >>> secant_slope((0.0, 0.5), (0.25, 0.0))
    -2.0
    """
    slope = (other[1] - one[1]) / (other[0] - one[0])
    return min(max(slope, _STEEPEST), _FLATTEST)


def _cost(alphas: FloatArray, budget: Budget, least: float) -> Callable[[float], float]:
    """Return the function log c → log ε."""

    def log_epsilon(log_scale: float) -> float:
        z = np.maximum(alphas * math.exp(log_scale), least)
        value = quick_epsilon(
            z,
            sample_rate=budget.sample_rate,
            delta=budget.delta,
            sampling=budget.sampling,
            accountant=budget.accountant,
        )
        return math.log(value) if value > 0.0 else -math.inf

    return log_epsilon


def quick_epsilon(
    noise_multipliers: FloatArray,
    *,
    sample_rate: float,
    delta: float,
    sampling: str,
    accountant: str | None,
    rough: bool = False,
) -> float:
    """Return ε as `dither.accounting.epsilon` does, by ``pld`` faster and a little larger.

    It is certified like the other, and good to about half a percent, or a few percent if ``rough``.
    """
    if accountant in (None, "pld") and noise_multipliers.size > 1 and sample_rate < 1.0:
        search = pld.rough_epsilon if rough else pld.coarse_epsilon
        return search(noise_multipliers, sample_rate=sample_rate, delta=delta, sampling=sampling)
    return epsilon(
        noise_multipliers,
        sample_rate=sample_rate,
        delta=delta,
        sampling=sampling,
        accountant=accountant,
    ).epsilon


def central_limit_log_scale(alphas: FloatArray, budget: Budget) -> float:
    """Return about the right log c, by the central limit, which costs next to nothing."""
    mu_at, least = _central_limit(alphas, budget), float(alphas.min())
    low, high = math.log(0.3 / least), math.log(_MOST_NOISE / least)
    for _ in range(40):
        middle = 0.5 * (low + high)
        spends_more = gaussian_delta(mu_at(middle), budget.epsilon) > budget.delta
        low, high = (middle, high) if spends_more else (low, middle)
    return high


def _central_limit_slope(alphas: FloatArray, budget: Budget, log_scale: float) -> float:
    """Return about d log ε/d log c, by the central limit."""
    mu_at = _central_limit(alphas, budget)
    near, far = (
        gaussian_epsilon(mu_at(log_scale + step), budget.delta).upper for step in (0.0, 0.02)
    )
    slope = math.log(far / near) / 0.02 if 0.0 < far < near < math.inf else -1.5
    return min(max(slope, _STEEPEST), _FLATTEST)


def _central_limit(alphas: FloatArray, budget: Budget) -> Callable[[float], float]:
    """Return the function log c → μ, from a few hundred of the steps."""
    z = np.quantile(alphas, np.linspace(0.0, 1.0, 257)) if alphas.size > 257 else alphas
    repeat = math.sqrt(alphas.size / z.size)

    def mu(log_scale: float) -> float:
        scaled = z * math.exp(log_scale)
        return repeat * estimates.central_limit_mu(scaled, budget.sample_rate, budget.sampling)

    return mu
