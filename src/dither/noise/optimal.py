"""The noise that is smallest where it matters, under the accountant's real cost.

To first order, changing the noise of single steps changes log δ(ε) by Σ (V(z′_t²) − V(z_t²)), where
V(z²) is the functional behind δ applied to the logarithm of a step's transform. `marginal_cost`
tabulates V and its slope, what a little more noise at one step saves; `Optimal` reads the noise off
that table.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from dither import accounting, validate
from dither.accounting import pld
from dither.accounting.calibration import calibrate
from dither.accounting.curve import Curve
from dither.accounting.steps import SampledSteps, Steps, reduce_steps
from dither.accounting.transform import log_moments, transforms
from dither.noise.workload import filtered
from dither.types import Budget, FloatArray

_ROUNDS = 5
_SETTLED = 1e-4
_LONGEST_STEP = 4.0
# Aim a little below the target: the certificate's own width then still fits.
_AIM = 0.999


@final
@dataclass(frozen=True)
class Optimal:
    """Minimise the noise that reaches the parameters at a given ε, by the accountant's own cost.

    The noise of step t reaches the parameters with the weight w_t = η_t², or, with momentum β,
    w_t = (Σ_{s≥t} β^(s−t)·η_s)². `Optimal` minimises Σ w_t·z_t² over all z_t ≥ floor that cost at
    most (ε, δ). At the optimum every step's weight is the same multiple of what more noise there
    saves: w_t = λ·(−∂δ/∂z_t²).

    The paper's rule (`Matched`) is this for steps that cost 1/z², which is the large-noise limit of
    a sampled step; the real cost grows like e^(1/z²) where z is small.

    It is found by a few rounds of: tabulate −∂δ/∂z² at the current noise, read every z_t off the
    table for the λ at which δ stays the same to first order, scale to the target.

    Args:
        momentum: β of the optimizer, in [0, 1).
        floor: the least noise multiplier of any step, positive. A budget so large that uniform
            noise for it is below the floor is met by uniform noise.

    Example:
        >>> budget = Budget(epsilon=2.0, delta=1e-5, sample_rate=0.01)
        >>> alphas = Optimal().alphas(np.linspace(1.0, 0.1, 500), budget=budget)
        >>> bool(alphas[0] < alphas[-1])
        True
    """

    momentum: float = 0.0
    floor: float = 0.4

    def __post_init__(self) -> None:
        """Check the parameters."""
        beta = validate.nonnegative(momentum=self.momentum)
        if beta >= 1.0:
            raise validate.InvalidValueError(f"momentum must be below 1, got {self.momentum!r}")
        object.__setattr__(self, "momentum", beta)
        object.__setattr__(self, "floor", validate.positive(floor=self.floor))

    def weights(self, stepsizes: ArrayLike) -> FloatArray:
        """Return w_t: with what weight the noise of each step reaches the parameters."""
        eta = validate.positives(stepsizes=stepsizes)
        if self.momentum > 0.0:
            eta = filtered((1.0, -self.momentum), eta[::-1])[::-1]
        return np.asarray(np.maximum((eta / eta.max()) ** 2, 1e-60))

    def alphas(self, stepsizes: ArrayLike, *, budget: Budget | None = None) -> FloatArray:
        """Return noise multipliers that meet the budget, up to a scale very close to 1."""
        eta = validate.positives(stepsizes=stepsizes)
        if budget is None:
            raise validate.InvalidValueError(
                "budget must be given to Optimal, whose noise depends on it, got None"
            )
        return _alphas(self, eta.tobytes(), _check_budget(budget)).copy()

    def _search(self, w: FloatArray, budget: Budget) -> FloatArray:
        """Return the noise multipliers for steps with these weights."""
        if budget.sample_rate <= budget.delta:
            raise validate.InvalidValueError(
                f"sample_rate must be above delta = {budget.delta:g} for Optimal: below it the "
                f"cheapest step has no noise at all, got {budget.sample_rate!r}"
            )
        aim = replace(budget, epsilon=_AIM * budget.epsilon)
        uniform = calibrate(np.ones(w.size), budget, accuracy=0.02, share=_AIM)
        if uniform <= self.floor:
            return np.full(w.size, uniform)
        z = np.full(w.size, uniform)
        for _ in range(_ROUNDS):
            before = z
            shape = self._improve(w, np.maximum(before, self.floor), aim)
            shape = before * np.clip(shape / before, 1.0 / _LONGEST_STEP, _LONGEST_STEP)
            scale = calibrate(
                shape, budget, accuracy=0.004, start=1.0, floor=self.floor, share=_AIM
            )
            z = np.maximum(shape * scale, self.floor)
            # What is left to gain is about the square of how far the noise that matters moved.
            if float(np.average(np.log(z / before) ** 2, weights=w * z * z)) < _SETTLED:
                break
        return z

    def _improve(self, w: FloatArray, z: FloatArray, budget: Budget) -> FloatArray:
        """Return the noise that is optimal for the cost as it is around z, at the same cost."""
        cost = marginal_cost(
            z,
            sample_rate=budget.sample_rate,
            epsilon=budget.epsilon,
            delta=budget.delta,
            sampling=budget.sampling,
            accountant=budget.accountant or "pld",
            floor=self.floor,
        )
        return np.sqrt(_stationary_noise(cost, w, float(cost.value(z * z).sum())))


@lru_cache(maxsize=8)
def _alphas(noise: Optimal, stepsizes: bytes, budget: Budget) -> FloatArray:
    """Return `Optimal.alphas`, remembered: correlated noise is compared with it."""
    return noise._search(noise.weights(np.frombuffer(stepsizes)), budget)


@dataclass(frozen=True)
class MarginalCost:
    """V over z², tabulated, with its derivative; beyond the table V falls like 1/z².

    Attributes:
        log_s: log z² at the nodes, increasing.
        log_value: log V there.
        log_slope: log(−dV/d(z²)) there, never rising.
    """

    log_s: FloatArray
    log_value: FloatArray
    log_slope: FloatArray

    def value(self, s: FloatArray) -> FloatArray:
        """Return V(z²) at s = z²."""
        x = np.log(s)
        beyond = np.maximum(x - self.log_s[-1], 0.0)
        return np.asarray(np.exp(np.interp(x, self.log_s, self.log_value) - beyond))

    def slope(self, s: FloatArray) -> FloatArray:
        """Return −dV/d(z²) at s = z²."""
        x = np.log(s)
        beyond = np.maximum(x - self.log_s[-1], 0.0)
        return np.asarray(np.exp(np.interp(x, self.log_s, self.log_slope) - 2.0 * beyond))

    def where_slope_is(self, slope: FloatArray) -> FloatArray:
        """Return the s = z² at which −dV/d(z²) has the given value, at least the first node's."""
        y = np.log(slope)
        beyond = np.maximum(self.log_slope[-1] - y, 0.0)
        return np.asarray(np.exp(np.interp(-y, -self.log_slope, self.log_s) + 0.5 * beyond))


def marginal_cost(
    noise_multipliers: FloatArray,
    *,
    sample_rate: float,
    epsilon: float,
    delta: float,
    sampling: str,
    accountant: str,
    floor: float,
) -> MarginalCost:
    """Tabulate what noise saves, for a run with the given noise and a target (ε, δ).

    ``pld`` and ``rdp`` use the direction of the adjacency relation that costs more; ``rdp`` uses
    its best order, where V is the step's log-moment; the central limit costs e^(1/z²) − 1 per step,
    and the paper's bounds 1/z².
    """
    reach = pld.sensitivity(sampling)
    least = max(floor, 0.25 * float(noise_multipliers.min()))
    low, high = math.log(least), math.log(max(40.0 * reach, 4.0 * least))
    z = np.exp(np.linspace(low, high, 97))
    s = z * z
    if accountant in ("pld", "rdp") and sample_rate < 1.0:
        steps = reduce_steps(reach / noise_multipliers, 0.03)
        value = _functional(steps, reach / z, sample_rate, epsilon, delta, sampling, accountant)
    else:
        value = np.expm1(1.0 / s) if accountant == "gdp" and sample_rate < 1.0 else 1.0 / s
    # More noise costs less, and saves less and less. Enforced from the side of large noise, where
    # the table is surest: far below the run's own noise the first order means little.
    log_s, log_value = np.log(s), np.log(np.maximum.accumulate(value[::-1])[::-1])
    steepness = -np.gradient(log_value, log_s, edge_order=2)
    log_slope = log_value + np.log(np.maximum(steepness, 1e-6)) - log_s
    log_slope = np.maximum.accumulate(log_slope[::-1])[::-1]
    return MarginalCost(log_s, log_value, log_slope)


def _functional(
    steps: Steps,
    mus: FloatArray,
    q: float,
    epsilon: float,
    delta: float,
    sampling: str,
    accountant: str,
) -> FloatArray:
    """Return V at every μ: by how much log δ(ε) grows with one more such step."""
    run = SampledSteps(((steps, q),))
    curves = [Curve(run, kind, smoothing=0.15) for kind in pld.KINDS[sampling]]
    starts = [curve.chernoff(delta)[1] for curve in curves]
    by_moments = [
        curve.chernoff_delta(epsilon, start) for curve, start in zip(curves, starts, strict=True)
    ]
    worst = max(range(len(curves)), key=lambda i: by_moments[i][0])
    curve, kind, theta = curves[worst], pld.KINDS[sampling][worst], by_moments[worst][1]
    if accountant == "rdp":
        return log_moments(mus, q, theta, kind)
    integral = curve.integral(epsilon, delta, theta, theta)
    tilt, spacing, number = integral.grid
    found = transforms(mus, q, tilt, spacing, number, kind)
    log_m, ratios = found.log_moment, 1.0 + found.excess
    # A step far stronger than the run's own has a transform that vanishes at distant nodes.
    ratios[np.abs(ratios) < 1e-150] = 1e-150
    # From node to node the phase turns little, so that the logarithm of a quotient is unambiguous;
    # that of a strong step's transform itself is not.
    quotients = np.log(ratios[:-1] / ratios[1:]) + (log_m[:-1] - log_m[1:])[:, None]
    last = np.log(ratios[-1:]) + log_m[-1]
    values = integral.first_order(epsilon, np.concatenate([quotients, last]))
    return np.maximum(np.cumsum(values[::-1])[::-1], 1e-300)


def _check_budget(budget: Budget) -> Budget:
    """Return the budget with every field checked."""
    return Budget(
        validate.positive(epsilon=budget.epsilon),
        validate.probability(delta=budget.delta),
        validate.rate(sample_rate=budget.sample_rate),
        None
        if budget.accountant is None
        else validate.choice(accounting.ACCOUNTANTS, accountant=budget.accountant),
        validate.choice(accounting.SAMPLINGS, sampling=budget.sampling),
    )


def _stationary_noise(cost: MarginalCost, w: FloatArray, target: float) -> FloatArray:
    """Return s_t with w_t = λ·slope(s_t) and Σ V(s_t) = target."""
    log_w = np.log(w)
    low_w, high_w = float(log_w.min()), float(log_w.max())
    bins = min(w.size, 2048)
    number, ends = np.histogram(log_w, bins=bins, range=(low_w - 1e-9, high_w + 1e-9))
    used = number > 0
    middle, number = np.exp(0.5 * (ends[1:] + ends[:-1])[used]), number[used]

    def total(log_lambda: float) -> float:
        s = cost.where_slope_is(middle * math.exp(-log_lambda))
        return float(number @ cost.value(s))

    # Larger λ: more noise everywhere, and a smaller total.
    low = low_w - float(cost.log_slope[0]) - 5.0
    high = high_w - float(cost.log_slope[-1]) + 80.0
    for _ in range(60):
        log_lambda = 0.5 * (low + high)
        low, high = (log_lambda, high) if total(log_lambda) > target else (low, log_lambda)
    return cost.where_slope_is(w * math.exp(-high))
