"""The variance that noise gives to every iterate, to compare noises of the same cost.

Noise moves the parameters by η_t·z_t·w_t per step, and descent draws them back by (1 − λ·η_t), as
in `dither.noise.workload`. Where the noise w of different steps is correlated, later steps cancel a
part of it, so that Σ(η_t·z_t)² says nothing; the variance of an iterate compares all noises.
"""

import numpy as np

from dither.noise.correlated import Correlated, column_norms
from dither.types import FloatArray

_BLOCK = 256
"""Steps whose contractions are multiplied at once: (1 − λ·η)² does not underflow in these."""

_LEAST_KEPT = 0.5


def iterate_variances(
    stepsizes: FloatArray,
    noise_multipliers: FloatArray,
    *,
    correlation: tuple[float, ...] | None = None,
    contraction: float = Correlated().contraction,
) -> FloatArray:
    """Return the variance of a coordinate of every iterate, in squared clip norms.

    Args:
        stepsizes: η_0 … η_{T−1}.
        noise_multipliers: z_0 … z_{T−1}.
        correlation: the coefficients of correlated noise; None for independent noise.
        contraction: λ times the largest step size, in [0, 1).

    Example:
        >>> iterate_variances(np.ones(3), np.ones(3), contraction=0.0)
        array([1., 2., 3.])
        >>> correlated = iterate_variances(np.ones(3), np.ones(3), correlation=(1.0, 0.75))
        >>> bool(correlated[-1] < 2.0)
        True
    """
    kept = 1.0 - contraction * stepsizes / stepsizes.max()
    added = stepsizes * noise_multipliers
    if correlation is not None:
        norms = column_norms(correlation, added.size)
        return _correlated(kept, added * norms, np.array(correlation[1:]))
    if kept.min() < _LEAST_KEPT:
        return _correlated(kept, added, np.zeros(1))
    return _independent(kept**2, added**2)


def _independent(kept: FloatArray, added: FloatArray) -> FloatArray:
    """Return v_t = kept_t·v_{t−1} + added_t."""
    found, last = np.empty(added.size), 0.0
    for start in range(0, added.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        products = np.cumprod(kept[block])
        found[block] = products * (last + np.cumsum(added[block] / products))
        last = float(found[block][-1])
    return found


def _correlated(kept: FloatArray, added: FloatArray, theta: FloatArray) -> FloatArray:
    """Return the variances of x_t = kept_t·x_{t−1} + added_t·u_t, u_t = ξ_t − Σ θ_s·u_{t−s}.

    The covariance of x_t and of the last b − 1 of u is carried from step to step.
    """
    found, variance = np.empty(added.size), 0.0
    with_x, of_u = np.zeros(theta.size), np.zeros((theta.size, theta.size))
    for t, (k, g) in enumerate(zip(kept.tolist(), added.tolist(), strict=True)):
        with_u = -(of_u @ theta)
        u_variance = 1.0 - float(theta @ with_u)
        x_and_u = -float(theta @ with_x)
        variance = k * k * variance + 2.0 * k * g * x_and_u + g * g * u_variance
        found[t] = variance
        with_x = k * np.append(x_and_u, with_x[:-1]) + g * np.append(u_variance, with_u[:-1])
        shifted = np.empty_like(of_u)
        shifted[0, 0], shifted[0, 1:], shifted[1:, 0] = u_variance, with_u[:-1], with_u[:-1]
        shifted[1:, 1:] = of_u[:-1, :-1]
        of_u = shifted
    return found
