"""How noise reaches the iterates of a run: the matrix W of its second moments.

Noise n_t of step t moves the velocity, v_t = β·v_{t−1} + n_t, and the velocity the parameters,
θ_t = (1 − λ·η_t)·θ_{t−1} + η_t·v_t: what descent does near a minimum of curvature λ. So iterate k
has Σ_t A[k, t]·n_t in it, and the mean over the iterates of its squared norm is Σ W[t, s]·n_t·n_s
with W = AᵀA/T. Noise whose inverse correlation dies out needs W near its diagonal only: that takes
time in proportion to the steps, and no more memory than a few numbers per step.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from dither.types import FloatArray


@final
@dataclass(frozen=True, eq=False)
class Workload:
    """W near its diagonal.

    Attributes:
        stepsizes: η_t, relative to the largest.
        momentum: β.
        contraction: λ times the largest step size.
        lags: how many of its diagonals count, with the main one.
        responses: of all iterates from t on to (θ_t, v_t), times that to noise at t; over T.
    """

    stepsizes: FloatArray
    momentum: float
    contraction: float
    lags: int
    responses: FloatArray

    @property
    def steps(self) -> int:
        """T."""
        return int(self.stepsizes.size)

    @classmethod
    def of(
        cls, stepsizes: FloatArray, *, momentum: float, contraction: float, lags: int
    ) -> "Workload":
        """Return the workload of descent with momentum β, where λ·max(η) is the contraction.

        >>> workload = Workload.of(np.ones(3), momentum=0.0, contraction=0.0, lags=2)
        >>> [diagonal * 3 for diagonal in workload.diagonals()]
        [array([3., 2., 1.]), array([2., 1.])]
        """
        eta, T = stepsizes / stepsizes.max(), stepsizes.size
        # The response of all later iterates to the state (θ, v) after step s, as a quadratic form.
        forms, form = np.empty((T, 2, 2)), np.zeros((2, 2))
        for s in range(T - 1, -1, -1):
            form[0, 0] += 1.0
            forms[s] = form
            kept = 1.0 - contraction * eta[s]
            step = np.array([[kept, eta[s] * momentum], [0.0, momentum]])
            form = step.T @ form @ step
        responses = (forms[:, :, 0] * eta[:, None] + forms[:, :, 1]).T / T
        return cls(eta, momentum, contraction, min(lags, T), responses)

    def diagonals(self) -> Iterator[FloatArray]:
        """Yield W[t, t + l] of all t, for one lag l after the other."""
        kept = 1.0 - self.contraction * self.stepsizes
        position, velocity = self.stepsizes, 1.0
        for lag in range(self.lags):
            by_position, by_velocity = self.responses[:, lag:]
            yield position * by_position + velocity * by_velocity
            velocity *= self.momentum
            position = kept[lag + 1 :] * position[:-1] + velocity * self.stepsizes[lag + 1 :]

    def gram(self, scale: FloatArray) -> FloatArray:
        """Return H with rᵀHr the error of noise n_t = scale_t·Σ_i r_i·ξ_{t−i}, ξ standard normal.

        H[i, j] = Σ_s scale_{s+i}·scale_{s+j}·W[s + i, s + j].
        """
        size, T = self.lags, self.steps
        found = np.zeros((size, size))
        for lag, diagonal in enumerate(self.diagonals()):
            products = diagonal * scale[: T - lag] * scale[lag:]
            sums = np.cumsum(products[::-1])[::-1][: size - lag]
            index = np.arange(size - lag)
            found[index, index + lag] = found[index + lag, index] = sums
        return found

    def pull(self, scale: FloatArray, inverse: FloatArray) -> FloatArray:
        """Return x with Σ x_t·scale_t the error of the same noise: half its gradient in scale.

        Args:
            scale: one number per step.
            inverse: r, as many numbers as there are lags.
        """
        size, T = self.lags, self.steps
        found = np.zeros(T)
        for lag, diagonal in enumerate(self.diagonals()):
            # E[n_t·n_{t+lag}]/(scale_t·scale_{t+lag}); the first steps have fewer terms.
            covariance = np.cumsum(inverse[: size - lag] * inverse[lag:])
            weights = diagonal * covariance[-1]
            weights[: size - lag] = diagonal[: size - lag] * covariance
            found[: T - lag] += weights * scale[lag:]
            if lag:
                found[lag:] += weights * scale[: T - lag]
        return found


def filtered(coefficients: ArrayLike, x: FloatArray) -> FloatArray:
    """Return y with y_t = x_t − Σ_{s≥1} θ_s·y_{t−s}, θ_0 = 1: the coefficients of x(·)/θ(·).

    >>> filtered((1.0, -1.0), np.array([1.0, 2.0, 3.0]))
    array([1., 3., 6.])
    """
    from scipy.linalg.lapack import dtbtrs  # scipy.signal takes half a second to import

    theta = np.asarray(coefficients, dtype=np.float64)[: x.size]
    bands = np.repeat(theta[:, None], x.size, axis=1)
    found, _ = dtbtrs(bands, x, uplo="L")
    return np.asarray(found)
