"""The privacy theorem: noise for a budget, its inverse, and the condition it rests on."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dither import validate
from dither.theory.composition import upward
from dither.types import FloatArray

# The proof gives each of the T steps δ_0 = n·δ/(12.8·T·m), so that they use up δ/12.8 together,
# and leaves the rest to the composition's slack δ′. 16 = 1.25·12.8 makes log(1.25/δ_0) the first
# factor of B_δ.
_SHARE = 12.8


@dataclass(frozen=True)
class TheoremCondition:
    """Whether the privacy theorem applies; true or false like its ``holds``.

    Attributes:
        holds: every inequality of the proof is fulfilled.
        worst_step: t of the step with the least noise, where the proof is strained most.
        noise: α_t²·Σ1/α² at that step.
        required: what ``noise`` must be at least: n²ε²/(32·m²·log(1.25/δ)).
        reasons: one sentence for each inequality that fails.

    Example:
        >>> setting = dict(dataset_size=50_000, batch_size=256, epsilon=1.0, delta=1e-5)
        >>> bool(adp_condition([1.0] * 11_700, **setting))
        True
    """

    holds: bool
    worst_step: int
    noise: float
    required: float
    reasons: tuple[str, ...]

    def __bool__(self) -> bool:
        return self.holds

    def __str__(self) -> str:
        if self.holds:
            return "the theorem's condition holds"
        return f"the theorem's condition does not hold: {'; '.join(self.reasons)}"


def b_delta(steps: int, *, dataset_size: int, batch_size: int, delta: float) -> float:
    """Return B_δ = log(16·T·m/(n·δ))·log(1.25/δ).

    The factor m inside the logarithm is the appendix's; with m = 1 it is the main text's B_δ.

    Args:
        steps: T.
        dataset_size: n.
        batch_size: m, at most n.
        delta: δ, in (0, 1).

    Raises:
        ValueError: if a step's share of δ, n·δ/(12.8·T·m), would not be below 1, as happens for
            a small part of an epoch and a large δ.

    Example:
        >>> round(b_delta(11_700, dataset_size=50_000, batch_size=256, delta=1e-5), 3)
        215.688

    Reference: theorems 4.1 and C.1 of the paper.
    """
    T = validate.count(steps=steps)
    m, n = validate.batch_within(batch_size=batch_size, dataset_size=dataset_size)
    delta = validate.probability(delta=delta)
    largest = _SHARE * T * m / n
    if not delta < largest:
        raise validate.InvalidValueError(
            f"delta must be below 12.8·steps·batch_size/dataset_size = {largest:.6g}, got {delta!r}"
        )
    return math.log(16.0 * T * m / (n * delta)) * math.log(1.25 / delta)


def adp_sigma(
    alphas: ArrayLike,
    *,
    clip_norm: float,
    dataset_size: int,
    batch_size: int,
    epsilon: float,
    delta: float,
) -> float:
    """Return the theorem's σ, for which the full run is (ε, δ)-DP if `adp_condition` holds.

    σ² = (16·C_G/(n·ε))²·B_δ·Σ1/α_t², where step t adds α_t·σ·N(0, I) to the *mean* of m clipped
    gradients. As a noise multiplier on the sum that is z_t = m·α_t·σ/C_G.

    Guarantees: replace-one neighbours, m distinct records drawn uniformly and independently at
    every step, α fixed in advance. Where the condition fails, the noise is still computed, for
    reproduction, and claims nothing.

    Args:
        alphas: α_1 … α_T, positive.
        clip_norm: C_G, positive.
        dataset_size: n.
        batch_size: m, at most n.
        epsilon: ε, positive (the paper's ε̄ times 16).
        delta: δ, in (0, 1).

    Returns:
        σ.

    Example:
        >>> setting = dict(clip_norm=1.0, dataset_size=50_000, batch_size=256, delta=1e-5)
        >>> round(256 * adp_sigma([1.0] * 11_700, epsilon=16 * 0.8, **setting), 3)
        10.167

    Reference: theorems 4.1 and C.1 of the paper.
    """
    alpha = validate.positives(alphas=alphas)
    clip_norm = validate.positive(clip_norm=clip_norm)
    epsilon = validate.positive(epsilon=epsilon)
    m, n = validate.batch_within(batch_size=batch_size, dataset_size=dataset_size)
    B = b_delta(alpha.size, dataset_size=n, batch_size=m, delta=delta)
    return upward(16.0 * clip_norm / (n * epsilon) * math.sqrt(B) * _inverse_norm(alpha))


def adp_epsilon(
    alphas: ArrayLike,
    *,
    sigma: float,
    clip_norm: float,
    dataset_size: int,
    batch_size: int,
    delta: float,
) -> float:
    """Return the ε for which `adp_sigma` is the given σ: the theorem read the other way.

    It is a guarantee only where `adp_condition` holds at that ε.

    Args:
        alphas: α_1 … α_T, positive.
        sigma: σ, positive.
        clip_norm: C_G, positive.
        dataset_size: n.
        batch_size: m, at most n.
        delta: δ, in (0, 1).

    Returns:
        ε.

    Example:
        >>> setting = dict(clip_norm=1.0, dataset_size=50_000, batch_size=256, delta=1e-5)
        >>> sigma = adp_sigma([1.0, 2.0], epsilon=3.0, **setting)
        >>> round(adp_epsilon([1.0, 2.0], sigma=sigma, **setting), 12)
        3.0

    Reference: theorems 4.1 and C.1 of the paper.
    """
    sigma = validate.positive(sigma=sigma)
    unit = adp_sigma(
        alphas,
        clip_norm=clip_norm,
        dataset_size=dataset_size,
        batch_size=batch_size,
        epsilon=1.0,
        delta=delta,
    )
    return upward(unit / sigma)


def adp_condition(
    alphas: ArrayLike,
    *,
    dataset_size: int,
    batch_size: int,
    epsilon: float,
    delta: float,
    clip_norm: float = 1.0,
) -> TheoremCondition:
    """Return whether every inequality of the privacy theorem's proof holds.

    With δ_0 = n·δ/(12.8·T·m) and δ′ = δ·(1 − 1/12.8) that is so if

    - α_t²·Σ1/α² ≥ n²ε²/(32·m²·log(1.25/δ)) for every t: each step is a Gaussian mechanism with
      ε_t ≤ 1, before sampling;
    - ε² ≤ 8·log(1.25/δ)·log(1/δ′): the composition's drift is no more than its spread;
    - m < n/2.

    Corrected: the paper's condition has B_δ and log(1.25/δ_0) swapped and leaves δ_0 open. Its
    own settings can fail it.

    Args:
        alphas: α_1 … α_T, positive.
        dataset_size: n.
        batch_size: m, at most n.
        epsilon: ε, positive.
        delta: δ, in (0, 1).
        clip_norm: C_G, so that one setting serves `adp_sigma` too; the condition is free of it.

    Returns:
        A `TheoremCondition`, with the step where it fails worst.

    Example:
        >>> setting = dict(dataset_size=50_000, batch_size=256, epsilon=12.8, delta=1e-5)
        >>> print(adp_condition([1.0] * 11_700, **setting))
        the theorem's condition does not hold: α²·Σ1/α² = 11700 at step 0 is below 16642.1

    Reference: the proof of theorem C.1 of the paper.
    """
    alpha = validate.positives(alphas=alphas)
    m, n = validate.batch_within(batch_size=batch_size, dataset_size=dataset_size)
    epsilon, delta = validate.positive(epsilon=epsilon), validate.probability(delta=delta)
    validate.positive(clip_norm=clip_norm)
    b_delta(alpha.size, dataset_size=n, batch_size=m, delta=delta)
    worst = int(np.argmin(alpha))
    noise = (float(alpha[worst]) * _inverse_norm(alpha)) ** 2
    required = (n * epsilon / m) ** 2 / (32.0 * math.log(1.25 / delta))
    slack = delta * (1.0 - 1.0 / _SHARE)
    largest = math.sqrt(8.0 * math.log(1.25 / delta) * -math.log(slack))
    reasons = []
    # Rounded towards privacy: the sum is exact to a few units in the last place.
    if not noise * (1.0 - 1e-12) >= required:
        reasons.append(f"α²·Σ1/α² = {noise:.6g} at step {worst} is below {required:.6g}")
    if not epsilon <= largest:
        reasons.append(f"ε = {epsilon:.6g} is above {largest:.6g}")
    if not 2 * m < n:
        reasons.append(f"m = {m} is not below n/2 = {n / 2:g}")
    return TheoremCondition(not reasons, worst, noise, required, tuple(reasons))


def adp_spent(alphas: ArrayLike, *, epsilon: float) -> FloatArray:
    """Return the theorem's ε after each of the T steps of a run that is calibrated to (ε, δ).

    ε_t = ε·√(Σ_{s≤t}1/α_s² / Σ1/α²): the proof for the full run, with its δ_0 and δ′, applied to
    its first t steps. Like the theorem it needs `adp_condition`, and it is for display: a run
    that stops at a step chosen during the run requires an odometer.

    Args:
        alphas: α_1 … α_T, positive.
        epsilon: ε of the full run, positive.

    Returns:
        T values that never fall, the last of them ε.

    Example:
        >>> adp_spent([1.0, 1.0, 1.0, 1.0], epsilon=2.0).round(4)
        array([1.    , 1.4142, 1.7321, 2.    ])

    Reference: figure 1 of the paper, the left half.
    """
    alpha = validate.positives(alphas=alphas)
    epsilon = validate.positive(epsilon=epsilon)
    spent = np.cumsum((alpha.min() / alpha) ** 2)
    share: FloatArray = np.sqrt(spent / spent[-1])
    return epsilon * share


def _inverse_norm(alpha: FloatArray) -> float:
    """Return √(Σ1/α²), whatever the scale of α."""
    low = float(alpha.min())
    return math.sqrt(math.fsum((low / alpha) ** 2)) / low
