"""Encodings: right by a slow reference, row by row the same, and never longer than the bound."""

import datetime
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils import murmurhash3_32

from dither.schema import Category, Ignored, Number, Schema, Target, Text, YesNo
from dither.validate import InvalidTypeError, InvalidValueError

SCHEMA = Schema(
    {
        "plain": Number(bounds=(-5, 11)),
        "indicated": Number(bounds=(0, 120), missing=20, knots=(0, 18, 65)),
        "log": Number(bounds=(-100, 1e6), missing=-100, scale="log"),
        "category": Category(values=("a", "1", "true", "007")),
        "smoker": YesNo(),
        "note": Text(buckets=8),
        "id": Ignored(),
    },
    Target("y", classes=("no", "yes")),
)
NAMES = [name for name in SCHEMA.columns if name != "id"]

CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**7), 10**7),
    st.sampled_from([10**400, -(10**400), 2**64, -(2**63)]),
    st.floats(),
    st.floats(-20, 120).map(np.float32),
    st.sampled_from(["a", " a ", "1", "1.0", "True", "007", "", " ", "yes", "NO", "t", "f", "NaN"]),
    st.sampled_from([pd.NA, pd.NaT, Decimal("7.5"), Decimal("NaN"), datetime.date(2020, 1, 2)]),
    st.sampled_from([b"3", (1, 2), {"a": 1}, 3 + 4j, "inf", "-inf", "1e3", "1_0", "0x1F", "٣"]),
    st.text(max_size=12),
    st.lists(st.sampled_from(["pain", "Pain", "in", "chest"]), max_size=5).map(" ".join),
)
ROWS = st.lists(st.tuples(*[CELLS] * len(NAMES)), min_size=1, max_size=6)
ENCODINGS = st.sampled_from(["linear", "spline"])


def table_of(rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    return {name: [row[place] for row in rows] for place, name in enumerate(NAMES)}


@given(rows=ROWS, numbers=ENCODINGS)
def test_rows_are_within_the_norm_and_do_not_depend_on_each_other(
    rows: list[tuple[Any, ...]], numbers: str
) -> None:
    features = SCHEMA.encode(table_of(rows), numbers=numbers)
    assert features.dtype == np.float32
    assert features.shape == (len(rows), len(SCHEMA.feature_names(numbers=numbers)))
    bound = SCHEMA.feature_norm(numbers=numbers)
    for row, own in zip(rows, features, strict=True):
        assert math.fsum(float(value) ** 2 for value in own) <= bound**2 * (1 + 1e-15)
        alone = SCHEMA.encode(table_of([row]), numbers=numbers)[0]
        assert np.array_equal(own, alone)
    small = SCHEMA.encode(table_of(rows), numbers=numbers, sparse=True)
    assert np.array_equal(small.toarray(), features)


@pytest.mark.parametrize(
    ("first", "second"),
    [(10**22, 1e22), (np.float32(0.1), 0.10000000149011612), (1, 1 + 0j), (2.0, 1j)],
)
def test_equal_cells_of_other_types_keep_their_own_texts(first: Any, second: Any) -> None:
    values = (str(10**22), "1e+22", "0.1", "0.10000000149011612", "1", "2", "1j")
    schema = Schema({"a": Category(values=values), "b": Number(bounds=(0, 3), missing=0)})
    for pair in ([first, second], [second, first]):
        both = schema.encode({"a": pair, "b": pair})
        alone = [schema.encode({"a": [cell], "b": [cell]})[0] for cell in pair]
        assert np.array_equal(both, alone)


def test_a_complex_cell_changes_no_other() -> None:
    schema = Schema({"a": Number(bounds=(0, 4)), "b": Category(values=("1", "2"))})
    with_it, without = np.array([1.0, 2.0, 1j]), np.array([1.0, 2.0])
    found = schema.encode({"a": with_it, "b": with_it})
    assert np.array_equal(found[:2], schema.encode({"a": without, "b": without}))
    assert found[2, 0] == 0.0  # the middle of the bounds


@pytest.mark.parametrize("numbers", ["linear", "spline"])
def test_the_norm_is_tight(numbers: str) -> None:
    row = ("11", None, None, "a", "yes", "pain")
    features = SCHEMA.encode(table_of([row]), numbers=numbers)
    # Text is shortened by 1e-7, so that its rounded norm is never above 1.
    assert np.linalg.norm(features) == pytest.approx(SCHEMA.feature_norm(numbers=numbers), rel=1e-7)


NUMBERS = st.floats(-200, 2e6) | st.sampled_from([-5.0, 0.0, 11.0, math.nan, math.inf, -math.inf])


def squeezed(number: float, scale: str) -> float:
    return math.copysign(math.log1p(abs(number)), number) if scale == "log" else number


@given(cells=st.lists(NUMBERS, min_size=1, max_size=8), name=st.sampled_from(NAMES[:3]))
def test_linear_numbers(cells: list[float], name: str) -> None:
    column = SCHEMA.columns[name]
    assert isinstance(column, Number)
    low, high = (squeezed(bound, column.scale) for bound in column.bounds)
    features = Schema({name: column}).encode({name: cells})
    for cell, own in zip(cells, features, strict=True):
        number = min(max(cell, column.bounds[0]), column.bounds[1])
        if math.isnan(cell) and column.missing is None:
            assert own.tolist() == [0.0]
            continue
        if math.isnan(cell):
            number = float(column.missing or 0.0)
        scaled = squeezed(number, column.scale)
        assert own[0] == pytest.approx(2 * (scaled - low) / (high - low) - 1, abs=1e-6)
        assert own[1:].tolist() == ([] if column.missing is None else [float(math.isnan(cell))])


@given(
    cells=st.lists(NUMBERS, min_size=1, max_size=8),
    name=st.sampled_from(NAMES[:3]),
    bins=st.integers(1, 20),
    seed=st.integers(0, 100),
)
def test_a_linear_model_of_splines_interpolates(
    cells: list[float], name: str, bins: int, seed: int
) -> None:
    column = SCHEMA.columns[name]
    assert isinstance(column, Number)
    features = Schema({name: column}).encode({name: cells}, numbers="spline", bins=bins)
    knots = column.grid(bins)
    assert column.knots is not None or len(knots) == bins + 1
    values = np.random.default_rng(seed).uniform(-1, 1, len(knots))
    for cell, own in zip(cells, features.astype(float), strict=True):
        assert own.sum() == 1.0
        assert np.count_nonzero(own) <= 2
        if math.isnan(cell) and column.missing is not None:
            assert own[-1] == 1.0
            continue
        places = [squeezed(knot, column.scale) for knot in knots]
        at = squeezed(min(max(cell, column.bounds[0]), column.bounds[1]), column.scale)
        if math.isnan(cell):
            at = sum(squeezed(bound, column.scale) for bound in column.bounds) / 2
        # The slope of the interpolant is at most 2·bins per unit of the share of the bounds.
        expected = np.interp(at, places, values)
        assert own[: len(knots)] @ values == pytest.approx(expected, abs=1e-5)


def test_names_of_splines_are_the_knots() -> None:
    schema = Schema(
        {"age": Number(bounds=(0, 100), missing=1), "log": Number((0, 99), scale="log")}
    )
    names = schema.feature_names(numbers="spline", bins=2)
    assert names == ["age@0", "age@50", "age@100", "age (missing)", "log@0", "log@9", "log@99"]
    assert schema.feature_slices(numbers="spline", bins=2) == {
        "age": slice(0, 4), "log": slice(4, 7)
    }  # fmt: skip


def places(cells: Any) -> list[str]:
    schema = Schema({"c": Category(values=("a", "1", "true", "007", "0.5"))})
    names = np.array(["a", "1", "true", "007", "0.5", "other", "missing"])
    features = schema.encode({"c": cells})
    assert features.sum(axis=1).tolist() == [1.0] * len(cells)
    return [str(name) for name in names[features.argmax(axis=1)]]


def test_categories_match_their_text_from_any_dtype() -> None:
    cells = ["a", " a", "A", "007", "7", "1.0", "TRUE", "", "  ", None, 1, 1.0, True, False, 0.5]
    wanted = ["a", "a", "other", "007", "other", "1", "true", "missing", "missing", "missing", "1",
              "1", "true", "other", "0.5"]  # fmt: skip
    assert places(cells) == wanted
    assert places(cells[::-1]) == wanted[::-1]
    for series, expected in [
        (pd.Series([1, 2, None]), ["1", "other", "missing"]),
        (pd.Series([1, None], dtype="Int64"), ["1", "missing"]),
        (pd.Series([True, False]), ["true", "other"]),
        (pd.Series([True, None], dtype="boolean"), ["true", "missing"]),
        (pd.Series([0.5, 1.0], dtype="float32"), ["0.5", "1"]),
        (pd.Series(["a", "x", None], dtype="category"), ["a", "other", "missing"]),
        (pd.Series(["a", None], dtype="string"), ["a", "missing"]),
        (pl.Series(["a", None]), ["a", "missing"]),
        (pl.Series(["a", "x"], dtype=pl.Categorical), ["a", "other"]),
        (pl.Series([1, None]), ["1", "missing"]),
        (pl.Series([True, None]), ["true", "missing"]),
        (np.array([1.0, np.nan]), ["1", "missing"]),
    ]:
        assert places(series) == expected


def test_numbers_of_any_dtype() -> None:
    schema = Schema({"x": Number(bounds=(0, 10), missing=10)})
    for cells in [
        [0, None, 5], [0.0, math.nan, 5.0], ["0", "", " 5 "], ["0", "many", "5"],
        pd.Series([0, None, 5], dtype="Int64"), pd.Series(["0", None, "5"], dtype="category"),
        pl.Series([0, None, 5]), pl.Series([0.0, None, 5.0]), pl.Series(["0", None, "5"]),
        np.array([0, np.nan, 5], np.float32), pd.Series([0.0, None, 5.0], dtype="float64[pyarrow]"),
    ]:  # fmt: skip
        assert schema.encode({"x": cells}).tolist() == [[-1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    dates = pd.Series(pd.to_datetime(["2020-01-01"]))
    assert schema.encode({"x": dates}).tolist() == [[1.0, 1.0]]


def test_frames_of_pandas_polars_and_mappings_are_one_table() -> None:
    rows = [(1.5, 3, None, "a", True, "chest pain"), (None, 70, 2.0, "x", None, "Pain")]
    table = table_of(rows)
    expected = SCHEMA.encode(table)
    extra = {**table, "unknown": [1, 2]}
    frame = pd.DataFrame(extra).iloc[:, ::-1]
    frame.index = pd.Index([7, 7])
    for each in (frame, pl.DataFrame(extra), extra, {k: np.array(v) for k, v in table.items()}):
        assert np.array_equal(SCHEMA.encode(each), expected)
    assert SCHEMA.encode(pd.DataFrame(table).iloc[:0]).shape == (0, expected.shape[1])
    numbered = Schema({"0": Number(bounds=(0, 1))})
    assert numbered.encode(pd.DataFrame([[1.0]])).tolist() == [[1.0]]


def test_words_are_hashed_alike_everywhere() -> None:
    schema = Schema({"note": Text(buckets=16)})
    features = schema.encode({"note": ["Chest pain", "pain, CHEST!", "pain", "", None, "x"]})
    assert np.array_equal(features[0], features[1])
    assert np.linalg.norm(features, axis=1) == pytest.approx([1, 1, 1, 0, 0, 1], rel=1e-6)
    # These places must never change: saved models depend on them.
    hashes = [murmurhash3_32(word) for word in ("pain", "chest")]
    assert [abs(each) % 16 for each in hashes] == [0, 2]
    assert features[0].nonzero()[0].tolist() == [0, 2]
    assert np.sign(features[0][[0, 2]]).tolist() == np.sign(hashes).tolist()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pd.DataFrame({"a": [1]}), "table must have every column of the schema, but has no 'b'"),
        ({"a": [1]}, "but has no 'b'"),
        ({"a": [1], "b": [1, 2]}, "table must have columns of one length"),
        ({"a": [1], "b": 2}, "column 'b' must be one cell per row, got int"),
        ({"a": [1], "b": "xy"}, "column 'b' must be one cell per row, got str"),
        (np.zeros((2, 2)), "table must be a data frame of pandas or polars, a mapping of columns"),
        (pl.LazyFrame({"a": [1], "b": [2]}), "got LazyFrame"),
        (pd.DataFrame([[1, 2, 3]], columns=["a", "b", "b"]), "got 'b' twice"),
    ],
)
def test_a_table_that_does_not_fit_is_one_line(table: Any, message: str) -> None:
    schema = Schema({"a": Number(bounds=(0, 1)), "b": YesNo()})
    with pytest.raises((InvalidValueError, InvalidTypeError)) as error:
        schema.encode(table)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_bad_settings_are_one_line() -> None:
    with pytest.raises(InvalidValueError, match="numbers must be one of linear, spline, got 'log'"):
        SCHEMA.feature_names(numbers="log")
    with pytest.raises(InvalidValueError, match="bins must be an integer of at least 1, got 0"):
        SCHEMA.feature_names(numbers="spline", bins=0)
    with pytest.raises(InvalidValueError, match="bins must be at most 4,096, got 5000"):
        SCHEMA.feature_names(numbers="spline", bins=5000)
    twins = Schema({"a": Number((0, 1), missing=0), "a (missing)": Number((0, 1))})
    with pytest.raises(InvalidValueError, match=r"its own name, got 'a \(missing\)'"):
        twins.feature_names()


def target(**options: Any) -> Schema:
    return Schema({"x": Number(bounds=(0, 1))}, Target("y", **options))


def test_targets_are_the_declared_classes() -> None:
    labels = target(classes=("no", "yes")).encode_target(["yes ", "no"])
    assert labels.tolist() == ["yes", "no"]
    numbers = target(classes=(0, 1))
    for cells in ([1, 0], ["1", "0.0"], pd.Series([1.0, 0.0]), pl.Series([1, 0]), np.array([1, 0])):
        found = numbers.encode_target(cells)
        assert found.dtype.kind == "i"
        assert found.tolist() == [1, 0]
    truth = target(classes=(False, True)).encode_target(pd.DataFrame({"y": [True, False]}))
    assert truth.tolist() == [True, False]
    price = target(bounds=(0, 10)).encode_target({"y": ["3", 20, -1.5]})
    assert price.dtype == np.float64
    assert price.tolist() == [3.0, 10.0, 0.0]


@pytest.mark.parametrize("cell", ["secret", None, "", math.nan])
@pytest.mark.parametrize("options", [{"classes": ("no", "yes")}, {"bounds": (0, 1)}])
def test_a_bad_target_is_refused_without_showing_it(cell: Any, options: Any) -> None:
    good = "yes" if "classes" in options else "0.5"
    with pytest.raises(InvalidValueError, match="target 'y' must have") as error:
        target(**options).encode_target([good, cell])
    assert "secret" not in str(error.value)


def test_a_schema_without_a_target_has_no_labels() -> None:
    with pytest.raises(InvalidValueError, match="schema has no target"):
        Schema({"x": YesNo()}).encode_target([1])
