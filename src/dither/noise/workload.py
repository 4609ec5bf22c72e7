"""How noise reaches the iterates of a run: the matrix W of its second moments.

Noise n_t of step t moves the velocity, v_t = β·v_{t−1} + n_t, and the velocity the parameters,
θ_t = (1 − λ·η_t)·θ_{t−1} + η_t·v_t: what descent does near a minimum of curvature λ. So iterate k
has Σ_t A[k, t]·n_t in it, and the mean over the iterates of its squared norm is Σ W[t, s]·n_t·n_s
with W = AᵀA/T. Noise whose inverse correlation dies out needs W near its diagonal only; that takes
time and memory in proportion to the steps.
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from dither.types import FloatArray


@final
@dataclass(frozen=True, eq=False)
class Workload:
    """W near its diagonal.

    Attributes:
        lags: W[t, t + l] in row l, column t; zero where t + l is beyond the last step.
    """

    lags: FloatArray

    @property
    def steps(self) -> int:
        """T."""
        return int(self.lags.shape[1])

    @classmethod
    def of(
        cls, stepsizes: FloatArray, *, momentum: float, contraction: float, lags: int
    ) -> "Workload":
        """Return the workload of descent with momentum β, where λ·max(η) is the contraction.

        >>> Workload.of(np.ones(3), momentum=0.0, contraction=0.0, lags=2).lags * 3
        array([[3., 2., 1.],
               [2., 1., 0.]])
        """
        eta, T = stepsizes / stepsizes.max(), stepsizes.size
        kept = 1.0 - contraction * eta
        # The response of all later iterates to the state (θ, v) after step s, as a quadratic form.
        forms, form = np.empty((T, 2, 2)), np.zeros((2, 2))
        for s in range(T - 1, -1, -1):
            form[0, 0] += 1.0
            forms[s] = form
            step = np.array([[kept[s], eta[s] * momentum], [0.0, momentum]])
            form = step.T @ form @ step
        by_position, by_velocity = (forms[:, :, 0] * eta[:, None] + forms[:, :, 1]).T
        rows = np.zeros((min(lags, T), T))
        position, velocity = eta.copy(), np.ones(T)
        for lag in range(len(rows)):
            rows[lag, : T - lag] = position * by_position[lag:] + velocity * by_velocity[lag:]
            position, velocity = position[:-1], momentum * velocity[:-1]
            position = kept[lag + 1 :] * position + eta[lag + 1 :] * velocity
        return cls(rows / T)

    def gram(self, scale: FloatArray) -> FloatArray:
        """Return H with rᵀHr the error of noise n_t = scale_t·Σ_i r_i·ξ_{t−i}, ξ standard normal.

        H[i, j] = Σ_s scale_{s+i}·scale_{s+j}·W[s + i, s + j].
        """
        size, T = self.lags.shape
        found = np.zeros((size, size))
        for lag in range(size):
            products = self.lags[lag, : T - lag] * scale[: T - lag] * scale[lag:]
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
        size, T = self.lags.shape
        found = np.zeros(T)
        for lag in range(size):
            # E[n_t·n_{t+lag}]/(scale_t·scale_{t+lag}); the first steps have fewer terms.
            covariance = np.cumsum(inverse[: size - lag] * inverse[lag:])
            terms = np.minimum(np.arange(T - lag), covariance.size - 1)
            weights = self.lags[lag, : T - lag] * covariance[terms]
            found[: T - lag] += weights * scale[lag:]
            if lag:
                found[lag:] += weights * scale[: T - lag]
        return found
