"""Where to guess, decided before the attack, from a rehearsal of it.

The rehearsal decides from which score on it is worth to guess "in", and below which "out", for the
best bound to be expected; between the two the attacker abstains. The attack that counts is
independent of it, so that its thresholds are fixed beforehand and need no correction.

The rehearsal of a plan whose noise is fixed is a simulation of its own, by NumPy, of what the
scores should be by the claim; for noise that follows a filter it is the attack itself with other
random numbers.
"""

import math
from dataclasses import dataclass
from itertools import product
from typing import final

import numpy as np
from scipy.stats import norm

from dither.audit.evidence import Coins, log_likelihood_ratio, signs_of
from dither.planning import Plan
from dither.types import FloatArray

_LEVELS = 0.5 ** (1.0 + np.arange(0, 13.5, 0.5))
_FEWEST = 40
_WORK, _SMALLEST, _PER_TRIAL = 1e8, 40_000, 16
_SEED = 20231
_CURVE = np.array([0.01, *np.linspace(0.05, 0.95, 19), 0.99])


@final
@dataclass(frozen=True)
class Thresholds:
    """Scores that were fixed before the attack.

    Attributes:
        guess_in: from this score on the guess is "in".
        guess_out: up to this one it is "out".
        curve: where true and false positive rates are held against the claim's trade-off.
    """

    guess_in: float
    guess_out: float
    curve: FloatArray


def rehearsed(score: FloatArray, included: Coins, *, trials: int, confidence: float) -> Thresholds:
    """Return thresholds for an attack of that many trials, from the scores of a rehearsal."""
    inside, outside = np.sort(score[included]), np.sort(score[~included])
    enough = int((_LEVELS * min(inside.size, outside.size) >= _FEWEST).sum())
    levels = _LEVELS[: max(enough, 4)]
    quantile, share = float(norm.ppf(confidence)), trials / score.size
    best = (-math.inf, math.inf, -math.inf)
    for high, low in zip(
        np.quantile(outside, 1.0 - levels), np.quantile(inside, levels), strict=True
    ):
        # Many scores may be equal, as those of canaries that were never drawn.
        for guess_in, guess_out in product(
            (high, np.nextafter(high, math.inf), math.inf),
            (low, np.nextafter(low, -math.inf), -math.inf),
        ):
            if guess_out < guess_in:
                right = _above(inside, guess_in) + _below(outside, guess_out)
                wrong = _above(outside, guess_in) + _below(inside, guess_out)
                expected = _expected(right * share, wrong * share, quantile)
                best = max(best, (expected, float(guess_in), float(guess_out)))
    return Thresholds(best[1], best[2], np.quantile(score, _CURVE))


def _above(ordered: FloatArray, score: float) -> int:
    return int(ordered.size - np.searchsorted(ordered, score))


def _below(ordered: FloatArray, score: float) -> int:
    return int(np.searchsorted(ordered, score, side="right"))


def _expected(right: float, wrong: float, quantile: float) -> float:
    """Return about what bound so many guesses give: log odds less the spread of both attacks."""
    right, wrong = max(right, 0.5), wrong + 1.0
    return float(np.log(right / wrong) - quantile * np.sqrt(2.0 / right + 2.0 / wrong))


def simulated(plan: Plan, attack: str, trials: int) -> tuple[FloatArray, Coins]:
    """Return many more scores than trials, and coins, as the plan claims that they come out."""
    size = max(min(int(_WORK / plan.steps), _PER_TRIAL * trials), _SMALLEST)
    generator = np.random.default_rng(_SEED)
    q, replaced = plan.sample_rate, plan.sampling == "fixed"
    included = np.arange(size) < size // 2
    signs = signs_of(included, replaced=replaced)
    score = np.zeros(size)
    for z, stepsize in zip(plan.noise_multipliers, plan.stepsizes, strict=True):
        x = z * generator.standard_normal(size)
        x += signs if q == 1.0 else signs * (generator.random(size) < q)
        if attack == "final-model":
            score += stepsize * x
        else:
            score += log_likelihood_ratio(x, float(z), q, replaced=replaced)
    return score, included
