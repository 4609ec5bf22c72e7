"""Files as tables: text stays text, and a file that is no table is one line without its cells."""

import gzip
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dither.schema import Category, Ignored, Number, Schema, Target, Text, YesNo
from dither.validate import InvalidValueError

SCHEMA = Schema(
    {
        "age": Number(bounds=(0, 100), missing=50),
        "code": Category(values=("007", "NA")),
        "smoker": YesNo(),
        "note": Text(buckets=4),
        "id": Ignored(),
    },
    Target("ill", classes=("no", "yes")),
)
CSV = """\
id,age , code,smoker,note,extra,ill
1,25,007,yes,"pain, again",x,no
2,,NA,,,y,yes
3,unknown,7,no,"a ""b""
c",z,no
"""


@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz", "TABLE.CSV"])
def test_a_csv_file_is_read_as_text_and_numbers(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    raw = b"\xef\xbb\xbf" + CSV.encode()
    path.write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    frame = SCHEMA.read(path)
    assert [*frame.columns] == ["id", "age", "code", "smoker", "note", "ill"]
    assert frame["age"].dtype == np.float64
    assert frame["code"].tolist() == ["007", "NA", "7"]
    assert frame["note"].tolist() == ["pain, again", "", 'a "b"\nc']
    features = SCHEMA.encode(str(path))
    assert np.array_equal(features, SCHEMA.encode(frame))
    assert features[:, :6].tolist() == [
        [-0.5, 0, 1, 0, 0, 0], [0, 1, 0, 1, 0, 0], [0, 1, 0, 0, 1, 0]
    ]  # fmt: skip
    assert SCHEMA.encode_target(path).tolist() == ["no", "yes", "no"]


def test_a_table_for_prediction_has_neither_target_nor_ignored_columns(tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text("note,smoker,code,age\nx,no,7,30\n", encoding="utf-8")
    assert [*SCHEMA.read(path).columns] == ["note", "smoker", "code", "age"]
    assert len(SCHEMA.encode(path)) == 1
    with pytest.raises(InvalidValueError, match="but has no 'ill'"):
        SCHEMA.encode_target(path)


def test_a_parquet_file_holds_native_cells(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "id": ["p7", "p3"],
            "age": pd.array([25, None], dtype="Int64"),
            "code": pd.Categorical(["007", None]),
            "smoker": [True, None],
            "note": ["pain", None],
            "ill": ["no", "yes"],
        }
    ).set_index("id")
    frame.to_parquet(tmp_path / "table.parquet")
    assert "id" in SCHEMA.read(tmp_path / "table.parquet")
    features = SCHEMA.encode(tmp_path / "table.parquet")
    assert np.array_equal(features, SCHEMA.encode(frame))
    assert SCHEMA.encode_target(tmp_path / "table.parquet").tolist() == ["no", "yes"]


def test_parquet_without_pyarrow_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidValueError, match=r"pip install 'dither\[parquet\]'"):
        SCHEMA.read(tmp_path / "table.parquet")


def test_a_missing_cell_of_a_parquet_file_changes_no_other(tmp_path: Path) -> None:
    code = 123456789012345679
    schema = Schema({"code": Category(values=(str(code),)), "age": Number(bounds=(0, 2**60))})
    path, kind = tmp_path / "table.parquet", pd.ArrowDtype(pa.int64())
    found = []
    for cells in ([code, 7], [code, 7, None]):
        pd.DataFrame({name: pd.array(cells, dtype=kind) for name in schema.columns}).to_parquet(
            path
        )
        found.append(schema.encode(path))
    assert found[0][0, :3].tolist() == [1.0, 0.0, 0.0]
    assert np.array_equal(found[0], found[1][:2])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("table.xlsx", b"", "table must be a file of .csv, .csv.gz, .parquet"),
        ("table.csv", None, "table must be a file that exists"),
        ("table.csv", b"", "must have a header line, but is empty"),
        ("table.csv", b"\n\n", "must have a header line, but is empty"),
        ("table.csv", b"1,2\n3,4\n", "must begin with a header line, got numbers"),
        ("table.csv", b"age;code\n3;secret\n", "looks separated by ';': save it with commas"),
        ("table.csv", b"age\tcode\n3,5\tsecret\n", "looks separated by tabs: save it with"),
        ("table.csv", b"age,\n3,4\n", "must name every column, but column 2 has no name"),
        ("table.csv", b"age,secret,secret\n3,4,5\n", "columns 2 and 3 have the same name"),
        ("table.csv", b"age,code\nsecret,4\nsecret\n", "line 3 must have 2 cells, got 1"),
        ("table.csv", b'age,code\n"secret,4",secret,4\n', "line 2 must have 2 cells, got 3"),
        ("table.csv", b'age,code\nsecret,"secret\n', "cannot be read: unexpected end of data"),
        ("table.csv", b"age,c\xff\n3,4\n", "must be UTF-8 text"),
        ("table.csv", b"age,code,smoker,note\n3,\xff,1,2\n", "must be UTF-8 text"),
        ("table.csv", b"age,code\n3,4\n", "must have every column of the schema, but has no"),
        ("table.csv.gz", b"secret", "cannot be read: Not a gzipped file"),
        (
            "table.csv.gz",
            # The same bytes at every collection: they name the test.
            gzip.compress(b"age,code\n", mtime=0)[:-6],
            "cannot be read: Compressed file ended",
        ),
        ("table.parquet", b"secret", "cannot be read as a .parquet file"),
    ],
)
def test_a_file_that_is_no_table_is_one_line(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidValueError) as error:
        SCHEMA.encode(tmp_path / name)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)
    assert "table" in str(error.value)


USERS = Schema({"age": Number(bounds=(0, 100))}, users="patient")


def test_ids_are_compared_as_text_and_empty_cells_are_nobody(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("patient,age\n7,1\n 7.0,2\n007,3\n ,4\n7,5\n")
    expected = ["7", "7", "007", None, "7"]
    assert USERS.user_ids(tmp_path / "table.csv").tolist() == expected
    cells = pd.DataFrame({"patient": [7, 7.0, "007", np.nan, "7"], "age": range(5)})
    assert USERS.user_ids(cells).tolist() == expected
    numbers = pd.DataFrame({"patient": [7.0, np.nan], "age": [1, 2]})
    assert USERS.user_ids(numbers).tolist() == ["7", None]


def test_a_table_for_prediction_has_no_users(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("age\n50\n")
    assert USERS.encode(tmp_path / "new.csv").tolist() == [[0.0]]
    with pytest.raises(InvalidValueError, match="users: table must have .* but has no 'patient'"):
        USERS.user_ids(tmp_path / "new.csv")
    with pytest.raises(InvalidValueError, match="schema has no users"):
        SCHEMA.user_ids(tmp_path / "new.csv")


def test_a_check_says_how_many_rows_have_no_user() -> None:
    found = USERS.check({"age": [1, 2, 3, 4], "patient": ["a", None, "", None]})
    assert found.columns["patient"] == {"missing": 0.75}
    assert found.marked == ["patient"]
    assert found.unknown == ()
    assert USERS.check({"age": [1]}).absent == ("patient",)
