"""Images in class folders, on disk or in a tar: ``train/<class>/<file>`` or ``<class>/<file>``."""

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dither.data.examples import Examples, Split, from_bytes
from dither.data.files import file_error, quoted, reading, tar_members

_PARTS = ("train", "test")
_GRAY, _COLOUR = ("1", "L"), ("P", "RGB", "RGBA", "RGBX", "LA", "PA", "CMYK", "YCbCr", "HSV")
_UNREADABLE = (
    OSError,
    EOFError,
    SyntaxError,
    ValueError,
    zlib.error,
    struct.error,
    Image.DecompressionBombError,
)


class _Picture(NamedTuple):
    place: tuple[str, ...]
    pixels: NDArray[np.uint8]


def load_images(path: Path) -> Split:
    """Return the images of a folder, or of a tar of one, in the order of their names.

    Args:
        path: the folder or the tar. Names that begin with a dot are left out, and so is one
            folder around all the others.

    Returns:
        Inputs of shape (N, channels, height, width) in [0, 1]; the classes are sorted by name.
        Without ``train/`` and ``test/`` folders there is no test part.
    """
    files = _files(path) if path.is_dir() else tar_members(path)
    pictures: list[_Picture] = []
    for name, raw in files:
        place = tuple(part for part in PurePosixPath(name).parts if part not in ("/", "."))
        if any(part.startswith(".") for part in place):
            continue
        picture = _Picture(place, _decode(raw, f"{path}/{name}"))
        if pictures and picture.pixels.shape != pictures[0].pixels.shape:
            raise file_error(f"{path}/{name}", _describe_difference(picture, pictures[0]))
        pictures.append(picture)
    if not pictures:
        raise file_error(path, "must hold at least one image")
    return _split(sorted(_strip_outer_folder(pictures), key=lambda picture: picture.place), path)


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    with reading(folder, "a folder of images"):
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                yield file.relative_to(folder).as_posix(), file.read_bytes()


def _decode(raw: bytes, source: str) -> NDArray[np.uint8]:
    """Return the pixels as (channels, height, width)."""
    try:
        image: Image.Image = Image.open(io.BytesIO(raw))
        image.load()
    except _UNREADABLE:
        raise file_error(source, "cannot be read as an image") from None
    if image.mode in _GRAY:
        return np.asarray(image.convert("L"))[None]
    if image.mode not in _COLOUR:
        raise file_error(source, f"must have 8 bits per channel, got mode {image.mode}")
    if image.mode != "RGB":
        image = image.convert("RGBA") if image.mode in ("P", "PA") else image
        image = image.convert("RGB")
    return np.asarray(image).transpose(2, 0, 1)


def _describe_difference(picture: _Picture, first: _Picture) -> str:
    got, wanted = (
        f"{width} x {height} {'gray' if channels == 1 else 'colour'} pixels"
        for channels, height, width in (picture.pixels.shape, first.pixels.shape)
    )
    return f"must be like the first image, {quoted('/'.join(first.place))}: {wanted}, got {got}"


def _strip_outer_folder(pictures: list[_Picture]) -> list[_Picture]:
    tops = {picture.place[0] for picture in pictures}
    deep = all(len(picture.place) > 2 for picture in pictures)
    if deep and len(tops) == 1 and not tops & set(_PARTS):
        return [_Picture(picture.place[1:], picture.pixels) for picture in pictures]
    return pictures


def _split(pictures: list[_Picture], path: Path) -> Split:
    depth = len(pictures[0].place)
    for place, _ in pictures:
        if len(place) != depth or depth not in (2, 3) or (place[0] in _PARTS) != (depth == 3):
            raise file_error(
                f"{path}/{'/'.join(place)}",
                "must be in <class>/ or in train/<class>/ and test/<class>/, like all the others",
            )
    classes = tuple(sorted({place[-2] for place, _ in pictures}))
    if depth == 2:
        return Split(train=_examples(pictures, classes), test=None)
    train, test = ([each for each in pictures if each.place[0] == part] for part in _PARTS)
    if not train:
        raise file_error(path, "must hold images in train/, got some in test/ only")
    return Split(train=_examples(train, classes), test=_examples(test, classes) if test else None)


def _examples(pictures: list[_Picture], classes: tuple[str, ...]) -> Examples:
    number = {name: index for index, name in enumerate(classes)}
    targets = np.array([number[place[-2]] for place, _ in pictures], np.int64)
    return from_bytes(np.stack([pixels for _, pixels in pictures]), targets, classes)
