"""How well a schema fits a table: shares of cells that it does not understand.

The shares are exact and private. They are for the eyes of whoever has the table, before anything
is spent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dither.schema.cells import as_numbers, coded, lookup
from dither.schema.columns import Category, Column, Number, YesNo
from dither.schema.target import Target

_MANY = 0.5
_PRIVATE = "These figures are exact and private: do not publish them."


@dataclass(frozen=True)
class Fit:
    """How well a schema fits a table, without noise: private.

    Attributes:
        columns: per column that is not ignored, the target and the users included, the share of
            cells that are "missing", "other", "no number" or "out of bounds", where that can be.
        absent: columns of the schema that the table has not.
        unknown: columns of the table that the schema has not, which are not used.

    Example:
        >>> from dither.schema import Schema
        >>> schema = Schema({"age": Number(bounds=(0, 100)), "smoker": YesNo()})
        >>> found = schema.check({"age": ["61,5", "45", "300"], "smoker": ["ja", "nein", None]})
        >>> found.marked
        ['age', 'smoker']
        >>> found.columns["smoker"]["other"] == 2 / 3
        True
    """

    columns: Mapping[str, Mapping[str, float]]
    absent: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def marked(self) -> list[str]:
        """Columns of which the schema does not understand more than half of the cells."""
        return [name for name, shares in self.columns.items() if sum(shares.values()) > _MANY]

    def __str__(self) -> str:
        width = max(map(len, self.columns), default=0)
        lines = [_PRIVATE]
        for name, shares in self.columns.items():
            found = ", ".join(f"{100 * each:.3g} % {what}" for what, each in shares.items() if each)
            mark = "CHECK" if name in self.marked else ""
            lines.append(f"{mark:5}  {name:<{width}}  {found or 'all cells fit'}")
        if self.absent:
            lines.append(f"Not in the table: {', '.join(self.absent)}")
        if self.unknown:
            lines.append(f"Not in the schema, and not used: {', '.join(self.unknown)}")
        return "\n".join(lines)


def shares_of(kind: Column | Target, cells: "pd.Series[Any]") -> dict[str, float]:
    """Return the shares of cells that a column, or the target, does not understand."""
    codes, texts = coded(cells)
    missing = np.array([*(text is None for text in texts), True])[codes]
    found = {"missing": missing}
    if isinstance(kind, Category):
        found["other"] = _others(cells, kind.values)
    elif isinstance(kind, YesNo):
        known = {*kind.yes, *kind.no}
        is_other = [text is not None and text.lower() not in known for text in texts]
        found["other"] = np.array([*is_other, False])[codes]
    elif isinstance(kind, Target) and kind.classes is not None:
        found["other"] = _others(cells, kind.classes)
    elif isinstance(kind, Number | Target) and kind.bounds is not None:
        numbers = as_numbers(cells)
        found["no number"] = np.isnan(numbers) & ~missing
        found["out of bounds"] = (numbers < kind.bounds[0]) | (numbers > kind.bounds[1])
    return {what: float(where.mean()) if len(where) else 0.0 for what, where in found.items()}


def _others(cells: "pd.Series[Any]", values: tuple[Any, ...]) -> NDArray[np.bool_]:
    return lookup(cells, map(str, values), other=-1, missing=0) < 0
