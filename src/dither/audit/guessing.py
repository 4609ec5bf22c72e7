"""From scores to conclusions: which canaries to guess, and what the guesses prove."""

from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.stats import norm

from dither.accounting.gaussian import gaussian_epsilon
from dither.audit.bounds import at_least, at_most, independent_bound, one_run_bound
from dither.audit.evidence import Coins
from dither.audit.result import Breach
from dither.audit.thresholds import Thresholds
from dither.audit.tradeoff import Allowed
from dither.types import FloatArray

_SHARES = 0.5 ** np.arange(1, 8)
_TIES = 20231


@final
@dataclass(frozen=True, order=True)
class Guesses:
    """Guesses and what they prove.

    Attributes:
        lower: the lower bound on ε.
        right: how many guesses were right.
        made: how many were made.
    """

    lower: float
    right: int
    made: int


def by_thresholds(
    score: FloatArray, coins: Coins, thresholds: Thresholds, *, delta: float, confidence: float
) -> Guesses:
    """Guess "in" above one score and "out" below another; the scores must be independent."""
    guessed_in = score >= thresholds.guess_in
    guessed_out = (score <= thresholds.guess_out) & ~guessed_in
    right = int((guessed_in & coins).sum() + (guessed_out & ~coins).sum())
    made = int(guessed_in.sum() + guessed_out.sum())
    lower = independent_bound(right, made, trials=coins.size, delta=delta, confidence=confidence)
    return Guesses(lower, right, made)


def by_rank(score: FloatArray, coins: Coins, *, delta: float, confidence: float) -> Guesses:
    """Guess the highest scores "in" and as many of the lowest "out"; they may be dependent.

    All, half, a quarter, … of the canaries are guessed, numbers that do not depend on the scores,
    as the theorem wants it; the bound is corrected for how many such numbers there are.
    """
    # Equal scores come in an order that has nothing to do with the one in which they were given.
    shuffled = np.random.default_rng(_TIES).permutation(coins.size)
    order = shuffled[np.argsort(score[shuffled], kind="stable")]
    level, found = (1.0 - confidence) / _SHARES.size, []
    for share in _SHARES:
        k = max(int(coins.size * share), 1)
        right = int(coins[order[-k:]].sum() + (~coins[order[:k]]).sum())
        lower = one_run_bound(
            right, 2 * k, canaries=coins.size, delta=delta, confidence=1.0 - level
        )
        found.append(Guesses(lower, right, 2 * k))
    return max(found)


def reached(
    score: FloatArray, coins: Coins, thresholds: Thresholds, *, confidence: float
) -> list[tuple[float, float]]:
    """Return (false positives at most, true positives at least), all of them true together."""
    each = 1.0 - (1.0 - confidence) / (2.0 * thresholds.curve.size)
    inside, outside = score[coins], score[~coins]
    return [
        (
            at_most(int((outside >= s).sum()), outside.size, each),
            at_least(int((inside >= s).sum()), inside.size, each),
        )
        for s in thresholds.curve
    ]


def breach_of(allowed: Allowed | None, points: list[tuple[float, float]]) -> Breach | None:
    """Return the point that lies the furthest above what is allowed, or None."""
    if allowed is None:
        return None
    found = [Breach(fpr, tpr, float(allowed.true_positives(fpr))) for fpr, tpr in points]
    worst = max(found, key=lambda point: point.true_positives - point.allowed)
    return worst if worst.true_positives > worst.allowed else None


def gaussian_lower(points: list[tuple[float, float]], delta: float) -> float:
    """Return ε of the least distance of two Gaussians that reaches all points."""
    mu = max(float(norm.ppf(tpr) - norm.ppf(fpr)) for fpr, tpr in points)
    return gaussian_epsilon(mu, delta).lower if mu > 0.0 else 0.0


def roc_of(score: FloatArray, coins: Coins) -> FloatArray:
    """Return the attack's false and true positive rates, in some two hundred points."""
    shares = np.concatenate([np.linspace(0.0, 1.0, 201), 1.0 - 0.5 ** np.arange(8, 14)])
    levels = np.unique(np.quantile(score, shares))[::-1]
    inside, outside = np.sort(score[coins]), np.sort(score[~coins])
    rates = [1.0 - np.searchsorted(each, levels) / max(each.size, 1) for each in (outside, inside)]
    return np.concatenate([np.zeros((2, 1)), np.array(rates), np.ones((2, 1))], axis=1)
