"""Checks of arguments: each takes one keyword, so that its message can name the argument.

Models are checked elsewhere: their layers in `dither.clipping.layers`.

>>> positive(epsilon=0.5)
0.5
>>> positive(epsilon=-1)
Traceback (most recent call last):
dither.validate.InvalidValueError: epsilon must be a positive, finite number, got -1

Numbers outside 1e-50 … 1e50 are refused too: no quantity of a training run is that large or small,
and squares and products of numbers inside neither overflow nor vanish.
"""

import math
import os
import sys
import warnings
from collections.abc import Collection, Iterable
from numbers import Real
from pathlib import Path
from typing import SupportsInt, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dither.types import CLIPPINGS, FloatArray

Kind = TypeVar("Kind")

_PACKAGE = str(Path(__file__).parent / "_").removesuffix("_")
SMALLEST, LARGEST = 1e-50, 1e50
MOST_STEPS = 10**8


class InvalidValueError(ValueError):
    """An argument has a value that is not allowed; the message is one line."""


class InvalidTypeError(TypeError):
    """An argument has a type that is not allowed; the message is one line."""


def warn(message: str) -> None:
    """Warn at the caller's line: the innermost one outside of dither."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def positive(**argument: object) -> float:
    """Return the argument as a float that is > 0 and finite."""
    name, value, number = _number(argument, "a positive, finite number")
    if not (number > 0.0 and math.isfinite(number)):
        raise InvalidValueError(f"{name} must be a positive, finite number, got {value!r}")
    if not SMALLEST <= number <= LARGEST:
        raise InvalidValueError(f"{name} must be between 1e-50 and 1e50, got {value!r}")
    return number


def clipping(*, clip_norm: object, clipping: object) -> tuple[float, str]:
    """Return a clip norm, which may be infinite for flat clipping, and the way of clipping."""
    choice(CLIPPINGS, clipping=clipping)
    if clip_norm == math.inf and clipping != "flat":
        raise InvalidValueError(
            f"clip_norm must be finite where clipping is {clipping!r}, got {clip_norm!r}"
        )
    norm = math.inf if clip_norm == math.inf else positive(clip_norm=clip_norm)
    return norm, str(clipping)


def nonnegative(**argument: object) -> float:
    """Return the argument as a float that is >= 0 and finite."""
    name, value, number = _number(argument, "a finite number of at least 0")
    if not (number >= 0.0 and math.isfinite(number)):
        raise InvalidValueError(f"{name} must be a finite number of at least 0, got {value!r}")
    if number > LARGEST:
        raise InvalidValueError(f"{name} must be at most 1e50, got {value!r}")
    return number


def finite(**argument: object) -> float:
    """Return the argument as a finite float."""
    name, value, number = _number(argument, "a finite number")
    if not math.isfinite(number):
        raise InvalidValueError(f"{name} must be a finite number, got {value!r}")
    return number


def probability(**argument: object) -> float:
    """Return the argument as a float strictly between 0 and 1, as every δ must be."""
    name, value, number = _number(argument, "a number strictly between 0 and 1")
    if not 0.0 < number < 1.0:
        raise InvalidValueError(f"{name} must be strictly between 0 and 1, got {value!r}")
    return positive(**argument)


def rate(**argument: object) -> float:
    """Return the argument as a float in (0, 1]."""
    name, value, number = _number(argument, "a number in (0, 1]")
    if not 0.0 < number <= 1.0:
        raise InvalidValueError(f"{name} must be above 0 and at most 1, got {value!r}")
    return number


def rates(steps: int, **argument: object) -> "float | FloatArray":
    """Return probabilities in (0, 1], one per step or one for all; equal ones become one."""
    ((name, value),) = argument.items()
    if np.ndim(cast(ArrayLike, value)) == 0:
        return rate(**argument)
    values = same_length(steps, **{name: positives(**argument)})
    _all(name, values, values <= 1.0, "in (0, 1]")
    return float(values[0]) if (values == values[0]).all() else values


def count(**argument: object) -> int:
    """Return the argument as an int >= 1; a float is accepted if it is an integer."""
    name, value, number = _number(argument, "an integer of at least 1")
    integer = int(cast(SupportsInt, value)) if math.isfinite(number) else 0
    if integer < 1 or integer != value:
        raise InvalidValueError(f"{name} must be an integer of at least 1, got {value!r}")
    if number > LARGEST:
        raise InvalidValueError(f"{name} must be between 1 and 1e50, got {value!r}")
    return integer


def step_count(**argument: object) -> int:
    """Return the argument as a number of steps, which must fit in memory."""
    T = count(**argument)
    if T > MOST_STEPS:
        ((name, value),) = argument.items()
        raise InvalidValueError(f"{name} must be at most {MOST_STEPS:,}, got {value!r}")
    return T


def batch_within(*, batch_size: object, dataset_size: object) -> tuple[int, int]:
    """Return (m, n) with 1 <= m <= n."""
    m, n = count(batch_size=batch_size), count(dataset_size=dataset_size)
    if m > n:
        raise InvalidValueError(f"batch_size must be at most dataset_size = {n}, got {m}")
    return m, n


def steps_in(epochs: object, *, batch_size: int, dataset_size: int) -> int:
    """Return T = ceil(epochs·n/m), a number of steps that can be planned."""
    return step_count(steps=math.ceil(positive(epochs=epochs) * dataset_size / batch_size))


def steps_at_least(least: float, formula: str, steps: object) -> int:
    """Return ``steps`` as an int that is no less than what a statement's condition requires."""
    T = count(steps=steps)
    if least > T:
        raise InvalidValueError(f"steps must be at least {formula} = {least:.6g}, got {steps!r}")
    return T


def positives(**argument: object) -> FloatArray:
    """Return the argument as a new float64 vector: not empty, every entry > 0 and finite."""
    name, values = _vector(argument)
    _all(name, values, (values > 0.0) & np.isfinite(values), "positive and finite")
    return _all(name, values, (values >= SMALLEST) & (values <= LARGEST), "within 1e-50 … 1e50")


def nonnegatives(**argument: object) -> FloatArray:
    """Return the argument as a new float64 vector: not empty, every entry >= 0 and finite."""
    name, values = _vector(argument)
    _all(name, values, (values >= 0.0) & np.isfinite(values), "at least 0 and finite")
    return _all(name, values, values <= LARGEST, "at most 1e50")


def probabilities(**argument: object) -> FloatArray:
    """Return the argument as a new float64 vector with every entry strictly in (0, 1)."""
    name, values = _vector(argument)
    _all(name, values, (values > 0.0) & (values < 1.0), "strictly between 0 and 1")
    return _all(name, values, values >= SMALLEST, "at least 1e-50")


def numbers(**argument: object) -> FloatArray:
    """Return the argument as an array of any shape, none of whose numbers is NaN."""
    name, values = _array(argument, "numbers", "biuf")
    if np.isnan(values).any():
        missing = int(np.isnan(values).sum())
        raise InvalidValueError(f"{name} must be numbers, got {missing} NaN")
    return values


def same_length(expected: int, **argument: FloatArray) -> FloatArray:
    """Return the vector if it has ``expected`` entries, one per step."""
    ((name, values),) = argument.items()
    if values.size != expected:
        raise InvalidValueError(
            f"{name} must have one entry per step, {expected} in all, got {values.size}"
        )
    return values


def choice(allowed: Iterable[str], **argument: object) -> str:
    """Return the argument if it is one of the allowed names."""
    ((name, value),) = argument.items()
    names = sorted(allowed)
    if not isinstance(value, str) or value not in names:
        raise InvalidValueError(f"{name} must be one of {', '.join(names)}, got {value!r}")
    return value


def instance(kind: type[Kind], **argument: object) -> Kind:
    """Return the argument if it is of the given class."""
    ((name, value),) = argument.items()
    if not isinstance(value, kind):
        raise InvalidTypeError(f"{name} must be a {kind.__name__}, got {_describe(value)}")
    return value


def output_file(suffixes: Collection[str] = (), **argument: "str | Path") -> Path:
    """Return the argument as the path of a file that can be written; nothing is written."""
    ((name, path),) = argument.items()
    target = Path(path)
    if suffixes and target.suffix.lower() not in suffixes:
        raise InvalidValueError(
            f"{name} must end in one of {', '.join(suffixes)}, got {str(path)!r}"
        )
    if not target.name or not target.parent.is_dir():
        raise InvalidValueError(f"{name} must be in an existing directory, got {str(path)!r}")
    if (target.exists() and not target.is_file()) or not os.access(target.parent, os.W_OK):
        raise InvalidValueError(f"{name} must be a file that can be written, got {str(path)!r}")
    return target


def _number(argument: dict[str, object], wanted: str) -> tuple[str, object, float]:
    ((name, value),) = argument.items()
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise InvalidTypeError(f"{name} must be {wanted}, got {_describe(value)}")
    try:
        return name, value, float(value)
    except OverflowError:
        raise InvalidValueError(f"{name} must be {wanted}, got a number too large") from None


def _vector(argument: dict[str, object]) -> tuple[str, FloatArray]:
    name, values = _array(argument, "a vector of numbers", "iuf")
    if values.ndim != 1 or values.size == 0:
        raise InvalidValueError(
            f"{name} must be a list of at least one number, got shape {values.shape}"
        )
    return name, values


def _array(argument: dict[str, object], wanted: str, kinds: str) -> tuple[str, FloatArray]:
    ((name, value),) = argument.items()
    try:
        values = np.array(cast(ArrayLike, value))
    except ValueError:
        raise InvalidTypeError(f"{name} must be {wanted}, got {_describe(value)}") from None
    if values.dtype.kind not in kinds or isinstance(value, np.ma.MaskedArray):
        raise InvalidTypeError(f"{name} must be {wanted}, got {_describe(value)}")
    return name, values.astype(np.float64)


def _all(name: str, values: FloatArray, good: NDArray[np.bool_], wanted: str) -> FloatArray:
    if not good.all():
        index = int(np.argmin(good))
        raise InvalidValueError(f"{name}[{index}] must be {wanted}, got {values[index]!s}")
    return values


def _describe(value: object) -> str:
    text = " ".join(repr(value).split())
    short = text if len(text) <= 60 else f"{text[:57]}..."
    return f"{short} ({type(value).__name__})"
