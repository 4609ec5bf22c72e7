import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.data.errors import error_line

from dither.data import load


def table(folder: Path, text: str) -> Path:
    path = folder / "table.csv"
    path.write_text(text, encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize(
    ("text", "label", "targets", "classes"),
    [
        ("a,label,b\n1,0,2\n3,1,4\n", None, [0, 1], ("0", "1")),
        ("a,target,b\n1,5,2\n3,-2,4\n", None, [1, 0], ("-2", "5")),
        ("a,b,kind\n1,2,dog\n3,4,cat\n", None, [1, 0], ("cat", "dog")),
        ("label,a,b\n10,1,2\n9,3,4\n", None, [1, 0], ("9", "10")),
        ("a,label,b\n1,9,2\n3,7,4\n".replace("label", "z"), "z", [1, 0], ("7", "9")),
        ("a,z,b\n1,1.0,2\n3,0.0,4\n", "z", [1, 0], ("0", "1")),
        ("a,z,b\n1,7,2\n3,x,4\n", "z", [0, 1], ("7", "x")),
        ("\ufeffa,label,b\r\n1,0,2\r\n\r\n3,1,4", None, [0, 1], ("0", "1")),
        ('a,"label",b\n"1","x, y",2\n3, z ,4\n', None, [0, 1], ("x, y", "z")),
    ],
)
def test_labels_and_columns(
    tmp_path: Path, text: str, label: str | None, targets: list[int], classes: tuple[str, ...]
) -> None:
    split = load(table(tmp_path, text), label=label)
    assert split.test is None
    assert split.train.inputs.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert split.train.inputs.dtype == torch.float32
    assert split.train.targets.tolist() == targets
    assert split.train.classes == classes


def test_bad_records_are_read_as_they_are(tmp_path: Path) -> None:
    text = "a,b,label\n,nan,0\ninf,-inf,1\n1e300, ,0\n"
    inputs = load(table(tmp_path, text)).train.inputs
    assert inputs.isnan().tolist() == [[True, True], [False, False], [False, True]]
    assert inputs.isinf().tolist() == [[False, False], [True, True], [True, False]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "must have a header line of at least two columns, got 0"),
        ("label\n1\n", "must have a header line of at least two columns, got 1"),
        ("1,2\n3,4\n", "must begin with a header line, got numbers on line 1"),
        ("a,,label\n1,2,3\n", "column 2 has no name"),
        ("a,a,label\n1,2,3\n", "'a' occurs twice"),
        ("a,label\n", "must have at least one record below its header line"),
        ("a,label\n1,0\n2\n", "line 3 must have 2 cells, got 1"),
        ("a,label\n1,0\n2,3,4\n", "line 3 must have 2 cells, got 3"),
        ("a,b,label\n1,2,0\n\n,x y,1\n", "line 4, column 'b' must be a number, got 'x y'"),
        ("a,b,label\n1,1_000,0\n", "line 2, column 'b' must be a number, got '1_000'"),
        ('a,b,label\n1,"2\n3",0\n', "line 3, column 'b' must be a number, got '2\\n3'"),
        ("a,label\n1,0\n2, \n", "line 3, column 'label' must have a label"),
        ("a,label\n1,0\n2,0.5\n", "line 3, column 'label' must be a label, integer or text"),
        ("a,label\n1,0\n2,nan\n", "line 3, column 'label' must be a label, integer or text"),
        ('a,label\n1,"0\n', "line 2 is not valid CSV"),
    ],
)
def test_bad_tables_are_refused_with_the_place(tmp_path: Path, text: str, expected: str) -> None:
    path = table(tmp_path, text)
    line = error_line(path)
    assert line.startswith(f"data file {str(path)!r} ")
    assert expected in line


def test_other_refusals_of_tables(tmp_path: Path) -> None:
    path = table(tmp_path, "a,b\n1,2\n")
    assert "has no column for label = 'c'; it has 'a', 'b'" in error_line(path, label="c")
    path.write_bytes(b"a,b\n1,\xff\xfe\n")
    assert "must be UTF-8 text" in error_line(path)
    (tmp_path / "folder.csv").mkdir()
    assert "cannot be read as a .csv file" in error_line(tmp_path / "folder.csv")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.floats(width=32), st.floats(width=32), st.integers(-(2**70), 2**70)),
        min_size=1,
    )
)
def test_what_is_written_is_read(tmp_path: Path, rows: list[tuple[float, float, int]]) -> None:
    lines = [f"{a!r},{b!r},{label}" for a, b, label in rows]
    examples = load(table(tmp_path, "\n".join(["a,b,label", *lines]))).train
    np.testing.assert_array_equal(
        examples.inputs.numpy(), np.array([row[:2] for row in rows], np.float32)
    )
    assert [int(examples.classes[target]) for target in examples.targets] == [
        label for *_, label in rows
    ]


@pytest.mark.parametrize(
    "names", [("inputs", "targets"), ("x", "y"), ("X", "y"), ("x_train", "y_train")]
)
def test_arrays_by_any_of_their_names(tmp_path: Path, names: tuple[str, str]) -> None:
    values = np.array([[1.5, np.nan], [2.0, 1e300]])
    np.savez(tmp_path / "a.npz", **{names[0]: values, names[1]: np.array([1, 0])})  # type: ignore[arg-type]
    split = load(tmp_path / "a.npz")
    assert split.test is None
    assert split.train.inputs.dtype == torch.float32
    assert split.train.inputs[0, 0] == 1.5
    assert split.train.inputs[0, 1].isnan()
    assert split.train.inputs[1, 1].isinf()
    assert split.train.targets.tolist() == [1, 0]


def test_arrays_of_bytes_and_a_test_part(tmp_path: Path) -> None:
    pixels = np.asfortranarray(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
    np.savez_compressed(
        tmp_path / "a.npz",
        x_train=pixels,
        y_train=np.array([3, 7], np.uint8),
        x_test=pixels[:1],
        y_test=np.array([-1], np.int8),
    )
    split = load(tmp_path / "a.npz")
    assert split.test is not None
    assert torch.equal(split.train.inputs, torch.arange(24).reshape(2, 3, 4).float() / 255)
    assert split.train.classes == split.test.classes == ("-1", "3", "7")
    assert split.train.targets.tolist() == [1, 2]
    assert split.test.targets.tolist() == [0]


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"a": np.zeros(2)}, "must hold the arrays inputs and targets or x and y or"),
        ({"x": np.zeros((2, 1))}, "must hold the arrays inputs and targets or x and y or"),
        ({"x": np.zeros((2, 1), object), "y": np.arange(2)}, "x cannot be read: Object arrays"),
        ({"x": np.array([["a"]]), "y": np.arange(1)}, "x must be numbers, got <U1"),
        ({"x": np.zeros((2, 1), complex), "y": np.arange(2)}, "x must be numbers, got complex128"),
        ({"x": np.zeros((2, 1)), "y": np.zeros(2)}, "y must be integers in one dimension"),
        ({"x": np.zeros((2, 1)), "y": np.zeros((2, 1), int)}, "got int64 of shape (2, 1)"),
        ({"x": np.zeros((2, 1)), "y": np.arange(3)}, "x must have a row for each of the 3 y"),
        ({"x": np.zeros((0, 1)), "y": np.arange(0)}, "at least one, got shape (0, 1)"),
        ({"x": np.zeros(2), "y": np.arange(2)}, "got shape (2,)"),
        (
            {"x": np.zeros((2, 1)), "y": np.arange(2), "x_test": np.zeros((2, 1))},
            "must hold both x_test and y_test or none, got x_test",
        ),
        (
            {
                "x": np.zeros((2, 1)),
                "y": np.arange(2),
                "x_test": np.zeros((2, 3)),
                "y_test": np.arange(2),
            },
            "must have records of one shape, got (1,) and (3,)",
        ),
    ],
)
def test_bad_arrays_are_refused(
    tmp_path: Path,
    arrays: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]],
    expected: str,
) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    line = error_line(path)
    assert line.startswith(f"data file {str(path)!r} ")
    assert expected in line


def test_damaged_archives_of_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.ones((50, 3)), y=np.arange(50))
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[400] ^= 1
    for bad in (b"", b"no zip", good[:-30], bytes(flipped)):
        path.write_bytes(bad)
        assert f"data file {str(path)!r} cannot be read as a .npz file" in error_line(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", b"text")
        archive.writestr("y.npy", b"text")
    assert "x must be an array" in error_line(path)
