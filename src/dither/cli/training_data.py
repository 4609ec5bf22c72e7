"""The records that a command trains on, and what of them is public knowledge."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dither import validate

if TYPE_CHECKING:
    from dither.data import Examples

STANDARD = ("cifar10", "digits", "fashion-mnist", "mnist")
"""Sets that are public."""


def read(arguments: argparse.Namespace) -> tuple["Examples", "Examples | None"]:
    """Return the records to train on, and those to measure with if there are some."""
    from dither import data

    folder, label = (getattr(arguments, name, None) for name in ("data_dir", "label"))
    read = data.load(arguments.data, data_dir=folder, label=label)
    own = ("public_test", "classes", "bounds")
    given, classes, bounds = (getattr(arguments, name, None) for name in own)
    if arguments.data in STANDARD:
        for name, value in zip(own, (given, classes, bounds), strict=True):
            if value is not None:
                raise validate.InvalidValueError(
                    f"{name} is for data of your own: {arguments.data} has its own, got {value!r}"
                )
        return read.train, read.test
    limits = {} if bounds is None else _limits(bounds)
    train = data.clip_to_bounds(read.train, limits)
    train = train if classes is None else data.with_classes(train, classes.split(","))
    if given is None:
        return train, None
    if Path(given).resolve() == Path(arguments.data).resolve():
        raise validate.InvalidValueError(
            f"public_test must be another file than the private data, got {given!r}"
        )
    test = data.clip_to_bounds(data.load(given, data_dir=folder, label=label).train, limits)
    if not bool(test.inputs.isfinite().all()):
        raise validate.InvalidValueError(
            f"public_test must have a finite number in every cell, got {given!r} with others"
        )
    return train, data.align_with(test, train)


def _limits(text: str) -> dict[str, tuple[float, float]]:
    """Read bounds as NAME=LEAST:LARGEST, separated by commas."""
    limits = {}
    for part in text.split(","):
        name, _, numbers = part.rpartition("=")
        try:
            least, largest = map(float, numbers.split(":"))
        except ValueError:
            raise validate.InvalidValueError(
                f"bounds must be NAME=LEAST:LARGEST, separated by commas, got {part!r}"
            ) from None
        limits[name] = least, largest
    return limits


def derived_from_private_data(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return what is read off data of one's own and taken as public."""
    if arguments.data in STANDARD:
        return ()
    known = {"dataset_size": "the number of records", "classes": "the set of classes"}
    return tuple(what for option, what in known.items() if not hasattr(arguments, option))
