"""From scores to guesses, and what they prove.

Where to guess is decided before the attack, by thresholds from a rehearsal: from which score on to
guess "in", and below which "out", for the best expected bound; between the two the attacker
abstains. The rehearsal is independent of the attack, so that the thresholds need no correction.

The rehearsal of a plan with fixed noise is a NumPy simulation of the scores that the claim implies.
For noise that follows a filter it is the attack itself with other random numbers.
"""

import math
from dataclasses import dataclass
from itertools import product
from typing import final

import numpy as np
from scipy.stats import norm

from dither.accounting.gaussian import gaussian_epsilon
from dither.audit.attacks import Included, signal_signs
from dither.audit.bounds import at_least, at_most, independent_bound, one_run_bound
from dither.audit.likelihood import LikelihoodRatio
from dither.audit.result import Allowed, Breach
from dither.planning import Plan
from dither.types import FloatArray

_LEVELS = 0.5 ** (1.0 + np.arange(0, 13.5, 0.5))
_FEWEST = 40
_WORK, _SMALLEST, _PER_TRIAL = 1e8, 40_000, 16
_SEED = 20231
_CURVE = np.array([0.01, *np.linspace(0.05, 0.95, 19), 0.99])
_SHARES = 0.5 ** np.arange(1, 8)


@final
@dataclass(frozen=True)
class Thresholds:
    """Scores that were fixed before the attack.

    Attributes:
        guess_in: from this score on the guess is "in".
        guess_out: up to this score the guess is "out".
        curve: where true and false positive rates are compared with the claim's trade-off.
    """

    guess_in: float
    guess_out: float
    curve: FloatArray


def choose_thresholds(
    score: FloatArray, included: Included, *, trials: int, confidence: float
) -> Thresholds:
    """Return thresholds for an attack of that many trials, from the scores of a rehearsal."""
    inside, outside = np.sort(score[included]), np.sort(score[~included])
    enough = int((_LEVELS * min(inside.size, outside.size) >= _FEWEST).sum())
    levels = _LEVELS[: max(enough, 4)]
    quantile, share = float(norm.ppf(confidence)), trials / score.size
    best = (-math.inf, math.inf, -math.inf)
    for high, low in zip(
        np.quantile(outside, 1.0 - levels), np.quantile(inside, levels), strict=True
    ):
        # Many scores may be equal, like those of canaries that were never drawn.
        for guess_in, guess_out in product(
            (high, np.nextafter(high, math.inf), math.inf),
            (low, np.nextafter(low, -math.inf), -math.inf),
        ):
            if guess_out < guess_in:
                right = _count_above(inside, guess_in) + _count_below(outside, guess_out)
                wrong = _count_above(outside, guess_in) + _count_below(inside, guess_out)
                expected = _expected_bound(right * share, wrong * share, quantile)
                best = max(best, (expected, float(guess_in), float(guess_out)))
    return Thresholds(best[1], best[2], np.quantile(score, _CURVE))


def _count_above(ordered: FloatArray, score: float) -> int:
    return int(ordered.size - np.searchsorted(ordered, score))


def _count_below(ordered: FloatArray, score: float) -> int:
    return int(np.searchsorted(ordered, score, side="right"))


def _expected_bound(right: float, wrong: float, quantile: float) -> float:
    """Return the approximate bound of so many guesses: log odds minus both attacks' spread."""
    right, wrong = max(right, 0.5), wrong + 1.0
    return float(np.log(right / wrong) - quantile * np.sqrt(2.0 / right + 2.0 / wrong))


def simulate(plan: Plan, attack: str, trials: int) -> tuple[FloatArray, Included]:
    """Return many simulated scores, and which canaries were included, by the plan's claim."""
    b, q, theta = plan.bands, plan.charge_rate, plan.correlation or (1.0,)
    size = max(min(int(_WORK / (plan.steps * b)), _PER_TRIAL * trials), _SMALLEST)
    generator = np.random.default_rng(_SEED)
    included = np.arange(size) < size // 2
    signs = signal_signs(included, replaced=plan.sampling == "fixed")
    subsets = generator.integers(b, size=size)
    ratio, final_model = LikelihoodRatio(plan, size), np.zeros(size)
    noise = list[FloatArray]()  # of the last steps, the latest first
    for t, z in enumerate(plan.noise_multipliers):
        noise.insert(0, generator.standard_normal(size))
        for factor, earlier in zip(theta[1:], noise[1:], strict=False):
            noise[0] -= factor * earlier
        x = z * plan.column_norms[t] * noise[0]
        x += signs * ((subsets == t % b) & (generator.random(size) < q))
        if attack == "final-model":
            final_model += plan.stepsizes[t] * x
        else:
            ratio.add(x, float(z))
        del noise[len(theta) - 1 :]
    return final_model if attack == "final-model" else ratio.finish(), included


@final
@dataclass(frozen=True, order=True)
class Guesses:
    """Guesses and what they prove.

    Attributes:
        lower: the lower bound on ε.
        right: how many guesses were right.
        count: how many there are.
    """

    lower: float
    right: int
    count: int


def guess_by_thresholds(
    score: FloatArray,
    included: Included,
    thresholds: Thresholds,
    *,
    delta: float,
    confidence: float,
) -> Guesses:
    """Guess "in" above one score and "out" below another; the scores must be independent."""
    guessed_in = score >= thresholds.guess_in
    guessed_out = (score <= thresholds.guess_out) & ~guessed_in
    right = int((guessed_in & included).sum() + (guessed_out & ~included).sum())
    count = int(guessed_in.sum() + guessed_out.sum())
    lower = independent_bound(
        right, count, trials=included.size, delta=delta, confidence=confidence
    )
    return Guesses(lower, right, count)


def guess_by_rank(
    score: FloatArray, included: Included, *, delta: float, confidence: float
) -> Guesses:
    """Guess the highest scores "in" and as many of the lowest "out"; they may be dependent.

    All, half, a quarter, … of the canaries are guessed, numbers that do not depend on the scores,
    as the theorem requires; the bound is corrected for how many such numbers there are.
    """
    # Equal scores are ordered at random, not as given.
    shuffled = np.random.default_rng(_SEED).permutation(included.size)
    order = shuffled[np.argsort(score[shuffled], kind="stable")]
    level, candidates = (1.0 - confidence) / _SHARES.size, []
    for share in _SHARES:
        k = max(int(included.size * share), 1)
        right = int(included[order[-k:]].sum() + (~included[order[:k]]).sum())
        lower = one_run_bound(
            right, 2 * k, canaries=included.size, delta=delta, confidence=1.0 - level
        )
        candidates.append(Guesses(lower, right, 2 * k))
    return max(candidates)


def reached_points(
    score: FloatArray, included: Included, thresholds: Thresholds, *, confidence: float
) -> list[tuple[float, float]]:
    """Return (false positives at most, true positives at least), valid for all points at once."""
    each = 1.0 - (1.0 - confidence) / (2.0 * thresholds.curve.size)
    inside, outside = score[included], score[~included]
    return [
        (
            at_most(int((outside >= s).sum()), outside.size, each),
            at_least(int((inside >= s).sum()), inside.size, each),
        )
        for s in thresholds.curve
    ]


def find_breach(allowed: Allowed | None, points: list[tuple[float, float]]) -> Breach | None:
    """Return the point furthest above the allowed curve, or None."""
    if allowed is None:
        return None
    found = [Breach(fpr, tpr, float(allowed.true_positives(fpr))) for fpr, tpr in points]
    worst = max(found, key=lambda point: point.true_positives - point.allowed)
    return worst if worst.true_positives > worst.allowed else None


def gaussian_bound(points: list[tuple[float, float]], delta: float) -> float:
    """Return ε of the closest two Gaussians that reach all points."""
    mu = max(float(norm.ppf(tpr) - norm.ppf(fpr)) for fpr, tpr in points)
    return gaussian_epsilon(mu, delta).lower if mu > 0.0 else 0.0


def roc_curve(score: FloatArray, included: Included) -> FloatArray:
    """Return the attack's false and true positive rates, at about two hundred points."""
    shares = np.concatenate([np.linspace(0.0, 1.0, 201), 1.0 - 0.5 ** np.arange(8, 14)])
    levels = np.unique(np.quantile(score, shares))[::-1]
    inside, outside = np.sort(score[included]), np.sort(score[~included])
    rates = [1.0 - np.searchsorted(each, levels) / max(each.size, 1) for each in (outside, inside)]
    return np.concatenate([np.zeros((2, 1)), np.array(rates), np.ones((2, 1))], axis=1)
