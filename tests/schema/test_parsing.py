"""Schemas as dicts and files: what is read is what was written, and mistakes are one line."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import dither
from dither.schema import Category, Ignored, Number, Schema, Target, Text, YesNo
from dither.validate import InvalidTypeError, InvalidValueError

TOML = """
confirmed = true

[target]
column = "readmitted"
classes = ["no", "yes"]
shares = [0.91, 0.09]

[columns.age]
kind = "number"
bounds = [0, 120]
missing = 40
knots = [0, 18, 40, 65, 120]

[columns."household income"]
kind = "number"
bounds = [-1e6, 1e6]
scale = "log"

[columns.sex]
kind = "category"
values = ["f", "m", "?", 7, true]

[columns.smoker]
kind = "yes/no"
yes = ["JA"]
no = ["nein"]

[columns.note]
kind = "text"
buckets = 32

[columns.patient_id]
kind = "ignored"
"""
SCHEMA = Schema(
    {
        "age": Number(bounds=(0, 120), missing=40, knots=(0, 18, 40, 65, 120)),
        "household income": Number(bounds=(-1e6, 1e6), scale="log"),
        "sex": Category(values=("f", "m", "?", "7", "true")),
        "smoker": YesNo(yes=("ja",), no=("nein",)),
        "note": Text(buckets=32),
        "patient_id": Ignored(),
    },
    Target("readmitted", classes=("no", "yes"), shares=(0.91, 0.09)),
)


AGES = {"age": Number(bounds=(0, 120))}


def with_columns(**columns: Any) -> dict[str, Any]:
    return {"columns": columns}


def test_files_and_dicts_hold_the_same_schema(tmp_path: Path) -> None:
    (tmp_path / "given.toml").write_text(TOML, encoding="utf-8")
    assert Schema.load(tmp_path / "given.toml") == SCHEMA
    for name in ("schema.toml", "schema.json"):
        SCHEMA.save(tmp_path / name)
        assert Schema.load(str(tmp_path / name)) == SCHEMA
    assert Schema.from_dict(json.loads(SCHEMA.to_json())) == SCHEMA
    pickled = pickle.loads(pickle.dumps(SCHEMA))  # noqa: S301
    for same in (pickled, copy.deepcopy(SCHEMA)):
        assert same == SCHEMA
        assert hash(same) == hash(SCHEMA)
    assert dither.Schema is Schema


def test_what_a_schema_says_of_its_target() -> None:
    assert (SCHEMA.target_name, SCHEMA.classes, SCHEMA.shares) == (
        "readmitted", ("no", "yes"), (0.91, 0.09)
    )  # fmt: skip
    assert SCHEMA.target_bounds is None
    without = Schema({"age": Number(bounds=(0, 1))})
    assert (without.target_name, without.classes, without.shares) == (None, None, None)
    assert Schema(without.columns, Target("y", bounds=(0, 2))).target_bounds == (0.0, 2.0)


def test_the_order_of_columns_is_part_of_a_schema() -> None:
    a, b = Number(bounds=(0, 1)), YesNo()
    assert Schema({"a": a, "b": b}) != Schema({"b": b, "a": a})


def test_names_and_values_of_any_characters_survive_toml(tmp_path: Path) -> None:
    strange = 'a "b"\\ \n\t\x7f\x00 é 😀 = #'
    schema = Schema({strange: Category(values=(strange + "x",))})
    schema.save(tmp_path / "schema.toml")
    assert Schema.load(tmp_path / "schema.toml") == schema


def test_a_schema_cannot_be_changed() -> None:
    with pytest.raises(TypeError, match="does not support item assignment"):
        SCHEMA.columns["age"] = Ignored()  # type: ignore[index]


NUMBER = {"kind": "number", "bounds": [0, 10]}
BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"columns": {}, "colums": {}},
        "key must be one of confirmed, users, target, columns, got 'colums'",
    ),
    ({"columns": []}, "columns must be a table of keys and values, got []"),
    ({"columns": {}}, "columns must have at least one column that is not ignored"),
    (with_columns(a={"kind": "ignored"}), "at least one column that is not ignored"),
    (with_columns(a=3), "column 'a' must be a table of keys and values, got 3"),
    (with_columns(a={}), "column 'a': kind must be one of category, ignored, number, text, yes/no"),
    (with_columns(a={"kind": "float"}), "column 'a': kind must be one of"),
    (with_columns(a={"kind": "number"}), "column 'a': bounds must be given"),
    (with_columns(a={**NUMBER, "bound": 3}),
     "column 'a': key must be one of bounds, missing, knots, scale, got 'bound'"),
    (with_columns(a={**NUMBER, "bounds": [0]}), "column 'a': bounds must be two numbers"),
    (with_columns(a={**NUMBER, "bounds": [3, 1]}), "the smaller one first, got [3, 1]"),
    (with_columns(a={**NUMBER, "bounds": [3, 3]}), "the smaller one first, got [3, 3]"),
    (with_columns(a={**NUMBER, "bounds": [0, float("inf")]}), "bounds must be a finite number"),
    (with_columns(a={**NUMBER, "bounds": [0, float("nan")]}), "bounds must be a finite number"),
    (with_columns(a={**NUMBER, "bounds": [0, 1e60]}), "within −1e50 … 1e50"),
    (with_columns(a={**NUMBER, "bounds": ["0", 1]}), "column 'a': bounds must be a finite number"),
    (with_columns(a={**NUMBER, "bounds": "0, 1"}), "column 'a': bounds must be a list"),
    (with_columns(a={**NUMBER, "bounds": [1e20, 1.0000000000000002e20], "scale": "log"}),
     "bounds must be further apart"),
    (with_columns(a={**NUMBER, "missing": 11}), "missing must be within the bounds 0 … 10, got 11"),
    (with_columns(a={**NUMBER, "missing": "x"}), "column 'a': missing must be a finite number"),
    (with_columns(a={**NUMBER, "knots": [0, 5, 5]}), "knots must be two or more increasing"),
    (with_columns(a={**NUMBER, "knots": [5]}), "knots must be two or more increasing"),
    (with_columns(a={**NUMBER, "knots": [-1, 5]}), "knots must be within the bounds 0 … 10"),
    (with_columns(a={**NUMBER, "scale": "sqrt"}), "scale must be one of linear, log, got 'sqrt'"),
    (with_columns(a={"kind": "category", "values": ["x", "y", " x"]}), "got 'x' twice"),
    (with_columns(a={"kind": "category", "values": ["1", 1]}), "got '1' twice"),
    (with_columns(a={"kind": "category", "values": []}), "values must have at least one value"),
    (with_columns(a={"kind": "category", "values": ["x", " "]}), "none of them empty, got ' '"),
    (with_columns(a={"kind": "category", "values": "xy"}), "values must be a list, got 'xy'"),
    (with_columns(a={"kind": "yes/no", "yes": ["ja"]}), "yes and no must be given together"),
    (with_columns(a={"kind": "yes/no", "yes": ["a", "B"], "no": ["b"]}), "got 'b' in both"),
    (with_columns(a={"kind": "text", "buckets": 1}), "column 'a': buckets must be from 2 to"),
    (with_columns(a={"kind": "text", "buckets": 2.5}), "buckets must be an integer"),
    ({**with_columns(a=NUMBER), "target": {"column": "a", "bounds": [0, 1]}},
     "target must be no column of the features, got 'a'"),
    ({**with_columns(a=NUMBER), "target": {"column": "y"}}, "target: classes or bounds must be"),
    ({**with_columns(a=NUMBER), "target": {"column": "y", "bounds": [1, 0]}}, "target: bounds"),
    ({**with_columns(a=NUMBER), "target": {"classes": ["a", "b"]}}, "target: column must be given"),
    ({**with_columns(a=NUMBER), "target": {"column": "y", "classes": ["a", "a"]}}, "'a' twice"),
    ({**with_columns(a=NUMBER), "target": {"column": "y", "classes": ["a"]}}, "at least two"),
    ({**with_columns(a=NUMBER), "target": {"column": "y", "classes": ["a", 1]}}, "all texts or"),
    ({**with_columns(a=NUMBER), "target": {"column": "y", "classes": ["a", "b"], "shares": [1.0]}},
     "target: shares must be strictly between 0 and 1"),
    ({**with_columns(a=NUMBER),
      "target": {"column": "y", "classes": ["a", "b"], "shares": [0.5, 0.6]}},
     "shares must be one number per class that add up to 1, got [0.5, 0.6]"),
    ({**with_columns(a=NUMBER), "target": {"column": "y", "bounds": [0, 1], "shares": [0.5, 0.5]}},
     "shares are for classes"),
    ({**with_columns(a=NUMBER), "confirmed": False},
     "confirmed must be true, got False; confirm that everything in it is public knowledge"),
    ({**with_columns(a=NUMBER), "confirmed": "yes"}, "confirmed must be true, got 'yes'"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), BAD, ids=[message for _, message in BAD])
def test_a_mistake_is_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidValueError, InvalidTypeError)) as error:
        Schema.from_dict(fields)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_all_placeholders_of_a_draft_are_named_at_once() -> None:
    draft = {
        "confirmed": False,
        "target": {"column": "y", "classes": "?"},
        "columns": {
            "age": {"kind": "number", "bounds": [0, "?"]},
            "sex": {"kind": "category", "values": ["?"]},
            "job": {"kind": "category", "values": ["a", "?"]},
        },
    }
    with pytest.raises(InvalidValueError) as error:
        Schema.from_dict(draft)
    assert str(error.value).endswith(
        "\"?\": classes of target, bounds of column 'age', values of column 'sex'"
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("schema.yaml", b"", "schema must be a file of .toml, .json"),
        ("schema.toml", None, "schema must be a file that exists and can be read"),
        ("schema.toml", b"confirmed = tru", "must be TOML: Invalid value (at line 1"),
        ("schema.toml", b"\xff\xfe", "must be TOML: 'utf-8' codec"),
        ("schema.json", b"{", "must be JSON"),
        ("schema.json", b"[]", "schema must be a table of keys and values, got []"),
        ("schema.json", b'{"columns": {"a": 1, "a": 2}}', "every key once, got 'a' twice"),
        ("schema.toml", b"[columns.a]\nkind='number'", "column 'a': bounds must be given"),
    ],
)
def test_a_file_that_is_no_schema_is_one_line(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises((InvalidValueError, InvalidTypeError)) as error:
        Schema.load(tmp_path / name)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_files_hold_the_column_of_users(suffix: str, tmp_path: Path) -> None:
    schema = Schema({**AGES, "patient": Ignored()}, Target("ill", classes=(0, 1)), "patient")
    schema.save(tmp_path / f"schema{suffix}")
    found = Schema.load(tmp_path / f"schema{suffix}")
    assert found == schema
    assert found.users == "patient"
    assert found != Schema(schema.columns, schema.target)
    assert "'patient'" in repr(found)
    assert found.feature_names() == ["age"]


@pytest.mark.parametrize("name", ["age", "ill", ""])
def test_users_are_neither_a_feature_nor_the_target(name: str) -> None:
    with pytest.raises(InvalidValueError, match=f"users must be a column of ids.*got '{name}'"):
        Schema(AGES, Target("ill", classes=(0, 1)), name)
    with pytest.raises(InvalidTypeError, match="users must be a str, got 3"):
        Schema.from_dict({**with_columns(smoker={"kind": "yes/no"}), "users": 3})
