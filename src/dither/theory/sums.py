"""Bounds on sums, from which the simplified utility bounds follow."""

import math

from numpy.typing import ArrayLike

from dither import validate

# The powers and logarithms below are good to about 1e-14 each, at exponents of up to 300.
_ROUNDING = 1e-12


def power_sum_bounds(steps: int, a: float, c: float, power: float) -> tuple[float, float]:
    """Return a lower and an upper bound on Σ_{t=1…T} (a + c·t)^(−p), in constant time.

    The summand falls, so that the sum lies between its integrals from 1 to T+1 and from 0 to T:
    with x = a/c, ((x+1+T)^(1−p) − (x+1)^(1−p))/((1−p)·c^p) and
    ((x+T)^(1−p) − x^(1−p))/((1−p)·c^p), or their logarithmic limits at p = 1. The differences
    of powers are computed by expm1, which also makes p close to 1 harmless; both bounds are rounded
    outwards.

    Args:
        steps: T.
        a: positive.
        c: positive.
        power: p, from 0 to 5. The paper has p ≤ 1; the same integrals hold above.

    Returns:
        (lower, upper).

    Example:
        >>> lower, upper = power_sum_bounds(100, a=20.0, c=1.0, power=0.5)
        >>> round(lower, 4), round(upper, 4)
        (12.8348, 12.9646)

    Reference: lemma E.2 of the paper.
    """
    T = validate.count(steps=steps)
    a, c = validate.positive(a=a), validate.positive(c=c)
    p = validate.nonnegative(power=power)
    if p > 5.0:
        raise validate.InvalidValueError(f"power must be at most 5, got {power!r}")
    lower, upper = _integral(a + c, c, T, p), _integral(a, c, T, p)
    return lower * (1.0 - _ROUNDING), upper * (1.0 + _ROUNDING)


def logarithmic_sum_bound(values: ArrayLike) -> float:
    """Return log(Σ a_i) + 1, which is at least Σ_ℓ a_ℓ/Σ_{i≤ℓ} a_i if a_1 ≥ 1.

    Args:
        values: a_1 … a_T, positive, with a_1 at least 1.

    Returns:
        The bound.

    Example:
        >>> round(logarithmic_sum_bound([1.0, 1.0, 1.0]), 4)
        2.0986

    Reference: lemma E.3 of the paper.
    """
    a = validate.positives(values=values)
    if a[0] < 1.0:
        raise validate.InvalidValueError(f"values[0] must be at least 1, got {a[0]!s}")
    return math.log(math.fsum(a)) + 1.0


def _integral(start: float, c: float, T: int, p: float) -> float:
    """Return ∫ (start + c·u)^(−p) du from 0 to T."""
    growth = math.log1p(c * T / start)
    if p == 1.0:
        return growth / c
    power: float = start ** (1.0 - p)
    return power / c * math.expm1((1.0 - p) * growth) / (1.0 - p)
