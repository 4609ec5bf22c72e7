"""Load a public set by its name, or data of one's own by its path."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dither.data.arrays import load_array, load_npz
from dither.data.cifar import load_cifar10
from dither.data.examples import Examples, Split
from dither.data.files import directory, is_tar_name, quoted
from dither.data.idx import DIGITS, load_fashion_mnist, load_mnist
from dither.data.image_folder import load_images
from dither.schema.tables import FILES
from dither.validate import InvalidTypeError, InvalidValueError


def load_digits() -> Split:
    """Return scikit-learn's 1,797 digits, 8 × 8 in [0, 1]; every fifth record is for testing."""
    from sklearn import datasets

    digits = datasets.load_digits()
    inputs = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    targets = torch.tensor(digits.target, dtype=torch.int64)
    is_test = torch.arange(len(targets)) % 5 == 4
    return Split(
        train=Examples(inputs[~is_test], targets[~is_test], DIGITS),
        test=Examples(inputs[is_test], targets[is_test], DIGITS),
    )


NAMES: dict[str, Callable[[Path], Split]] = {
    "cifar10": load_cifar10,
    "digits": lambda _: load_digits(),
    "fashion-mnist": load_fashion_mnist,
    "mnist": load_mnist,
}


def load(name: str | Path, *, data_dir: str | Path | None = None) -> Split:
    """Return a set of labelled records, read into memory.

    Args:
        name: one of `NAMES`, or a path: a .npz file, a folder of class folders of images, or a
            tar of one. A path is looked for as given, then in the data directory. Tables are read
            by a `dither.Schema`.
        data_dir: the data directory; None is $DITHER_DATA, else ``data``.

    Returns:
        The records to train on and, if the source has them, those to test with.

    Raises:
        InvalidValueError: if something is missing, damaged or of another format.

    Example:
        >>> load("digits").train.classes[:3]
        ('0', '1', '2')
    """
    if not isinstance(name, str | Path):
        raise InvalidTypeError(f"name must be a name or a path, got {type(name).__name__}")
    base = directory(data_dir)
    if isinstance(name, str) and name in NAMES:
        return NAMES[name](base)
    if Path(name).name.lower().endswith(FILES):
        raise InvalidValueError(
            f"name must be no table: dither.Schema reads tables, got {quoted(name)}"
        )
    path = _find_path(Path(name), base)
    return load_npz(path) if path.suffix.lower() == ".npz" else load_images(path)


def load_ids(
    name: str | Path, array: str, *, data_dir: str | Path | None = None
) -> NDArray[np.generic]:
    """Return the ids of the records' users, an array of a .npz file.

    Args:
        name: the path of the file, looked for as `load` does.
        array: the name of the array, with one id per record.
        data_dir: as `load` takes it.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/scans.npz"
        >>> np.savez(path, x=np.zeros((3, 2)), y=[0, 1, 1], patient=["a", "b", "a"])
        >>> load_ids(path, "patient").tolist()
        ['a', 'b', 'a']
    """
    path = _find_path(Path(name), directory(data_dir))
    if path.suffix.lower() != ".npz":
        raise InvalidValueError(f"ids must be an array of a .npz file, got {quoted(path)}")
    return load_array(path, array)


def _find_path(path: Path, base: Path) -> Path:
    places = dict.fromkeys((path, base / path))
    if path.name:
        for place in places:
            readable = path.suffix.lower() == ".npz" or is_tar_name(path)
            if place.is_dir() or (readable and place.is_file()):
                return place
    looked = " and ".join(quoted(place) for place in places)
    if path.suffix.lower() == ".npz" or is_tar_name(path):
        raise InvalidValueError(f"{quoted(path)} was not found: looked for {looked}")
    raise InvalidValueError(
        f"name must be one of {', '.join(NAMES)}, or the path of a .npz file, "
        f"a folder of images or a .tar of one, got {quoted(path)}, looked for in {looked}"
    )
