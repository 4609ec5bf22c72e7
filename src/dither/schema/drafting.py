"""Drafts of schemas: names and inferred kinds, and marked lines for what must be public knowledge.

A draft cannot be used until a person has filled it in and confirmed it. Bounds, values and classes
are placeholders, unless the caller asks to read them off the table: then their lines say so.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dither import validate
from dither.schema.cells import as_numbers, coded
from dither.schema.columns import NO, YES
from dither.schema.parsing import PLACEHOLDER, placeholders
from dither.schema.tables import column_names, columns_of, is_path, read_table
from dither.schema.toml import toml, toml_key, toml_table
from dither.types import FloatArray
from dither.validate import InvalidValueError

MOST_CATEGORIES = 100
MOST_CLASSES = 20
_WORDS_OF_TEXT = 4.0
_IDENTIFIER = re.compile(r"(.*[ _.-])?(id|ids|uuid|guid|identifier)|unnamed: \d+", re.IGNORECASE)
_CAMEL_IDENTIFIER = re.compile(r".*[a-z](ID|Id|UUID|Uuid)")
_OF_SOMEBODY = re.compile(r".*[ _.-](id|uuid|guid|identifier)|.*[a-z](ID|Id|UUID|Uuid)")
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([ T].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}( .*)?")
_CODE = re.compile(r"[+-]?0\d+")
_NO_NUMBER = {"na", "n/a", "nan", "null", "none", "unknown", "-", "?"}

_MISSING = "; if cells can be missing, add a line: missing = VALUE, a usual one"
_USERS = "if this column says whose each row is, and people have several: protects people, not rows"
_READ = "READ OFF THE TABLE: confirm that it is public, or replace it"
_HEAD = """\
# Draft of the public schema of {name}. A schema is as public as the model that it goes with.
# 1. Replace each "?" by public knowledge: what is known without looking at the rows.
# 2. Check each line that is marked INFERRED, GUESSED or READ OFF THE TABLE in the same way.
# 3. Set confirmed = true.
# Kinds: "number" (bounds), "category" (values), "yes/no" (yes, no), "text" (buckets), "ignored".
# Numbers may also have: missing = VALUE (a public value for missing cells, and a feature that says
# so), scale = "log" (for heavy tails), knots = [0, 18, 65, 120] (for splines).
confirmed = false  # true: everything in this file is public knowledge, names of columns included
"""


@dataclass(frozen=True)
class Draft:
    """A schema that has not been confirmed.

    Attributes:
        fields: as `Schema.from_dict` takes them, with placeholders.
        comments: of the target and of columns, for each key that has one.
        name: of the table.

    Example:
        >>> import pandas as pd
        >>> table = pd.DataFrame({"age": [61, 45], "label": ["ill", "well"]})
        >>> made = draft(table)
        >>> made.to_fill
        ['classes of target', "bounds of column 'age'"]
        >>> made.fields["columns"]
        {'age': {'kind': 'number', 'bounds': ['?', '?']}}
    """

    fields: dict[str, Any]
    comments: dict[str, dict[str, str]]
    name: str

    @property
    def to_fill(self) -> list[str]:
        """What is to be filled in."""
        return placeholders(self.fields["target"], self.fields["columns"])

    def to_toml(self) -> str:
        """Return the draft as TOML, with comments that say what to do."""
        users = "".join(
            f"# users = {toml(name)}  # {_USERS}\n"
            for name in self.fields["columns"]
            if _OF_SOMEBODY.fullmatch(name)
        )
        parts = [_HEAD.format(name=" ".join(self.name.split())) + users]
        parts.append(toml_table("target", self.fields["target"], self.comments["target"]))
        for name, column in self.fields["columns"].items():
            comments = self.comments[f"columns.{name}"]
            parts.append(toml_table(f"columns.{toml_key(name)}", column, comments))
        return "\n".join(parts)


def draft(table: Any, *, target: str | None = None, fill: bool = False) -> Draft:
    """Return a draft of the schema of a table.

    Kinds of columns are inferred from the cells, and a person must confirm that they are public.

    Args:
        table: a data frame of pandas or polars, a mapping of columns, or the path of a .csv,
            .csv.gz or .parquet file.
        target: the column to predict; None guesses: the one called label or target, else the last.
        fill: read bounds and values off the table. They are private until a person has confirmed
            that they are public.

    Raises:
        InvalidValueError: if the table cannot be read, has no such target or no rows.

    Example:
        >>> import pandas as pd
        >>> made = draft(pd.DataFrame({"age": [61, 45], "ill": ["no", "yes"]}), fill=True)
        >>> made.fields["columns"]["age"]["bounds"], made.fields["target"]["classes"]
        ([40, 70], ['no', 'yes'])
    """
    name = Path(table).name if is_path(table) else "a table"
    table = read_table(table) if is_path(table) else table
    names = [str(each) for each in column_names(table)]
    chosen, why = _find_target(names, target)
    columns = {name: _Cells.of(cells) for name, cells in columns_of(table, names).items()}
    if not columns[chosen].texts:
        raise InvalidValueError(f"target must have cells that are not empty, got {chosen!r}")
    fields, comments = _target(columns[chosen], fill)
    drafted = {key: _column(key, columns[key], fill) for key in names if key != chosen}
    return Draft(
        {
            "confirmed": False,
            "target": {"column": chosen, **fields},
            "columns": {key: column for key, (column, _) in drafted.items()},
        },
        {
            "target": {"column": why, **comments} if why else comments,
            **{f"columns.{key}": notes for key, (_, notes) in drafted.items()},
        },
        name,
    )


def _find_target(names: list[str], target: str | None) -> tuple[str, str]:
    """Return the target, and why it is the one if that was guessed."""
    if len(names) < 2:
        raise InvalidValueError(f"table must have at least two columns, got {len(names)}")
    if target is not None:
        return validate.choice(names, target=target), ""
    for name in names:
        if name.lower() in ("label", "target"):
            return name, "GUESSED FROM ITS NAME: replace it if another column is to be predicted"
    return names[-1], "GUESSED, THE LAST COLUMN: replace it if another column is to be predicted"


@dataclass(frozen=True)
class _Cells:
    """What the cells of a column show.

    Attributes:
        texts: the distinct texts, in sorted order.
        rows: how many cells are not missing.
        numbers: the finite numbers, if all cells are numbers that are not missing.
        dtype: of the column.
    """

    texts: list[str]
    rows: int
    numbers: FloatArray | None
    dtype: Any

    @classmethod
    def of(cls, cells: "pd.Series[Any]") -> "_Cells":
        codes, found = coded(cells)
        texts = sorted({text for text in found if text is not None})
        is_text = np.array([*(text is not None for text in found), False])
        rows = int(is_text[codes].sum())
        of_numbers = [text for text in texts if text.lower() not in _NO_NUMBER]
        parsed = as_numbers(pd.Series(of_numbers, dtype=object))
        numbers = None
        if of_numbers and not np.isnan(parsed).any() and not any(map(_CODE.fullmatch, of_numbers)):
            values = as_numbers(cells)
            numbers = values[np.isfinite(values)]
            rows = int(np.isfinite(values).sum())
        return cls(texts, rows, numbers, cells.dtype)

    @property
    def is_yes_no(self) -> bool:
        if pd.api.types.is_bool_dtype(self.dtype):
            return True
        found = {text.lower() for text in self.texts}
        return len(found) == 2 and bool(found & {*YES}) and bool(found & {*NO})

    @property
    def is_date(self) -> bool:
        is_written = all(_DATE.fullmatch(text) for text in self.texts)
        return is_written or pd.api.types.is_datetime64_any_dtype(self.dtype)

    @property
    def words(self) -> float:
        """How many words the texts have on average."""
        return sum(len(text.split()) for text in self.texts) / len(self.texts)


def _inferred(why: str = "") -> dict[str, str]:
    because = f" ({why})" if why else ""
    return {"kind": f"INFERRED FROM THE CELLS{because}: confirm that it is public, or replace it"}


def _column(name: str, cells: _Cells, fill: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the drafted keys of a column, and their comments."""
    if _IDENTIFIER.fullmatch(name) or _CAMEL_IDENTIFIER.fullmatch(name):
        return {"kind": "ignored"}, {"kind": "an identifier by its name"}
    if not cells.texts:
        return {"kind": "ignored"}, _inferred("all are empty")
    if cells.is_date:
        return {"kind": "ignored"}, _inferred("dates, of which a number can be made")
    if cells.is_yes_no:
        return {"kind": "yes/no"}, _inferred()
    if cells.numbers is not None and cells.numbers.size:
        return _number(cells.numbers, fill)
    return _text(cells, fill)


def _text(cells: _Cells, fill: bool) -> tuple[dict[str, Any], dict[str, str]]:
    distinct = len(cells.texts)
    is_prose = cells.words >= _WORDS_OF_TEXT
    if distinct == cells.rows and not is_prose:
        return {"kind": "ignored"}, _inferred("all differ, as identifiers do")
    if distinct > MOST_CATEGORIES or (is_prose and 2 * distinct > cells.rows):
        why = "words are hashed" if is_prose else f"more than {MOST_CATEGORIES} values are hashed"
        return {"kind": "text", "buckets": 64}, _inferred(why)
    if fill:
        return {"kind": "category", "values": cells.texts}, {**_inferred(), "values": _READ}
    note = 'FILL IN: the values, such as ["a", "b"]; any other is encoded as "other"'
    return {"kind": "category", "values": PLACEHOLDER}, {**_inferred(), "values": note}


def _number(numbers: FloatArray, fill: bool) -> tuple[dict[str, Any], dict[str, str]]:
    fields: dict[str, Any]
    if not fill:
        note = "FILL IN: the smallest and the largest possible number, such as [0, 120]"
        fields = {"kind": "number", "bounds": [PLACEHOLDER, PLACEHOLDER]}
        return fields, {**_inferred(), "bounds": note + _MISSING}
    bounds = _outwards(float(numbers.min()), float(numbers.max()))
    return {"kind": "number", "bounds": bounds}, {**_inferred(), "bounds": _READ + _MISSING}


def _target(cells: _Cells, fill: bool) -> tuple[dict[str, Any], dict[str, str]]:
    is_number = cells.numbers is not None and len(cells.texts) > MOST_CLASSES
    what = "numbers" if is_number else "classes"
    note = f"INFERRED FROM THE CELLS ({what}): confirm that it is public. FILL IN: "
    if is_number and cells.numbers is not None:
        if fill:
            bounds = _outwards(float(cells.numbers.min()), float(cells.numbers.max()))
            return {"bounds": bounds}, {"bounds": _READ}
        wanted = "the smallest and the largest possible number, such as [0, 20000]"
        return {"bounds": [PLACEHOLDER, PLACEHOLDER]}, {"bounds": note + wanted}
    if fill:
        is_integer = all(re.fullmatch(r"-?(0|[1-9]\d*)", text) for text in cells.texts)
        classes = [int(text) for text in cells.texts] if is_integer else cells.texts
        return {"classes": sorted(classes)}, {"classes": _READ}
    wanted = 'all of them, such as ["no", "yes"]'
    return {"classes": PLACEHOLDER}, {"classes": note + wanted}


def _outwards(low: float, high: float) -> list[float]:
    """Return round bounds around numbers.

    >>> _outwards(17, 90), _outwards(0.23, 5.01), _outwards(7, 7), _outwards(-123456, 99999)
    ([10, 90], [0, 6], [7, 8], [-200000, 100000])
    """
    width = high - low if high - low > 1e-9 * abs(high) else abs(high)
    step = 10.0 ** math.floor(math.log10(width or 1.0))
    least, most = math.floor(low / step), math.ceil(high / step)
    return [_short(least * step), _short(max(most, least + 1) * step)]


def _short(number: float) -> float:
    """Return a number without digits that are due to rounding, as an integer if it is one."""
    short = float(f"{number:.12g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
