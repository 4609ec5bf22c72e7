"""Lower bounds on ε from right guesses, each valid with a given probability.

An attacker guesses which canaries were in the data; each was included with probability 1/2. If
training is (ε, 0)-private, no guess is right with more than the probability p = e^ε/(1 + e^ε) of
randomised response, whatever was guessed before. More right guesses than Binomial(guesses, p) would
give are evidence against that ε, and the largest ε that they refute is the lower bound. The
attacker may abstain, and δ is counted in one of two ways:

- *Independent trials* (`independent_bound`): every canary had a run, or coordinates, inclusion
  and noise of its own. An (ε, δ)-private pair of distributions reveals no more than randomised
  response that gives the secret away with probability δ (Kairouz, Oh and Viswanath 2015). The
  secrets that are given away number at most j, the 1 − β/10 quantile of Binomial(trials, δ); all
  of them are taken for right guesses, and Clopper and Pearson's bound of the others has the rest
  of β.
- *One run* (`one_run_bound`): the guesses depend on each other through the model. Theorem 5.2 of
  Steinke, Nasr and Jagielski (2023) bounds the probability of v or more right guesses out of r by
  P(W ≥ v) + 2·m·δ·max_i P(v − i ≤ W < v)/i, W ~ Binomial(r, p), with m canaries in all.

Neither is a point estimate: with probability ``confidence`` or more they stay below the true ε.
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import beta, binom

from dither import validate

_LARGEST = 60.0
_SCAN = 0.01


def at_least(successes: int, trials: int, confidence: float) -> float:
    """Return Clopper and Pearson's lower bound on a probability.

    >>> round(at_least(60, 100, 0.95), 4)
    0.513
    """
    if successes <= 0:
        return 0.0
    return float(beta.ppf(1.0 - confidence, successes, trials - successes + 1))


def at_most(successes: int, trials: int, confidence: float) -> float:
    """Return Clopper and Pearson's upper bound on a probability.

    >>> round(at_most(0, 100, 0.95), 4)
    0.0295
    """
    if successes >= trials:
        return 1.0
    return float(beta.ppf(confidence, successes + 1, trials - successes))


def independent_bound(
    right: int, guesses: int, *, trials: int, delta: float, confidence: float
) -> float:
    """Return a lower bound on ε from guesses in independent trials; 0 if they prove nothing.

    Args:
        right: how many guesses were right.
        guesses: how many were made.
        trials: how many there were to guess, including abstentions.
        delta: δ of the claim.
        confidence: the probability, at least, with which the bound is one.

    Example:
        >>> round(independent_bound(900, 1000, trials=1000, delta=0.0, confidence=0.95), 2)
        2.02
    """
    v, r, m = _check_counts(right, guesses, trials)
    level, delta = 1.0 - validate.probability(confidence=confidence), _check_delta(delta)
    given_away = int(binom.isf(0.1 * level, m, delta)) if delta > 0.0 else 0
    left = level - float(binom.sf(given_away, m, delta))
    p = at_least(v - given_away, r, 1.0 - left)
    return max(math.log(p / (1.0 - p)), 0.0) if p > 0.5 else 0.0


def one_run_bound(
    right: int, guesses: int, *, canaries: int, delta: float, confidence: float
) -> float:
    """Return a lower bound on ε from the guesses about one run; 0 if they prove nothing.

    Args:
        right: v, how many guesses were right.
        guesses: r, how many were made; a number fixed before the attack.
        canaries: m, how many there were, including abstentions.
        delta: δ of the claim.
        confidence: the probability, at least, with which the bound is one.

    Example:
        >>> round(one_run_bound(900, 1000, canaries=1000, delta=1e-5, confidence=0.95), 2)
        2.02
    """
    v, r, m = _check_counts(right, guesses, canaries)
    level, delta = 1.0 - validate.probability(confidence=confidence), _check_delta(delta)

    def excess(epsilon: float) -> float:
        return one_run_p_value(v, r, m, epsilon, delta) - level

    # The first ε that is not refuted: the p-value's δ term need not grow with ε.
    refuted = 0.0
    if excess(0.0) > 0.0:
        return 0.0
    while excess(refuted + _SCAN) <= 0.0:
        refuted += _SCAN
        if refuted > _LARGEST:
            return refuted
    found = brentq(excess, refuted, refuted + _SCAN, xtol=1e-9)
    return max(found - 1e-8, refuted)


def one_run_p_value(right: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of so many right guesses if ε and δ hold."""
    p = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, p))
    if delta == 0.0 or right == 0:
        return tail
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, p))
    steepest = float(np.max(below / np.arange(1, right + 1)))
    return min(tail + 2.0 * canaries * delta * steepest, 1.0)


def _check_delta(delta: float) -> float:
    return 0.0 if delta == 0.0 else validate.probability(delta=delta)


def _check_counts(right: int, guesses: int, trials: int) -> tuple[int, int, int]:
    m = validate.count(trials=trials)
    if not 0 <= right <= guesses <= m:
        raise validate.InvalidValueError(
            f"right must be at most guesses, and those at most trials, got {right}, {guesses} and "
            f"{m}"
        )
    return int(right), int(guesses), m
