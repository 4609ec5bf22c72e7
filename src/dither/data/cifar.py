"""CIFAR-10 from its original batches, or from a tree of images.

The batches are pickles. They are read by an unpickler that can build arrays and nothing else, so
that a file from elsewhere executes no code.
"""

import io
import pickle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dither.data.examples import Examples, Split, from_bytes
from dither.data.files import content, file_error, not_found_error, tar_members
from dither.data.image_folder import load_images

CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_BATCH = "test_batch"
PIXELS = 3 * 32 * 32
_FOLDER, _ARCHIVE, _IMAGES = "cifar-10-batches-py", "cifar-10-python.tar.gz", "cifar10*.tar*"


def load_cifar10(base: Path) -> Split:
    """Return CIFAR-10 from ``cifar10/`` in the data directory, or from the data directory itself.

    The original batches are preferred to a tar of an image tree, whose pixels may be lossy.
    """
    places = (base / "cifar10", base)
    for place in places:
        if (place / _FOLDER).is_dir():
            return _from_folder(place / _FOLDER)
        if (place / _ARCHIVE).is_file():
            return _from_archive(place / _ARCHIVE)
    for place in places:
        for archive in sorted(place.glob(_IMAGES)):
            return _from_images(archive)
    wanted = f"{_FOLDER}/, {_ARCHIVE} or {_IMAGES} of train/<class>/<image>"
    raise not_found_error("cifar10", wanted, places, "https://www.cs.toronto.edu/~kriz/cifar.html")


def _from_folder(folder: Path) -> Split:
    names = (*TRAIN_BATCHES, TEST_BATCH)
    return _from_batches(
        {name: content(folder / name, "a batch of CIFAR-10") for name in names}, folder
    )


def _from_archive(path: Path) -> Split:
    wanted = {f"{_FOLDER}/{name}": name for name in (*TRAIN_BATCHES, TEST_BATCH)}
    raw = {wanted[name]: data for name, data in tar_members(path) if name in wanted}
    lacking = [name for name in wanted.values() if name not in raw]
    if lacking:
        raise file_error(path, f"must hold {_FOLDER}/{lacking[0]}")
    return _from_batches(raw, path)


def _from_batches(raw: dict[str, bytes], source: Path) -> Split:
    def part(names: tuple[str, ...]) -> Examples:
        images, labels = zip(
            *(_read_batch(raw[name], str(source / name)) for name in names), strict=True
        )
        return from_bytes(np.concatenate(images), np.concatenate(labels), CLASSES)

    return Split(train=part(TRAIN_BATCHES), test=part((TEST_BATCH,)))


def _from_images(path: Path) -> Split:
    split = load_images(path)
    shape, classes = tuple(split.train.inputs.shape[1:]), split.train.classes
    if split.test is None or classes != CLASSES or shape != (3, 32, 32):
        raise file_error(
            path,
            "must hold train/ and test/ of the ten classes of CIFAR-10 in 32 x 32 colour pixels, "
            f"got {len(classes)} classes of shape {shape}",
        )
    return split


def _encode(text: object, encoding: object) -> bytes:
    """Replace ``_codecs.encode``, by which Python 3 writes bytes for Python 2."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("bytes must be encoded as latin1")
    return text.encode("latin1")


_RECONSTRUCT = np.empty(0).__reduce__()[0]  # NumPy's own, which builds an empty array
_ALLOWED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> object:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {f'{module}.{name}'!r}: not allowed")
        return _ALLOWED[module, name]


def _read_batch(raw: bytes, source: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the images (N, 3, 32, 32) and the labels of one pickled batch."""
    try:
        batch = _Unpickler(io.BytesIO(raw), encoding="bytes").load()
        images, labels = batch[b"data"], batch[b"labels"]
    except Exception as error:  # noqa: BLE001 - a damaged pickle can raise anything
        why = " ".join(str(error).split()) or type(error).__name__
        raise file_error(source, f"is not a batch of CIFAR-10: {why}") from None
    is_bytes = isinstance(images, np.ndarray) and images.dtype == np.uint8
    if not is_bytes or images.ndim != 2 or images.shape[1] != PIXELS or not len(images):
        raise file_error(source, f"must have {PIXELS} bytes per record as data")
    if not isinstance(labels, list) or len(labels) != len(images):
        raise file_error(source, f"must have a list of {len(images)} labels")
    if not all(type(label) is int and 0 <= label <= 9 for label in labels):
        raise file_error(source, "must have integer labels from 0 to 9")
    return images.reshape(-1, 3, 32, 32), np.array(labels, np.int64)
