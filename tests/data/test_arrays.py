import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.errors import error_line

from dither.data import load, load_inputs


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
        (
            {"x": np.zeros((0, 1)), "y": np.arange(0)},
            "at least one, got shape (0, 1)",
        ),
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


def test_inputs_alone_are_read_as_the_records_are(tmp_path: Path) -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.savez(tmp_path / "a.npz", x=pixels, y=np.arange(2))
    for name in ("inputs", "x", "X", "x_test"):
        np.savez(tmp_path / "new.npz", **{name: pixels})  # type: ignore[arg-type]
        read = load_inputs(tmp_path / "new.npz")
        np.testing.assert_array_equal(read, load(tmp_path / "a.npz").train.inputs.numpy())
    np.savez(tmp_path / "new.npz", pixels=pixels)
    with pytest.raises(ValueError, match="must hold one of the arrays inputs, x, X, x_test, got"):
        load_inputs(tmp_path / "new.npz")
