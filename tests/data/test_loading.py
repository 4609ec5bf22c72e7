import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.errors import error_line
from torch.utils.data import DataLoader, TensorDataset

from dither.data import Examples, align_with, directory, load
from dither.validate import InvalidTypeError, InvalidValueError


def test_digits_are_split_the_same_way_every_time() -> None:
    first, again = load("digits"), load("digits")
    assert first.test is not None
    assert again.test is not None
    assert first.train.inputs.shape == (1438, 1, 8, 8)
    assert first.test.inputs.shape == (359, 1, 8, 8)
    assert torch.equal(first.train.inputs, again.train.inputs)
    assert first.train.inputs.max() == 1.0
    assert first.train.inputs.min() == 0.0
    assert first.train.targets[:5].tolist() == [0, 1, 2, 3, 5]
    assert first.test.targets[:2].tolist() == [4, 9]
    assert first.train.classes == tuple("0123456789")


def test_directory_is_argument_then_variable_then_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DITHER_DATA", "there")
    assert directory("here") == Path("here")
    assert directory(Path("here")) == Path("here")
    assert directory() == Path("there")
    monkeypatch.setenv("DITHER_DATA", "")
    assert directory() == Path("data")
    monkeypatch.delenv("DITHER_DATA")
    assert directory() == Path("data")
    with pytest.raises(InvalidTypeError, match="data_dir must be a path, got int"):
        directory(3)  # type: ignore[arg-type]


def test_examples_are_a_tensor_dataset() -> None:
    examples = Examples(torch.rand(4, 2), torch.tensor([0, 1, 1, 0]), ("a", "b"))
    assert isinstance(examples, TensorDataset)
    inputs, target = examples[2]
    assert torch.equal(inputs, examples.inputs[2])
    assert target == 1
    batch, targets = next(iter(DataLoader(examples, batch_size=3)))
    assert batch.shape == (3, 2)
    assert targets.tolist() == [0, 1, 1]
    copied = pickle.loads(pickle.dumps(examples))  # noqa: S301
    assert torch.equal(copied.inputs, examples.inputs)
    assert copied.classes == ("a", "b")


def test_examples_refuse_what_does_not_fit() -> None:
    labels = torch.tensor([0, 1])
    with pytest.raises(InvalidTypeError, match="inputs must be of torch.float32, got"):
        Examples(torch.zeros(2, 1, dtype=torch.float64), labels, "ab")
    with pytest.raises(InvalidTypeError, match="targets must be of torch.int64"):
        Examples(torch.zeros(2, 1), labels.int(), "ab")
    with pytest.raises(InvalidValueError, match="targets must have one label per record"):
        Examples(torch.zeros(3, 1), labels, "ab")
    with pytest.raises(InvalidValueError, match="inputs must have at least one record"):
        Examples(torch.zeros(0, 1), labels[:0], "ab")


def test_labels_of_another_set_are_matched_by_name() -> None:
    mine = Examples(torch.rand(3, 2), torch.tensor([0, 1, 2]), ["ant", "bee", "cat"])
    inputs = torch.rand(4, 2)
    public = Examples(inputs, torch.tensor([0, 1, 1, 0]), ["cat", "ant"])
    matched = align_with(public, mine)
    assert matched.targets.tolist() == [2, 0, 0, 2]
    assert matched.targets.dtype == torch.int64
    assert matched.classes == mine.classes
    assert torch.equal(matched.inputs, inputs)
    assert public.targets.tolist() == [0, 1, 1, 0]
    again = align_with(matched, mine)
    assert torch.equal(again.targets, matched.targets)


def test_classes_and_shapes_that_the_other_set_has_not_are_refused() -> None:
    mine = Examples(torch.zeros(2, 3), torch.tensor([0, 1]), ["ant", "bee"])
    other = Examples(torch.zeros(2, 3), torch.tensor([0, 1]), ["ant", "two\nlines"])
    with pytest.raises(
        InvalidValueError,
        match=r"^the public records must have classes of the training records, "
        r"got 'two\\nlines'$",
    ):
        align_with(other, mine)
    # A class that no record has is unknown all the same: its name was meant for something.
    unused = Examples(torch.zeros(1, 3), torch.tensor([0]), ["ant", "wasp"])
    with pytest.raises(InvalidValueError, match="got 'wasp'"):
        align_with(unused, mine)
    for shape in ((2, 4), (2, 1, 3)):
        with pytest.raises(
            InvalidValueError,
            match=r"must have the shape of the training records, \(3,\), got \(",
        ):
            align_with(Examples(torch.zeros(shape), torch.tensor([0, 1]), ["ant", "bee"]), mine)


def test_paths_are_looked_for_in_the_data_directory(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((1, 2)), y=np.zeros(1, int))
    assert len(load("own.npz", data_dir=tmp_path).train) == 1
    assert len(load(tmp_path / "own.npz").train) == 1
    line = error_line("other.npz", tmp_path)
    assert "'other.npz'" in line
    assert repr(str(tmp_path / "other.npz")) in line


def test_tables_are_for_a_schema(tmp_path: Path) -> None:
    for name in ("own.csv", "own.csv.gz", "own.PARQUET"):
        line = error_line(name, tmp_path)
        assert line == f"name must be no table: dither.Schema reads tables, got {name!r}"


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    for name in ("imagenet", "", "two\nlines", "notes.txt"):
        line = error_line(name, tmp_path)
        assert line.startswith("name must be one of cifar10, digits, fashion-mnist, mnist, or")
    assert error_line("nul\0.npz", tmp_path).startswith("'nul\\x00.npz' was not found")
    with pytest.raises(InvalidTypeError, match="name must be a name or a path, got int"):
        load(3)  # type: ignore[arg-type]


def test_missing_sets_say_where_to_put_what(tmp_path: Path) -> None:
    for name, folder, address in (
        ("mnist", "mnist", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
        ("fashion-mnist", "fashion-mnist", "https://github.com/zalandoresearch/fashion-mnist"),
        ("cifar10", "cifar10", "https://www.cs.toronto.edu/~kriz/cifar.html"),
    ):
        line = error_line(name, tmp_path)
        assert line.startswith(f"{name} was not found: looked for ")
        assert repr(str(tmp_path / folder)) in line
        assert "set DITHER_DATA or --data-dir" in line
        assert line.endswith(address)
