"""What the white-box attacker computes: the likelihood ratio of all releases along a canary.

Correlated noise is whitened first. In clip norms the release of step t along a canary is
y_t = g_t + z_t·ν_t·u_t, where θ(x)·u = ξ is standard normal noise (`dither.noise.correlated`) and
g_t is 1 if the canary was drawn. The rows v_t = Σ_k θ_k·y_{t−k}/(z_{t−k}·ν_{t−k}) of C·G + Z have
the independent noise ξ_t, and a canary that was drawn in step s adds θ_k/(z_s·ν_s) to row s + k: a
column of norm 1/z_s. All that the rows s … s+b−1 say about step s is their projection on it,
x_s = z_s/ν_s·Σ_k θ_k·v_{s+k}, a Gaussian of mean g_s and standard deviation z_s. A canary of subset
j takes part in the steps s ≡ j mod b alone, whose rows are disjoint: the likelihood ratio is the
product over them of subsampled Gaussians. The attacker does not know j, and takes the mean over all
subsets. Independent noise is the case b = 1, in which x is y.
"""

import math
from typing import final

import numpy as np
from scipy.special import logsumexp

from dither.planning import Plan, ReactivePlan
from dither.types import FloatArray

_LARGEST = 700.0  # its exponential is a float


def log_likelihood_ratio(
    x: FloatArray, z: float | FloatArray, sample_rate: float, *, replaced: bool
) -> FloatArray:
    """Return log(p_in/p_out) of one step's release along a canary's direction, in clip norms.

    A canary that is in is drawn with probability q, and then moves the release by 1. One that is
    out does nothing, or, if it is *replaced* by its opposite, moves it by −1.
    """
    here = _log_mixture(x, z, sample_rate)
    return here - _log_mixture(-x, z, sample_rate) if replaced else here


def _log_mixture(x: FloatArray, z: float | FloatArray, q: float) -> FloatArray:
    """Return log(1 − q + q·e^((2x−1)/2z²)), the density of a drawn canary over that of noise."""
    drawn = (x - 0.5) / np.square(z)
    if q == 1.0:
        return np.asarray(drawn)
    return np.asarray(np.log((1.0 - q) + q * np.exp(np.minimum(drawn, _LARGEST))))


@final
class LikelihoodRatio:
    """The log likelihood ratio of many canaries, from one release after the other.

    Args:
        plan: of the releases.
        canaries: how many there are.

    Example:
        >>> plan = Plan.from_noise_multipliers(
        ...     [2.0, 2.0], delta=1e-5, dataset_size=9, batch_size=9)
        >>> ratio = LikelihoodRatio(plan, canaries=3)
        >>> for y in ([0.0, 1.0, 2.0], [0.0, 1.0, 0.0]):
        ...     ratio.add(np.array(y), 2.0)
        >>> ratio.finish()
        array([-0.25,  0.25,  0.25])
    """

    def __init__(self, plan: Plan | ReactivePlan, canaries: int) -> None:
        correlation = plan.correlation if isinstance(plan, Plan) else None
        self._theta = np.array(correlation or (1.0,))
        self._norms = plan.column_norms if isinstance(plan, Plan) else np.ones(plan.steps)
        self._rate, self._replaced = plan.charge_rate, plan.sampling == "fixed"
        self._z = list[float]()
        # Of the last steps: what was released, in units of its noise, and rows of C·G + Z.
        self._released, self._rows = np.zeros((2, self._theta.size, canaries))
        self._ratios = np.zeros((plan.bands, canaries))

    def add(self, release: FloatArray, noise_multiplier: float) -> None:
        """Add the next release, in clip norms."""
        t, b = len(self._z), self._theta.size
        np.divide(release, noise_multiplier * self._norms[t], out=self._released[t % b])
        self._z.append(noise_multiplier)
        self._add_row(t, self._theta[(t - np.arange(b)) % b] @ self._released)

    def finish(self) -> FloatArray:
        """Return the log likelihood ratio of all releases, after the last."""
        for t in range(len(self._z), len(self._z) + self._theta.size - 1):
            self._add_row(t, 0.0)  # the last columns end here
        return np.asarray(logsumexp(self._ratios, axis=0) - math.log(len(self._ratios)))

    def _add_row(self, t: int, row: FloatArray | float) -> None:
        b = self._theta.size
        s = t - b + 1  # all rows of its column are known now
        self._rows[t % b] = row
        if s >= 0:
            z = self._z[s]
            x = self._theta[(np.arange(b) - s) % b] * (z / self._norms[s]) @ self._rows
            self._ratios[s % len(self._ratios)] += log_likelihood_ratio(
                x, z, self._rate, replaced=self._replaced
            )
