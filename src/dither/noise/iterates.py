"""The variance that noise gives to every iterate, to compare noises of the same cost.

Noise moves the parameters by η_t·z_t·w_t per step, and descent draws them back by (1 − λ·η_t), as
in `dither.noise.workload`. Where the noise w of different steps is correlated, later steps cancel a
part of it, so that Σ(η_t·z_t)² says nothing; the variance of an iterate compares all noises.
"""

import math
from operator import mul

import numpy as np

from dither.noise.correlated import Correlated, column_norms, inverse
from dither.types import FloatArray

_LEAST_PRODUCT = -200.0
"""The logarithm of the least product of contractions, from which a sum begins again."""


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
    kept, added = 1.0 - contraction * stepsizes / stepsizes.max(), stepsizes * noise_multipliers
    if correlation is None:
        return _descend(kept**2, added**2)
    # x_t = kept_t·x_{t−1} + added_t·u_t, where Σ θ_s·u_{t−s} is standard normal.
    added = added * column_norms(correlation, added.size)
    of_u = _lagged_covariances(correlation, added.size)
    with_u = _covariances(kept, added, correlation, of_u)
    return _descend(kept**2, added * (added * of_u[0] + 2.0 * kept * with_u))


def _descend(kept: FloatArray, added: FloatArray) -> FloatArray:
    """Return v_t = kept_t·v_{t−1} + added_t, in blocks whose products do not underflow."""
    found, last = np.empty(added.size), 0.0
    size = int(_LEAST_PRODUCT / min(math.log(kept.min()), -1e-9))
    for start in range(0, added.size, size):
        block = slice(start, start + size)
        products = np.cumprod(kept[block])
        found[block] = products * (last + np.cumsum(added[block] / products))
        last = float(found[block][-1])
    return found


def _lagged_covariances(theta: tuple[float, ...], steps: int) -> FloatArray:
    """Return the covariance of u_t and u_{t−l}, u beginning with step 0: a row for every l < b."""
    r, found = inverse(theta, steps), np.zeros((len(theta), steps))
    for lag in range(min(len(theta), steps)):
        found[lag, lag:] = np.cumsum(r[lag:] * r[: steps - lag])
    return found


def _covariances(
    kept: FloatArray, added: FloatArray, theta: tuple[float, ...], of_u: FloatArray
) -> FloatArray:
    """Return the covariance of x_{t−1} and u_t, from those of x_{t−1} and the b − 1 last of u."""
    found, with_x = [], [0.0] * (len(theta) - 1)
    for k, g, lags in zip(kept.tolist(), added.tolist(), of_u.T.tolist(), strict=True):
        found.append(-sum(map(mul, theta[1:], with_x)))
        with_x = [k * each + g * c for each, c in zip((found[-1], *with_x), lags, strict=True)][:-1]
    return np.array(found)
