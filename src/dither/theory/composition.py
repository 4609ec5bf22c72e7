"""The lemmas on (ε, δ) pairs that the privacy theorem is built from."""

import math

import numpy as np
from numpy.typing import ArrayLike

from dither import validate
from dither.types import EpsilonDelta


def gaussian_mechanism(sensitivity: float, sigma: float, delta: float) -> EpsilonDelta:
    """Return the guarantee of one release h(D) + N(0, σ²·I).

    The release is (√(2·log(1.25/δ))·Δ/σ, δ)-DP, where Δ bounds how far h can move between
    neighbouring datasets.

    Args:
        sensitivity: Δ, positive.
        sigma: standard deviation of the noise in each coordinate, positive.
        delta: δ, in (0, 1).

    Returns:
        (ε, δ).

    Raises:
        ValueError: if ε would not be below 1: there the lemma does not hold.

    Example:
        >>> epsilon, delta = gaussian_mechanism(1.0, 10.0, 1e-5)
        >>> round(epsilon, 6)
        0.484481

    Reference: lemma 2.1 of the paper, which omits ε < 1; Dwork and Roth 2014, theorem A.1.
    """
    width = validate.positive(sensitivity=sensitivity)
    noise = validate.positive(sigma=sigma)
    delta = validate.probability(delta=delta)
    factor = math.sqrt(2.0 * math.log(1.25 / delta))
    if not upward(factor * width) < noise:
        raise validate.InvalidValueError(
            f"sigma must be above {factor * width:.6g}, where epsilon is below 1 "
            f"as the lemma requires, got {sigma!r}"
        )
    return EpsilonDelta(upward(factor * width / noise), delta)


def amplification_by_sampling(epsilon: float, delta: float, sample_rate: float) -> EpsilonDelta:
    """Return the guarantee of an (ε, δ)-DP mechanism on a random sample of the records.

    It is ((e^ε − 1)·q, q·δ)-DP if m of n records are drawn without replacement, q = m/n, and
    neighbours differ by one record replaced (the paper's setting); or if each record is drawn
    independently with probability q and neighbours differ by one record added or removed. Other
    pairings of sampling and neighbours need other bounds. The pair is kept as the paper has it;
    log(1 + q·(e^ε − 1)) is the tight first member.

    Args:
        epsilon: ε of the mechanism, positive.
        delta: δ of the mechanism, in (0, 1).
        sample_rate: q, in (0, 1].

    Returns:
        (ε, δ) of the mechanism on the sample; ε is infinite where it overflows.

    Example:
        >>> epsilon, delta = amplification_by_sampling(0.5, 1e-5, 0.01)
        >>> f"{epsilon:.6f}, {delta:.2e}"
        '0.006487, 1.00e-07'

    Reference: lemma A.1 of the paper.
    """
    epsilon = validate.positive(epsilon=epsilon)
    delta = validate.probability(delta=delta)
    q = validate.rate(sample_rate=sample_rate)
    with np.errstate(over="ignore"):
        return EpsilonDelta(upward(float(np.expm1(epsilon)) * q), upward(delta * q))


def advanced_composition(epsilon: float, delta: float, steps: int, slack: float) -> EpsilonDelta:
    """Return the guarantee of k mechanisms together, each of them (ε_0, δ_0)-DP.

    ε = ε_0·√(2·k·log(1/δ′)) + k·ε_0·(e^ε_0 − 1)/(e^ε_0 + 1) and δ = 1 − (1 − δ_0)^k + δ′.

    Args:
        epsilon: ε_0, positive.
        delta: δ_0, in (0, 1).
        steps: k, the number of mechanisms.
        slack: δ′, in (0, 1), the part of δ spent on the square root.

    Returns:
        (ε, δ); a δ of 1 or more guarantees nothing.

    Example:
        >>> epsilon, delta = advanced_composition(0.01, 1e-9, 1000, 1e-6)
        >>> f"{epsilon:.6f}, {delta:.2e}"
        '1.712258, 2.00e-06'

    Reference: lemma A.2 of the paper, in the form that Kairouz, Oh and Viswanath 2015 give to
    the theorem of Dwork, Rothblum and Vadhan 2010.
    """
    epsilon = validate.positive(epsilon=epsilon)
    delta = validate.probability(delta=delta)
    k = validate.count(steps=steps)
    slack = validate.probability(slack=slack)
    drift = k * epsilon * math.tanh(0.5 * epsilon)
    spread = epsilon * math.sqrt(2.0 * k * -math.log(slack))
    any_fails = -math.expm1(k * math.log1p(-delta))
    return EpsilonDelta(upward(spread + drift), upward(any_fails + slack))


def extended_advanced_composition(
    epsilons: ArrayLike, deltas: ArrayLike, slack: float
) -> EpsilonDelta:
    """Return the guarantee of unequal mechanisms together, the i-th of them (ε_i, δ_i)-DP.

    ε = √(2·Σε_i²·log(1/δ′)) + Σ ε_i·(e^ε_i − 1)/(e^ε_i + 1) and δ = 1 − Π(1 − δ_i) + δ′. The
    sums are rounded once, (e^x − 1)/(e^x + 1) is computed as tanh(x/2) and the product by
    log1p and expm1, so that nothing cancels.

    Args:
        epsilons: ε_i, positive. The paper asks for ε_i < 1, its source does not.
        deltas: δ_i, in (0, 1), one for each ε_i.
        slack: δ′, in (0, 1).

    Returns:
        (ε, δ); a δ of 1 or more guarantees nothing.

    Example:
        >>> epsilon, delta = extended_advanced_composition([0.1, 0.2], [1e-7, 1e-7], 1e-6)
        >>> f"{epsilon:.6f}, {delta:.2e}"
        '1.200323, 1.20e-06'

    Reference: lemma 2.2 of the paper; Kairouz, Oh and Viswanath 2015, theorem 3.5.
    """
    each = validate.positives(epsilons=epsilons)
    each_delta = validate.same_length(each.size, deltas=validate.probabilities(deltas=deltas))
    slack = validate.probability(slack=slack)
    scale = float(each.max())
    spread = scale * math.sqrt(2.0 * math.fsum((each / scale) ** 2) * -math.log(slack))
    drift = math.fsum(each * np.tanh(0.5 * each))
    any_fails = -math.expm1(math.fsum(np.log1p(-each_delta)))
    return EpsilonDelta(upward(spread + drift), upward(any_fails + slack))


def upward(value: float) -> float:
    """Return slightly more: 64 units in the last place cover the rounding of a short formula.

    Every ε, δ and σ of this package passes through here, so that floating point never makes a claim
    smaller, or a noise weaker, than the formula it stands for.
    """
    return value * (1.0 + 2.0**-46)
