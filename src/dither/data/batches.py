"""The batches that CIFAR-10 is published as: pickles, read without executing anything."""

import io
import pickle

import numpy as np
from numpy.typing import NDArray

from dither.data.files import refusal
from dither.validate import InvalidValueError

PIXELS = 3 * 32 * 32
_DAMAGED = (
    pickle.UnpicklingError,
    EOFError,
    ImportError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    OverflowError,
    MemoryError,
)


class _StandIn:
    """Keeps what a pickle says about an array or a dtype, and does nothing with it."""

    __slots__ = ("arguments", "state")

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


def _encode(text: object, encoding: object) -> bytes:
    """Stand for ``_codecs.encode``, by which Python 3 writes bytes for Python 2."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("bytes must be written as latin1")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _StandIn,
    ("numpy._core.multiarray", "_reconstruct"): _StandIn,
    ("numpy", "ndarray"): _StandIn,
    ("numpy", "dtype"): _StandIn,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> object:
        if (module, name) not in _ALLOWED:
            raise InvalidValueError(f"asks for {f'{module}.{name}'!r}, which is not allowed")
        return _ALLOWED[module, name]


def read_batch(raw: bytes, source: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the images (N, 3, 32, 32) and the labels of one batch.

    Args:
        raw: the pickle.
        source: the file that it is from, for messages.

    Raises:
        InvalidValueError: if the pickle is damaged, or is anything but bytes, lists and arrays.
    """
    stream = io.BytesIO(raw)
    try:
        batch = _Unpickler(stream, encoding="bytes").load()
    except InvalidValueError as error:
        raise refusal(source, f"is not a batch of CIFAR-10: it {error}") from None
    except _DAMAGED:
        raise refusal(source, "is not a batch of CIFAR-10: it is damaged or no pickle") from None
    if stream.read(1):
        raise refusal(source, "is not a batch of CIFAR-10: it goes on after its end")
    if not isinstance(batch, dict):
        raise refusal(source, f"is not a batch of CIFAR-10: it is a {type(batch).__name__}")
    images = _images(batch.get(b"data"), source)
    return images, _labels(batch.get(b"labels"), len(images), source)


def _images(data: object, source: str) -> NDArray[np.uint8]:
    state = data.state if isinstance(data, _StandIn) else None
    if isinstance(state, tuple) and len(state) == 5:
        _, shape, kind, by_columns, raw = state
        is_bytes = isinstance(kind, _StandIn) and kind.arguments[:1] in ((b"u1",), ("u1",))
        if is_bytes and not by_columns and isinstance(raw, bytes) and len(raw) > 0:
            records = len(raw) // PIXELS
            if shape == (records, PIXELS) and records * PIXELS == len(raw):
                return np.frombuffer(raw, np.uint8).reshape(records, 3, 32, 32)
    raise refusal(source, f"is not a batch of CIFAR-10: data must be bytes, {PIXELS} a record")


def _labels(labels: object, records: int, source: str) -> NDArray[np.int64]:
    good = isinstance(labels, list) and all(type(label) is int for label in labels)
    if not isinstance(labels, list) or not good or len(labels) != records:
        raise refusal(source, f"must have a list of {records} whole numbers as labels")
    if not 0 <= min(labels) <= max(labels) <= 9:
        raise refusal(source, f"must hold labels of 0 … 9, got {min(labels)} … {max(labels)}")
    return np.array(labels, np.int64)
