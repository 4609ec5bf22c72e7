"""Step sizes from a list."""

from typing import final

from numpy.typing import ArrayLike

from dither import validate
from dither.types import FloatArray, Vector


@final
class Table(Vector):
    """The given step sizes, one a step; another number of steps is refused.

    >>> Table([0.3, 0.2, 0.1]).stepsizes(3)
    array([0.3, 0.2, 0.1])
    """

    __slots__ = ()

    def __init__(self, values: ArrayLike) -> None:
        super().__init__(validate.positives(values=values))

    def stepsizes(self, steps: int) -> FloatArray:
        """Return the values; ``steps`` must be their number."""
        T = validate.step_count(steps=steps)
        if self.values.size != T:
            raise validate.InvalidValueError(
                f"steps must be the table's length, {self.values.size}, got {T}"
            )
        return self.values.copy()
