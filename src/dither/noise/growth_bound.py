"""Noise fixed in advance for step sizes that are not."""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from dither import validate
from dither.types import Budget, FloatArray


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
