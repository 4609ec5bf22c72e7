"""What is public about the column that a model predicts."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dither import validate
from dither.schema.cells import as_numbers, lookup
from dither.schema.values import finite_pair, items, labels
from dither.validate import InvalidTypeError, InvalidValueError

_MOST_SHOWN = 20
_SUM_TOLERANCE = 0.01  # shares are often given with two digits


@dataclass(frozen=True)
class Target:
    """The column that a model predicts: its classes, or the bounds of its numbers.

    Args:
        column: its name.
        classes: all classes: texts, integers or truth values.
        shares: public share of each class, if they are known.
        bounds: smallest and largest number, for regression.

    Example:
        >>> Target("readmitted", classes=("no", "yes"), shares=(0.91, 0.09)).classes
        ('no', 'yes')
        >>> Target("price", bounds=(0, 20_000)).bounds
        (0.0, 20000.0)
    """

    column: str
    classes: tuple[str, ...] | tuple[int, ...] | None = None
    shares: tuple[float, ...] | None = None
    bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not validate.instance(str, column=self.column):
            raise InvalidValueError("column must be the name of a column, got ''")
        if (self.classes is None) == (self.bounds is None):
            raise InvalidValueError("classes or bounds must be given, and not both")
        if self.bounds is not None:
            object.__setattr__(self, "bounds", finite_pair(bounds=self.bounds))
        if self.classes is not None:
            object.__setattr__(self, "classes", _checked_classes(self.classes))
        if self.shares is not None:
            object.__setattr__(self, "shares", self._checked_shares(self.shares))

    def _checked_shares(self, shares: Any) -> tuple[float, ...]:
        if self.classes is None:
            raise InvalidValueError("shares are for classes, and there are bounds instead")
        values = tuple(validate.probability(shares=share) for share in items(shares=shares))
        if len(values) != len(self.classes) or abs(sum(values) - 1.0) > _SUM_TOLERANCE:
            raise InvalidValueError(
                f"shares must be one number per class that add up to 1, got {list(values)}"
            )
        return values

    def encode(self, cells: "pd.Series[Any]") -> NDArray[Any]:
        """Return the declared class of each cell, or its number, clipped to the bounds.

        Raises:
            InvalidValueError: if a cell is missing, is no declared class or is no number. The
                message does not have the cell, which is private.
        """
        if self.bounds is not None:
            numbers = as_numbers(cells)
            if np.isnan(numbers).any():
                raise InvalidValueError(
                    f"target {self.column!r} must have a number in every row; some cells are "
                    "missing or no numbers: drop or correct those rows first"
                )
            return np.clip(numbers, *self.bounds)
        classes = np.array(self.classes)
        place = lookup(cells, [str(each) for each in classes], other=-1, missing=-1)
        if (place < 0).any():
            raise InvalidValueError(
                f"target {self.column!r} must have one of the {len(classes)} declared classes in "
                f"every row, {_shown(classes.tolist())}; some cells are missing or another value: "
                "drop or correct those rows first"
            )
        return np.asarray(classes[place])


def _shown(classes: list[Any]) -> str:
    return ", ".join(map(repr, classes[:_MOST_SHOWN])) + ", …" * (len(classes) > _MOST_SHOWN)


def _checked_classes(classes: Any) -> tuple[str, ...] | tuple[int, ...]:
    given = items(classes=classes)
    kinds = {type(each) for each in given}
    if not (len(kinds) == 1 and kinds <= {str, int, bool}):
        raise InvalidTypeError(f"classes must be all texts or all integers, got {given!r}")
    texts = labels(classes=given)
    if len(texts) < 2:
        raise InvalidValueError(f"classes must be at least two, got {given!r}")
    return texts if kinds == {str} else tuple(given)
