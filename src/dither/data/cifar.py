"""CIFAR-10 from its original batches, or from a tree of images."""

from pathlib import Path

import numpy as np

from dither.data.batches import read_batch
from dither.data.examples import Examples, Split, from_bytes
from dither.data.files import content, missing, refusal, tar_members
from dither.data.folders import load_images

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
_FOLDER, _ARCHIVE, _IMAGES = "cifar-10-batches-py", "cifar-10-python.tar.gz", "cifar10*.tar*"


def load_cifar10(base: Path) -> Split:
    """Return CIFAR-10 from ``cifar10/`` in the folder of the data, or from that folder itself.

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
    raise missing("cifar10", wanted, places, "https://www.cs.toronto.edu/~kriz/cifar.html")


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
        raise refusal(path, f"must hold {_FOLDER}/{lacking[0]}")
    return _from_batches(raw, path)


def _from_batches(raw: dict[str, bytes], source: Path) -> Split:
    def part(names: tuple[str, ...]) -> Examples:
        images, labels = zip(
            *(read_batch(raw[name], str(source / name)) for name in names), strict=True
        )
        return from_bytes(np.concatenate(images), np.concatenate(labels), CLASSES)

    return Split(train=part(TRAIN_BATCHES), test=part((TEST_BATCH,)))


def _from_images(path: Path) -> Split:
    split = load_images(path)
    shape, classes = tuple(split.train.inputs.shape[1:]), split.train.classes
    if split.test is None or classes != CLASSES or shape != (3, 32, 32):
        raise refusal(
            path,
            "must hold train/ and test/ of the ten classes of CIFAR-10 in 32 x 32 colour pixels, "
            f"got {len(classes)} classes of shape {shape}",
        )
    return split
