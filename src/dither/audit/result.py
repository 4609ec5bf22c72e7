"""The result of an audit, and the trade-off that its claim allows.

(ε, δ)-privacy keeps every attack below two lines, TPR ≤ e^ε·FPR + δ and its mirror image. A claim
that rests on noise holds at many ε at once, each with the δ that the accountant proves for it, and
an attack has to stay below all of those lines. This curve is far stricter than the claim's own
pair.
"""

import math
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from dither import accounting
from dither.accounting.filter import Filter
from dither.planning import Plan, ReactivePlan
from dither.types import FloatArray, PrivacyBound, SpentSoFar, rounded

ATTACKERS = {
    "white-box": "an attacker who sees every release",
    "final-model": "an attacker who sees the final model",
    "one-run": "an attacker who sees one run",
}
_FRACTIONS = (0.0, 0.02, 0.05, *np.arange(1, 11) / 10.0)
_TOLERANCE = 0.1


@final
@dataclass(frozen=True)
class Allowed:
    """The trade-off that an attacker may reach: pairs (ε, δ) that all hold.

    Attributes:
        epsilons: ε of each pair.
        deltas: δ of each pair.

    Example:
        >>> Allowed((0.0,), (0.1,)).true_positives(0.5)
        array(0.6)
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
    """Return the trade-off that a plan's claim allows, or None if it claims nothing.

    Example:
        >>> plan = Plan.from_noise_multipliers([5.0], delta=1e-5, dataset_size=9, batch_size=9)
        >>> allowed = allowed_by(plan)
        >>> float(allowed.true_positives(0.5).round(2))
        0.58
    """
    bound = plan.bound
    if not math.isfinite(bound.epsilon):
        return None
    epsilons = [bound.epsilon * float(fraction) for fraction in _FRACTIONS]
    deltas = [_proven_delta(plan, epsilon) for epsilon in epsilons]
    return Allowed((bound.epsilon, *epsilons), (bound.delta, *deltas))


def _proven_delta(plan: Plan | ReactivePlan, epsilon: float) -> float:
    """Return the proven δ at this ε, from the noise or from the filter's budget."""
    if isinstance(plan, ReactivePlan) and plan.noises is None:
        budget = Filter(
            plan.bound.epsilon, plan.bound.delta, orders=[plan.order], sampling=plan.sampling
        )
        orders, budgets = np.array(budget.orders), np.array(budget.budgets)
        return accounting.renyi_delta(budgets, orders, epsilon)
    return accounting.delta(
        plan.charges,
        sample_rate=plan.charge_rate,
        epsilon=epsilon,
        sampling=plan.charge_sampling,
        tolerance=_TOLERANCE,
    ).delta


@final
@dataclass(frozen=True)
class Breach:
    """A point above the allowed curve that the attack has reached, at the audit's confidence.

    Attributes:
        false_positives: the false positive rate, at most.
        true_positives: the true positive rate, at least.
        allowed: the largest true positive rate that the claim allows there.

    Example:
        >>> point = Breach(false_positives=0.1, true_positives=0.6, allowed=0.4)
        >>> point.true_positives > point.allowed
        True
    """

    false_positives: float
    true_positives: float
    allowed: float


@final
@dataclass(frozen=True, eq=False)
class AuditResult:
    """A claim, an attack, and the lower bound on ε that the attack proves.

    Attributes:
        claimed: the claimed bound.
        attack: "white-box", "final-model" or "one-run".
        lower: ε is at least this, with probability ``confidence``; 0 if nothing was proven.
        confidence: of the lower bound and the test of the trade-off together.
        trials: how many canaries there were.
        guesses: for how many of them the attacker guessed "in" or "out".
        right: how many of those guesses were right.
        allowed: the trade-off that the claim allows, or None if nothing is claimed.
        roc: false and true positive rates of the attack, for a plot.
        gaussian: the lower bound on ε if the mechanism is Gaussian; only for full batches.
        breach: a point above the trade-off, or None.
        canary_rows: how many rows each canary has, which is a user; None if it is a record.

    Example:
        >>> import dither
        >>> plan = dither.plan(epsilon=3.0, delta=1e-5, dataset_size=100, batch_size=100, steps=5)
        >>> result = dither.audit.audit(plan, trials=1000, seed=1)
        >>> result.lower <= result.claimed.epsilon, result.is_violated
        (True, False)
    """

    claimed: PrivacyBound
    attack: str
    lower: float
    confidence: float
    trials: int
    guesses: int
    right: int
    allowed: Allowed | None = field(repr=False)
    roc: FloatArray = field(repr=False)
    gaussian: float | None = None
    breach: Breach | None = None
    canary_rows: int | None = None

    @property
    def is_violated(self) -> bool:
        """Whether the claim is refuted."""
        return self.lower > self.claimed.epsilon or self.breach is not None

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        sure = f"with {rounded(100.0 * self.confidence, 6, ROUND_FLOOR)} % confidence"
        proof = f"{ATTACKERS[self.attack]} proves {lower_text(self.lower)} {sure}"
        if not math.isfinite(self.claimed.epsilon):
            return f"Nothing is claimed, and {proof}."
        bound = f"ε ≤ {rounded(self.claimed.epsilon, 4)} at δ = {self.claimed.delta:.3g}"
        bound += " per user" if self.claimed.unit == "user" else ""
        claim = f"{bound} is {'claimed' if self.claimed.is_upper_bound else 'estimated'}"
        claim += " so far" if isinstance(self.claimed, SpentSoFar) else ""
        if self.lower > self.claimed.epsilon:
            return f"VIOLATED: {claim}, but {proof}."
        if self.breach is not None:
            return (
                f"VIOLATED: at a false positive rate of {self.breach.false_positives:.4f} the "
                f"claim allows {self.breach.allowed:.4f} true positives, but "
                f"{ATTACKERS[self.attack]} has at least {self.breach.true_positives:.4f} {sure}."
            )
        return f"Not refuted: {claim}, and {proof}."

    def __str__(self) -> str:
        return self.verdict


def lower_text(epsilon: float) -> str:
    """Return a lower bound as text, rounded down."""
    return f"ε ≥ {rounded(epsilon, 3, ROUND_FLOOR)}" if epsilon > 0.0 else "nothing"
