"""Noise that follows a power of the step size."""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from dither import validate
from dither.types import Budget, FloatArray


@final
@dataclass(frozen=True)
class Power:
    """α_t = η_t^(−exponent).

    Exponent 0 is ``Uniform``, 1/2 is ``Matched``; 1 makes the noise that reaches the parameters,
    η_t·α_t, the same at every step.

    >>> Power(1.0).alphas([1.0, 0.5])
    array([1., 2.])
    """

    exponent: float

    def __post_init__(self) -> None:
        """Check the exponent."""
        object.__setattr__(self, "exponent", validate.finite(exponent=self.exponent))

    def alphas(self, stepsizes: ArrayLike, *, budget: Budget | None = None) -> FloatArray:
        """Return η_t^(−exponent); the budget is not needed."""
        eta = validate.positives(stepsizes=stepsizes)
        with np.errstate(all="ignore"):
            return validate.positives(alphas=eta**-self.exponent)


@final
@dataclass(frozen=True)
class Uniform:
    """α_t = 1: DP-SGD, the same noise at every step.

    >>> Uniform().alphas([1.0, 0.5])
    array([1., 1.])
    """

    def alphas(self, stepsizes: ArrayLike, *, budget: Budget | None = None) -> FloatArray:
        """Return ones; the budget is not needed."""
        return np.ones_like(validate.positives(stepsizes=stepsizes))


@final
@dataclass(frozen=True)
class Matched:
    """α_t = η_t^(−1/2): ADP-SGD, the paper's rule α_t² = b_t.

    It minimises the noise that reaches the parameters, Σ η_t²·α_t²·σ², where a step costs
    1/α_t²: the cost of the paper's theorem, and the large-noise limit of the real one.

    >>> Matched().alphas([1.0, 0.25])
    array([1., 2.])

    Reference: theorem 4.2 and remark 4.1 of the paper.
    """

    def alphas(self, stepsizes: ArrayLike, *, budget: Budget | None = None) -> FloatArray:
        """Return 1/√η_t; the budget is not needed."""
        return 1.0 / np.sqrt(validate.positives(stepsizes=stepsizes))
