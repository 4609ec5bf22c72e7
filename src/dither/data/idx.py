"""MNIST and Fashion-MNIST from the IDX files that they are published as."""

import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dither.data.examples import Examples, Split, from_bytes
from dither.data.files import content, file_error, not_found_error, quoted

DIGITS = tuple(str(digit) for digit in range(10))
CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_SIDE = 28
_UNSIGNED_BYTE = 0x08


def load_mnist(base: Path) -> Split:
    """Return MNIST from ``mnist/`` or ``MNIST/raw/`` in the data directory."""
    address = "https://ossci-datasets.s3.amazonaws.com/mnist/"
    return _load("mnist", (base / "mnist", base / "MNIST" / "raw"), address, DIGITS)


def load_fashion_mnist(base: Path) -> Split:
    """Return Fashion-MNIST from ``fashion-mnist/`` or ``FashionMNIST/raw/``."""
    address = "https://github.com/zalandoresearch/fashion-mnist"
    folders = (base / "fashion-mnist", base / "FashionMNIST" / "raw")
    return _load("fashion-mnist", folders, address, CLOTHES)


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Return the bytes of one IDX file, in the shape that its header gives.

    Args:
        path: the file; one whose name ends in .gz is decompressed.
        dimensions: how many the file must have.

    Raises:
        InvalidValueError: if the file is damaged, of another kind, too short or too long.
    """
    raw = content(path, "an IDX file")
    start = 4 + 4 * dimensions
    if len(raw) < start:
        raise file_error(path, f"is too short for an IDX file: {len(raw)} bytes")
    magic, *shape = struct.unpack_from(f">{1 + dimensions}I", raw)
    wanted = _UNSIGNED_BYTE << 8 | dimensions
    if magic != wanted:
        raise file_error(path, f"must begin with the IDX magic 0x{wanted:08x}, got 0x{magic:08x}")
    if len(raw) - start != math.prod(shape):
        raise file_error(
            path,
            f"must hold {math.prod(shape)} bytes for its shape {tuple(shape)}, "
            f"got {len(raw) - start}",
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def _load(name: str, folders: tuple[Path, ...], address: str, classes: tuple[str, ...]) -> Split:
    stems = [f"{part}-{kind}" for part in ("train", "t10k") for kind in ("images", "labels")]
    paths = [_find_file(folders, stem) for stem in stems]
    found = [path for path in paths if path is not None]
    if len(found) < len(stems):
        absent = [_file_name(stem) for stem, path in zip(stems, paths, strict=True) if path is None]
        wanted = f"{', '.join(absent)} (with or without .gz)"
        raise not_found_error(name, wanted, folders, address)
    train_images, train_labels, test_images, test_labels = found
    return Split(
        train=_part(train_images, train_labels, classes),
        test=_part(test_images, test_labels, classes),
    )


def _file_name(stem: str) -> str:
    return f"{stem}-idx{3 if stem.endswith('images') else 1}-ubyte"


def _find_file(folders: tuple[Path, ...], stem: str) -> Path | None:
    names = (f"{_file_name(stem)}.gz", _file_name(stem))
    candidates = (folder / name for folder in folders for name in names)
    return next((path for path in candidates if path.is_file()), None)


def _part(images_path: Path, labels_path: Path, classes: tuple[str, ...]) -> Examples:
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if images.shape[1:] != (_SIDE, _SIDE) or len(images) == 0:
        raise file_error(
            images_path, f"must hold images of {_SIDE} x {_SIDE}, got shape {images.shape}"
        )
    if len(images) != len(labels):
        raise file_error(
            images_path,
            f"has {len(images)} images, but {quoted(labels_path)} has {len(labels)} labels",
        )
    if labels.max() >= len(classes):
        index = int(np.argmax(labels >= len(classes)))
        raise file_error(
            labels_path, f"must hold labels from 0 to 9, got {labels[index]} at {index}"
        )
    return from_bytes(images[:, None], labels.astype(np.int64), classes)
