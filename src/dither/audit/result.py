"""What an audit has found."""

import math
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR
from typing import final

from dither.audit.tradeoff import Allowed
from dither.types import FloatArray, PrivacyBound, SpentSoFar, rounded

ATTACKERS = {
    "white-box": "an attacker who sees every release",
    "final-model": "an attacker who sees the final model",
    "one-run": "an attacker who sees one run",
}


@final
@dataclass(frozen=True)
class Breach:
    """A point that the claim does not allow, and that the attack has certainly reached.

    Attributes:
        false_positives: the false positive rate, at most.
        true_positives: the true positive rate, at least.
        allowed: what the claim allows there.
    """

    false_positives: float
    true_positives: float
    allowed: float


@final
@dataclass(frozen=True, eq=False)
class AuditResult:
    """A claim, an attack, and what the attack proves about it.

    Attributes:
        claimed: the claim.
        attack: "white-box", "final-model" or "one-run".
        lower: ε is at least this, with probability ``confidence``; 0 if nothing was proven.
        confidence: of the lower bound and of the test of the trade-off, together.
        trials: how many canaries there were.
        guesses: for how many of them the attacker said "in" or "out".
        right: how many of those guesses were right.
        allowed: the trade-off that the claim allows, or None if nothing is claimed.
        roc: false and true positive rates of the attack, for a plot.
        gaussian: the lower bound on ε if the mechanism is Gaussian; only for full batches.
        breach: a point above the trade-off, or None.
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

    @property
    def is_violated(self) -> bool:
        """Whether the claim is refuted."""
        return self.lower > self.claimed.epsilon or self.breach is not None

    @property
    def verdict(self) -> str:
        """What was found, in one sentence."""
        sure = f"with {rounded(100.0 * self.confidence, 6, ROUND_FLOOR)} % confidence"
        found = f"{ATTACKERS[self.attack]} proves {shown(self.lower)} {sure}"
        if not math.isfinite(self.claimed.epsilon):
            return f"Nothing is claimed, and {found}."
        said = f"ε ≤ {rounded(self.claimed.epsilon, 4)} at δ = {self.claimed.delta:.3g}"
        claim = f"{said} is {'claimed' if self.claimed.is_upper_bound else 'estimated'}"
        claim += " so far" if isinstance(self.claimed, SpentSoFar) else ""
        if self.lower > self.claimed.epsilon:
            return f"VIOLATED: {claim}, but {found}."
        if self.breach is not None:
            return (
                f"VIOLATED: at a false positive rate of {self.breach.false_positives:.4f} the "
                f"claim allows {self.breach.allowed:.4f} true positives, but "
                f"{ATTACKERS[self.attack]} has at least {self.breach.true_positives:.4f} {sure}."
            )
        return f"Not refuted: {claim}, and {found}."

    def __str__(self) -> str:
        return self.verdict


def shown(epsilon: float) -> str:
    """Return what a lower bound says, rounded down."""
    return f"ε ≥ {rounded(epsilon, 3, ROUND_FLOOR)}" if epsilon > 0.0 else "nothing"
