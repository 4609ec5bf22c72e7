"""Relative noise from a list."""

from typing import final

from numpy.typing import ArrayLike

from dither import validate
from dither.types import Budget, FloatArray, Vector


@final
class Custom(Vector):
    """The given α, one a step.

    >>> Custom([1.0, 2.0]).alphas([0.1, 0.1])
    array([1., 2.])
    """

    __slots__ = ()

    def __init__(self, values: ArrayLike) -> None:
        super().__init__(validate.positives(values=values))

    def alphas(self, stepsizes: ArrayLike, *, budget: Budget | None = None) -> FloatArray:
        """Return the values; there must be as many step sizes."""
        T = validate.positives(stepsizes=stepsizes).size
        return validate.same_length(T, values=self.values).copy()
