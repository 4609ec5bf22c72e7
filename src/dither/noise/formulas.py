"""Noise that is a formula of the step sizes: uniform, matched, powers, a growth bound, a list."""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from dither import validate
from dither.types import Budget, FloatArray, Vector


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
class GrowthBound:
    """α_t = (b_0² + (t+1)·C)^(1/4), from a bound on how b_t can grow.

    For step sizes that react to gradients: b_t is not known in advance, but b_t² lies between
    b_0² + t·ν and b_0² + t·G². Only the number of step sizes counts, not their values.

    >>> GrowthBound(b0_squared=15.0, growth=1.0).alphas([0.1, 0.1]).round(4)
    array([2.    , 2.0305])

    Args:
        b0_squared: b_0², positive.
        growth: C, positive; the paper searches it between ν and G².

    Reference: section 5.2 of the paper.
    """

    b0_squared: float = 20.0
    growth: float = 1e-4

    def __post_init__(self) -> None:
        """Check the parameters."""
        object.__setattr__(self, "b0_squared", validate.positive(b0_squared=self.b0_squared))
        object.__setattr__(self, "growth", validate.positive(growth=self.growth))

    def alphas(self, stepsizes: ArrayLike, *, budget: Budget | None = None) -> FloatArray:
        """Return (b_0² + (t+1)·C)^(1/4); the budget is not needed."""
        T = validate.positives(stepsizes=stepsizes).size
        return (self.b0_squared + self.growth * np.arange(1, T + 1, dtype=np.float64)) ** 0.25


@final
class Custom(Vector):
    """The given α, one per step.

    >>> Custom([1.0, 2.0]).alphas([0.1, 0.1])
    array([1., 2.])
    """

    def __init__(self, values: ArrayLike) -> None:
        super().__init__(validate.positives(values=values))

    def alphas(self, stepsizes: ArrayLike, *, budget: Budget | None = None) -> FloatArray:
        """Return the values; there must be as many step sizes."""
        T = validate.positives(stepsizes=stepsizes).size
        return validate.same_length(T, values=self.values).copy()
