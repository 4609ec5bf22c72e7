"""The trade-off that a claim allows: how often an attacker may be right at each false alarm rate.

(ε, δ)-privacy keeps every attack below two lines, TPR ≤ e^ε·FPR + δ and its mirror image. A claim
that rests on noise holds at many ε at once, each with the δ that the accountant proves for it, and
an attack has to stay below all of those lines: the curve that this draws is far stricter than the
claim's own pair.
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from dither import accounting
from dither.accounting.filter import Filter
from dither.planning import Plan, ReactivePlan
from dither.types import FloatArray

_FRACTIONS = (0.0, 0.02, 0.05, *np.arange(1, 11) / 10.0)
_TOLERANCE = 0.1


@final
@dataclass(frozen=True)
class Allowed:
    """What an attacker may reach: pairs (ε, δ) that all hold.

    Attributes:
        epsilons: ε of each pair.
        deltas: δ of each pair.
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    def true_positives(self, false_positives: ArrayLike) -> FloatArray:
        """Return the largest true positive rate at given false positive rates.

        >>> Allowed((0.0,), (0.1,)).true_positives([0.0, 0.5, 0.95])
        array([0.1, 0.6, 1. ])
        """
        alpha = np.asarray(false_positives, np.float64)
        most = np.ones_like(alpha)
        for epsilon, delta in zip(self.epsilons, self.deltas, strict=True):
            growth = math.exp(min(epsilon, 700.0))
            most = np.minimum(most, growth * alpha + delta)
            most = np.minimum(most, 1.0 - np.maximum(1.0 - alpha - delta, 0.0) / growth)
        return np.asarray(most)


def allowed_by(plan: Plan | ReactivePlan) -> Allowed | None:
    """Return the trade-off that a plan's claim allows, or None if it claims nothing."""
    bound = plan.bound
    if not math.isfinite(bound.epsilon):
        return None
    epsilons = [bound.epsilon * float(fraction) for fraction in _FRACTIONS]
    deltas = [_delta(plan, epsilon) for epsilon in epsilons]
    return Allowed((bound.epsilon, *epsilons), (bound.delta, *deltas))


def _delta(plan: Plan | ReactivePlan, epsilon: float) -> float:
    """Return a δ that is proven for this ε, from the noise or from the filter's budget."""
    if isinstance(plan, ReactivePlan) and plan.noises is None:
        paying = Filter(
            plan.bound.epsilon, plan.bound.delta, orders=[plan.order], sampling=plan.sampling
        )
        orders, budgets = np.array(paying.orders), np.array(paying.budgets)
        return accounting.renyi_delta(budgets, orders, epsilon)
    return accounting.delta(
        plan.least_noise,
        sample_rate=plan.sample_rate,
        epsilon=epsilon,
        sampling=plan.sampling,
        tolerance=_TOLERANCE,
    ).delta
