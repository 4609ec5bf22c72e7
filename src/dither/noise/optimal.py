"""The noise that is smallest where it matters, under the accountant's real cost."""

import math
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from dither import accounting, validate
from dither.accounting.calibration import calibrate
from dither.accounting.marginal import MarginalCost, marginal_cost
from dither.types import Budget, FloatArray

_ROUNDS = 5
_SETTLED = 4e-3
_LONGEST_STEP = 4.0
# Aim a little below the target: the certificate's own width then still fits.
_AIM = 0.999


@final
@dataclass(frozen=True)
class Optimal:
    """Minimise the noise that reaches the parameters at a given ε, whatever a step really costs.

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
            from scipy.signal import lfilter  # over a second to import, for this alone

            eta = np.asarray(lfilter([1.0], [1.0, -self.momentum], eta[::-1])[::-1])
        return np.asarray(np.maximum((eta / eta.max()) ** 2, 1e-60))

    def alphas(self, stepsizes: ArrayLike, *, budget: Budget | None = None) -> FloatArray:
        """Return noise multipliers that meet the budget, up to a scale very close to 1."""
        w = self.weights(stepsizes)
        if budget is None:
            raise validate.InvalidValueError(
                "budget must be given to Optimal, whose noise depends on it, got None"
            )
        budget = checked_budget(budget)
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
            shape = self._improved(w, np.maximum(before, self.floor), aim)
            shape = before * np.clip(shape / before, 1.0 / _LONGEST_STEP, _LONGEST_STEP)
            scale = calibrate(
                shape, budget, accuracy=0.004, start=1.0, floor=self.floor, share=_AIM
            )
            z = np.maximum(shape * scale, self.floor)
            if float(np.max(np.abs(np.log(z / before)))) < _SETTLED:
                break
        return z

    def _improved(self, w: FloatArray, z: FloatArray, budget: Budget) -> FloatArray:
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


def checked_budget(budget: Budget) -> Budget:
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
