"""Bounds on membership inference under (ε, δ); every number is an upper bound.

For any test, whatever else the attacker knows, with false positive rate F (the record is out) and
true positive rate P (the record is in), (ε, δ)-differential privacy means

    P ≤ e^ε·F + δ   and   1 − F ≤ e^ε·(1 − P) + δ.

The second line is P ≤ 1 − e^(−ε)·(1 − δ − F). Under replace-one adjacency, "out" means that
another record is in its place.
"""

import math
from dataclasses import dataclass
from typing import final

from dither import validate
from dither.types import rounded

_ROUNDING = 1e-12  # far above the error of the few operations here
_LARGEST = 700.0  # whose exponential is a float
FALSE_POSITIVE_RATES = (0.01, 0.05, 0.10)


@final
@dataclass(frozen=True)
class Odds:
    """The bounds for one record.

    Attributes:
        likelihood_ratio: e^ε; infinite if it exceeds the range of floats.
        best_guess: the largest probability of a correct guess, from even odds.
        rates: pairs (F, the largest P at that F).
    """

    likelihood_ratio: float
    best_guess: float
    rates: tuple[tuple[float, float], ...]


def membership_odds(epsilon: float, delta: float) -> Odds:
    """Return bounds on membership inference under (ε, δ).

    >>> odds = membership_odds(1.0, 1e-5)
    >>> round(odds.likelihood_ratio, 3), round(odds.best_guess, 4)
    (2.718, 0.7311)
    """
    validate.nonnegative(epsilon=epsilon)
    validate.probability(delta=delta)
    rates = tuple((F, max_true_positive_rate(F, epsilon, delta)) for F in FALSE_POSITIVE_RATES)
    return Odds(_growth(epsilon), best_guess(epsilon, delta), rates)


def best_guess(epsilon: float, delta: float) -> float:
    """Return the largest probability of a correct guess from even odds, (e^ε + δ)/(1 + e^ε).

    A guess is correct with probability (P + 1 − F)/2. Both lines of the module meet where
    F = (1 − δ)/(1 + e^ε) and P = 1 − F; to the left of that point the first grows by e^ε ≥ 1 and to
    the right the second by e^(−ε) ≤ 1, so that P − F is largest there, and the guess is correct
    with probability 1 − F.

    >>> round(best_guess(0.0, 0.1), 3)
    0.55
    """
    wrong = (1.0 - delta) * math.exp(-epsilon) / (1.0 + math.exp(-epsilon))
    return min(1.0, (1.0 - wrong) * (1.0 + _ROUNDING))


def max_true_positive_rate(false_positive_rate: float, epsilon: float, delta: float) -> float:
    """Return the largest P at a given F.

    >>> [round(max_true_positive_rate(F, 1.0, 1e-5), 4) for F in (0.05, 0.9)]
    [0.1359, 0.9632]
    """
    first = _growth(epsilon) * false_positive_rate + delta
    second = 1.0 - math.exp(-epsilon) * max(0.0, 1.0 - delta - false_positive_rate)
    return min(1.0, first * (1.0 + _ROUNDING), second * (1.0 + _ROUNDING))


def group_privacy(size: int, epsilon: float, delta: float) -> tuple[float, float]:
    """Return (ε, δ) for a group of records: (k·ε, δ·(1 + e^ε + … + e^((k−1)ε))).

    >>> [round(each, 4) for each in group_privacy(2, 1.0, 0.001)]
    [2.0, 0.0037]
    """
    growth = sum(_growth(place * epsilon) for place in range(size))
    return size * epsilon, min(1.0, delta * growth * (1.0 + _ROUNDING))


def percent(share: float) -> str:
    """Return a share in percent, rounded up.

    >>> percent(0.7310621), percent(1.0)
    ('73.2 %', '100 %')
    """
    return f"{rounded(min(100.0, 100.0 * share), 3)} %"


def times(factor: float) -> str:
    """Return a factor, rounded up.

    >>> times(20.0855), times(1234567.0), times(math.inf)
    ('20.1', '1,240,000', 'more than 10^300')
    """
    if not factor < 1e300:
        return "more than 10^300"
    text = rounded(factor, 3)
    number = float(text)
    return f"{number:,.0f}" if 1e3 <= number < 1e9 else text


def _growth(epsilon: float) -> float:
    return math.inf if epsilon > _LARGEST else math.exp(epsilon) * (1.0 + _ROUNDING)
