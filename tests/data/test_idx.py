import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.errors import error_line

from dither.data import directory, load

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
needs_mnist = pytest.mark.skipif(
    not (directory() / "mnist").exists(), reason="DITHER_DATA has no mnist/"
)
needs_fashion = pytest.mark.skipif(
    not (directory() / "fashion-mnist").exists(), reason="DITHER_DATA has no fashion-mnist/"
)


def images(count: int, side: int = 28, magic: int = 0x803) -> bytes:
    pixels = np.arange(count * side * side) % 256
    return struct.pack(">4I", magic, count, side, side) + pixels.astype(np.uint8).tobytes()


def labels(*values: int, magic: int = 0x801) -> bytes:
    return struct.pack(">2I", magic, len(values)) + bytes(values)


def write(folder: Path, *, compressed: bool) -> None:
    folder.mkdir(parents=True)
    pack: Callable[[bytes], bytes] = gzip.compress if compressed else bytes
    ending = ".gz" if compressed else ""
    (folder / f"{IMAGES}{ending}").write_bytes(pack(images(3)))
    (folder / f"{LABELS}{ending}").write_bytes(pack(labels(9, 0, 4)))
    (folder / f"t10k-images-idx3-ubyte{ending}").write_bytes(pack(images(2)))
    (folder / f"t10k-labels-idx1-ubyte{ending}").write_bytes(pack(labels(1, 2)))


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("fashion-mnist", "fashion-mnist"),
        ("fashion-mnist", "FashionMNIST/raw"),
    ],
)
def test_reads_every_layout(tmp_path: Path, name: str, folder: str, compressed: bool) -> None:
    write(tmp_path / folder, compressed=compressed)
    split = load(name, data_dir=tmp_path)
    assert split.test is not None
    assert split.train.inputs.shape == (3, 1, 28, 28)
    assert split.train.inputs.dtype == torch.float32
    assert split.train.targets.tolist() == [9, 0, 4]
    assert split.test.targets.tolist() == [1, 2]
    expected = torch.arange(3 * 784).remainder(256).reshape(3, 1, 28, 28).float() / 255
    assert torch.equal(split.train.inputs, expected)
    assert split.train.classes[9] == ("9" if name == "mnist" else "Ankle boot")


@pytest.mark.parametrize(
    ("file", "raw", "expected"),
    [
        (IMAGES, images(3)[:-1], "must hold 2352 bytes for its shape (3, 28, 28), got 2351"),
        (IMAGES, images(3) + b"\0", "must hold 2352 bytes for its shape (3, 28, 28), got 2353"),
        (IMAGES, images(3)[:15], "is too short for an IDX file: 15 bytes"),
        (IMAGES, b"", "is too short for an IDX file: 0 bytes"),
        (IMAGES, images(3, magic=0x801), "the IDX magic 0x00000803, got 0x00000801"),
        (IMAGES, images(3, magic=0xD03), "the IDX magic 0x00000803, got 0x00000d03"),
        (IMAGES, images(3, side=8), "must hold images of 28 x 28, got shape (3, 8, 8)"),
        (IMAGES, images(0), "must hold images of 28 x 28, got shape (0, 28, 28)"),
        (IMAGES, images(4), "has 4 images, but "),
        (IMAGES, struct.pack(">4I", 0x803, 2**32 - 1, 28, 28), "must hold 3367254359280 bytes"),
        (LABELS, labels(9, 0), "has 3 images, but "),
        (LABELS, labels(9, 0, 10), "must hold labels from 0 to 9, got 10 at 2"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, file: str, raw: bytes, expected: str) -> None:
    for name, compressed in (("plain", False), ("packed", True)):
        write(tmp_path / name / "mnist", compressed=compressed)
        path = tmp_path / name / "mnist" / (f"{file}.gz" if compressed else file)
        path.write_bytes(gzip.compress(raw) if compressed else raw)
        line = error_line("mnist", tmp_path / name)
        assert expected in line
        assert file in line


def test_damaged_gzip_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "mnist", compressed=True)
    path = tmp_path / "mnist" / f"{IMAGES}.gz"
    good = path.read_bytes()
    wrong_sum = good[:-8] + bytes([good[-8] ^ 1]) + good[-7:]
    for bad in (wrong_sum, good[:-1], good[: len(good) // 2], b"no gzip", good + b"more"):
        path.write_bytes(bad)
        line = error_line("mnist", tmp_path)
        assert line.startswith(f"data file {str(path)!r} cannot be read as an IDX file: ")


def test_one_missing_file_is_named(tmp_path: Path) -> None:
    write(tmp_path / "mnist", compressed=True)
    (tmp_path / "mnist" / f"{LABELS}.gz").unlink()
    assert f"looked for {LABELS} (with or without .gz) in " in error_line("mnist", tmp_path)


@needs_mnist
def test_the_real_mnist() -> None:
    split = load("mnist")
    assert split.test is not None
    assert split.train.inputs.shape == (60_000, 1, 28, 28)
    assert split.test.inputs.shape == (10_000, 1, 28, 28)
    assert split.train.targets[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert split.train.targets.bincount().tolist() == [
        *(5923, 6742, 5958, 6131, 5842),
        *(5421, 5918, 6265, 5851, 5949),
    ]
    assert split.train.inputs.mean().item() == pytest.approx(0.1307, abs=1e-4)


@needs_fashion
def test_the_real_fashion_mnist() -> None:
    split = load("fashion-mnist")
    assert split.test is not None
    assert split.train.targets.bincount().tolist() == [6000] * 10
    assert split.test.targets.bincount().tolist() == [1000] * 10
    assert split.train.classes[split.train.targets[0]] == "Ankle boot"
    assert split.train.inputs.mean().item() == pytest.approx(0.2860, abs=1e-4)
