"""The best of a random number of runs: what a search over settings costs.

A run Q is repeated K times, and only the best outcome is released. If K were fixed, that could cost
K times as much; if K is random with the right tail, and not released either, it costs little more
than one run. For K from the truncated negative binomial distribution with parameters η > −1 and
γ ∈ (0, 1), and Q with Rényi divergences D(λ), the search has at every order λ > 1

    D(λ) + (1 + η)·min over μ ≥ 1 of [(1 − 1/μ)·D(μ) + log(1/γ)/μ] + log(E[K])/(λ − 1)

(Papernot and Steinke, "Hyperparameter Tuning with Rényi Differential Privacy", 2022, theorem 2).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import final

import numpy as np

from dither import validate
from dither.types import FloatArray

_ROUNDING = 1e-12


@final
@dataclass(frozen=True)
class TrialCount:
    """The distribution of the number of runs: truncated negative binomial on 1, 2, ….

    Args:
        mean: E[K], at least 1.
        shape: η, from 0 to 10: 0 is the logarithmic distribution, 1 the geometric one. Larger
            shapes make few runs rarer and cost more.

    Example:
        >>> TrialCount(10.0, shape=1.0).gamma
        0.1
        >>> few = TrialCount(10.0, shape=1.0).probabilities()
        >>> [round(next(few), 4) for _ in range(3)]
        [0.1, 0.09, 0.081]
    """

    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        """Check the parameters."""
        object.__setattr__(self, "mean", validate.positive(mean=self.mean))
        object.__setattr__(self, "shape", validate.nonnegative(shape=self.shape))
        if not 1.0 <= self.mean <= 1e9:
            raise validate.InvalidValueError(f"mean must be from 1 to 1e9, got {self.mean!r}")
        if self.shape > 10.0:
            raise validate.InvalidValueError(f"shape must be at most 10, got {self.shape!r}")

    @property
    def gamma(self) -> float:
        """γ, from the mean and the shape; 1 if there is always one run."""
        if self.mean == 1.0:
            return 1.0
        if self.shape == 1.0:
            return 1.0 / self.mean
        from scipy.optimize import brentq

        found = brentq(lambda x: _log_mean(x, self.shape) - math.log(self.mean), -60.0, 36.0)
        return 1.0 / (1.0 + math.exp(-float(found)))

    def probabilities(self) -> Iterator[float]:
        """Yield P[K = 1], P[K = 2], …."""
        gamma, eta = self.gamma, self.shape
        if gamma == 1.0:
            chance = 1.0
        elif eta == 0.0:
            chance = (1.0 - gamma) / -math.log(gamma)
        else:
            chance = (1.0 - gamma) * eta / math.expm1(-eta * math.log(gamma))
        for k in count(1):
            yield chance
            chance *= (1.0 - gamma) * (k + eta) / (k + 1)


def _log_mean(logit: float, eta: float) -> float:
    """Return log E[K] where γ = 1/(1 + e^(−logit)); it falls as γ grows."""
    odds, log_gamma = -logit, -math.log1p(math.exp(-logit))  # log((1−γ)/γ), log γ
    if eta == 0.0:
        return odds - math.log(-log_gamma)
    return odds + math.log(eta) - math.log(-math.expm1(eta * log_gamma))


def selection_divergences(
    divergences: FloatArray, orders: FloatArray, trials: TrialCount
) -> FloatArray:
    """Return the RDP of a search at each order, from that of one run at the same orders.

    Args:
        divergences: of one run, settings and score included.
        orders: λ, all above 1.
        trials: how the number of runs is drawn.

    Example:
        >>> orders = np.array([2.0, 8.0, 32.0])
        >>> selection_divergences(0.01 * orders, orders, TrialCount(10.0)).round(3)
        array([3.038, 1.125, 1.11 ])
    """
    D = np.asarray(divergences, np.float64)
    log_gamma = math.log(trials.gamma)
    least = float(np.min((1.0 - 1.0 / orders) * D - log_gamma / orders))
    found = D + (1.0 + trials.shape) * least + math.log(trials.mean) / (orders - 1.0)
    return np.asarray(found * (1.0 + _ROUNDING) + _ROUNDING)
