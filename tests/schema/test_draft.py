"""Drafts: kinds are inferred, nothing else is read off the cells unless that is asked for."""

import datetime
import tomllib
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from dither.schema import Schema, draft
from dither.validate import InvalidTypeError, InvalidValueError

ROWS = 40


def table(seed: int = 0, rows: int = ROWS) -> dict[str, Any]:
    """Return a table whose cells change with the seed, and whose kinds do not."""
    rng = np.random.default_rng(seed)
    some = rng.uniform(size=rows) < 0.7
    first = datetime.date(1950 + seed, 1, 1)
    words = [f"secret{seed}{each}" for each in range(30)]
    return {
        "patient_id": rng.integers(0, 10**6, rows),
        "customerID": rng.integers(0, 10**6, rows),
        "Name": [f"secret{seed}x{row}" for row in range(rows)],
        "age": np.where(some, rng.integers(17 + seed, 80, rows), np.nan),
        "big": rng.integers(10**15 + seed, 10**16, rows),
        "blood pressure": [["12", "7.5", "unknown", ""][(row + seed) % 4] for row in range(rows)],
        "code": [f"{each:03d}" for each in rng.integers(0, 9, rows)],
        "sex": [*"fm", *rng.choice(["f", "m"], rows - 3), None],
        "smoker": ["yes", "no", *rng.choice(["yes", "no", ""], rows - 2)],
        "flag": ["0", "1", *rng.choice(["0", "1"], rows - 2)],
        "is_new": rng.uniform(size=rows) < 0.5,
        "born": [first + datetime.timedelta(days=row) for row in range(rows)],
        "seen": pd.date_range(first, periods=rows),
        "note": [" ".join(rng.choice(words, 6)) for _ in range(rows)],
        "empty": [None] * rows,
        "constant": [f"secret{seed}"] * rows,
        "outcome": ["ill", "well", *rng.choice(["ill", "well"], rows - 2)],
    }


KINDS = {
    "patient_id": "ignored", "customerID": "ignored", "Name": "ignored", "age": "number",
    "big": "number", "blood pressure": "number", "code": "category", "sex": "category",
    "smoker": "yes/no", "flag": "yes/no", "is_new": "yes/no", "born": "ignored",
    "seen": "ignored", "note": "text", "empty": "ignored", "constant": "category",
}  # fmt: skip
FILLED: dict[str, dict[str, list[Any]]] = {
    "bounds": {"age": [0, 120], "big": [0, 1e16], "blood pressure": [0, 20]},
    "values": {"code": ["000", "001"], "sex": ["f", "m"], "constant": ["secret0"]},
}


def kinds(fields: dict[str, Any]) -> dict[str, str]:
    return {name: column["kind"] for name, column in fields["columns"].items()}


def test_kinds_are_inferred_from_cells_of_any_table() -> None:
    frame = pd.DataFrame(table())
    texts = frame.astype(object).where(frame.notna(), "").astype(str)
    for each in (frame, texts, pl.DataFrame(table())):
        assert kinds(draft(each).fields) == KINDS


def test_a_draft_has_nothing_of_the_cells_but_kinds() -> None:
    drafts = [draft(table(seed)).to_toml() for seed in (0, 1, 2)]
    assert drafts[0] == drafts[1] == drafts[2]
    assert "secret" not in drafts[0]
    # The comparison finds what is read off.
    filled = [draft(table(seed), fill=True).to_toml() for seed in (0, 1)]
    assert filled[0] != filled[1]


@pytest.mark.parametrize("fill", [False, True])
def test_every_line_that_needs_a_person_is_marked(fill: bool) -> None:
    made = draft(table(), fill=fill)
    lines = made.to_toml().splitlines()
    assert tomllib.loads(made.to_toml()) == made.fields
    assert sum(line.startswith("kind =") for line in lines) == len(KINDS)
    for line in lines:
        key, _, value = line.partition(" = ")
        if key == "kind":
            assert "# INFERRED FROM THE CELLS" in value or "# an identifier by its name" in value
        elif key in ("bounds", "values", "classes", "missing"):
            assert (
                "# READ OFF THE TABLE: confirm that it is public" if fill else "FILL IN: "
            ) in value
            assert fill or value.startswith(('"?"', '["?", "?"]'))
    assert any(line.startswith("column =") and "GUESSED" in line for line in lines)
    assert bool(made.to_fill) != fill


def test_a_draft_is_a_schema_once_it_is_filled_in_and_confirmed() -> None:
    made = draft(table())
    with pytest.raises(InvalidValueError, match="must be filled in") as error:
        Schema.from_dict(made.fields)
    assert all(each in str(error.value) for each in made.to_fill)
    fields = made.fields
    for key, columns in FILLED.items():
        for name, value in columns.items():
            fields["columns"][name][key] = value
    fields["target"]["classes"] = ["ill", "well"]
    with pytest.raises(InvalidValueError, match="confirmed must be true"):
        Schema.from_dict(fields)
    schema = Schema.from_dict({**fields, "confirmed": True})
    assert schema.encode(table()).shape == (ROWS, len(schema.feature_names()))
    assert schema.encode_target(table()).tolist() == table()["outcome"]


def test_what_was_read_off_is_what_the_table_has() -> None:
    made = draft(table(), fill=True)
    schema = Schema.from_dict({**made.fields, "confirmed": True})
    columns = made.fields["columns"]
    assert columns["age"]["bounds"] == [10, 80]
    # A usual value is public knowledge; the middle of bounds that were read off is not.
    assert all("missing" not in column for column in columns.values())
    assert "missing = VALUE" in made.comments["columns.age"]["bounds"]
    assert columns["sex"]["values"] == ["f", "m"]
    assert schema.classes == ("ill", "well")
    features = pd.DataFrame(schema.encode(table()), columns=schema.feature_names())
    assert not features.filter(like="(other)").to_numpy().any()
    for name in ("age", "big", "blood pressure"):
        numbers = pd.to_numeric(pd.Series(table()[name]), errors="coerce")
        low, high = columns[name]["bounds"]
        assert low <= numbers.min() <= numbers.max() <= high


@pytest.mark.parametrize(
    ("columns", "target", "fields"),
    [
        ({"label": [0, 1, 1], "x": [1, 2, 3]}, None, {"column": "label", "classes": [0, 1]}),
        ({"x": [1, 2, 3], "Target": ["a", "b", "b"]}, None,
         {"column": "Target", "classes": ["a", "b"]}),
        ({"y": [2, -1, 10], "x": [1, 2, 3]}, "y", {"column": "y", "classes": [-1, 2, 10]}),
        ({"y": [True, False, True], "x": [1, 2, 3]}, "y",
         {"column": "y", "classes": ["false", "true"]}),
        ({"x": [*range(30)], "price": [*range(30)]}, None, {"column": "price", "bounds": [0, 30]}),
    ],
)  # fmt: skip
def test_targets(columns: dict[str, Any], target: str | None, fields: dict[str, Any]) -> None:
    made = draft(columns, target=target, fill=True)
    assert made.fields["target"] == fields
    assert ("GUESSED" in made.comments["target"].get("column", "")) == (target is None)
    Schema.from_dict({**made.fields, "confirmed": True}).encode_target(columns)
    assert draft(columns, target=target).to_fill[0].endswith(" of target")


@pytest.mark.parametrize(
    ("given", "target", "message"),
    [
        ({"x": [1]}, None, "table must have at least two columns, got 1"),
        ({"x": [1], "y": [2]}, "z", "target must be one of x, y, got 'z'"),
        ({"x": [1], "y": [None]}, "y", "target must have cells that are not empty, got 'y'"),
        ({"x": [], "y": []}, "y", "target must have cells that are not empty, got 'y'"),
        (np.zeros((2, 2)), None, "table must be a data frame"),
    ],
)
def test_a_table_that_cannot_be_drafted_is_one_line(
    given: Any, target: str | None, message: str
) -> None:
    with pytest.raises((InvalidValueError, InvalidTypeError)) as error:
        draft(given, target=target)
    assert message in str(error.value)


def test_a_draft_names_columns_that_may_be_users_and_chooses_none() -> None:
    made = draft(
        {**table(), "id": range(ROWS), "ill": [0, 1] * (ROWS // 2)}, target="ill", fill=True
    )
    text = made.to_toml()
    hints = [line for line in text.splitlines() if line.startswith("# users = ")]
    assert [line.split('"')[1] for line in hints] == ["patient_id", "customerID"]
    confirmed = text.replace("confirmed = false", "confirmed = true")
    assert Schema.from_dict(tomllib.loads(confirmed)).users is None
    chosen = confirmed.replace(hints[1], hints[1].removeprefix("# "))
    assert Schema.from_dict(tomllib.loads(chosen)).users == "customerID"
