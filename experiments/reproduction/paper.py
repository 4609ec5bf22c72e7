"""The paper's own numbers, from the CSV files beside its source."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dither.validate import InvalidValueError

_DECAYING, _ADAPTIVE = "cifar10_tables.csv", "cifar10_adaptive.csv"


@dataclass(frozen=True)
class Cell:
    """Where a number stands: (schedule, metric, ε̄, algorithm, clip norm, epochs)."""

    schedule: str
    metric: str
    eps_bar: float
    algorithm: str
    clip_norm: float
    epochs: int


@dataclass(frozen=True)
class Number:
    """Accuracy in percent over five runs, and its standard deviation."""

    mean: float
    sd: float


Paper = dict[Cell, Number]


def read_paper(directory: Path) -> Paper:
    """Return all accuracies of the paper's tables.

    One of its tables has a row ε̄ = 0.9 where all the others have 0.8; it is read as 0.8. The
    adaptive table is under the schedule "adaptive", 60 epochs, metric "best".
    """
    try:
        return _read(directory)
    except InvalidValueError:
        raise
    except (KeyError, ValueError) as problem:
        raise InvalidValueError(
            f"paper must be a directory with {_DECAYING} and {_ADAPTIVE} as they were published, "
            f"got {str(directory)!r}: {problem}"
        ) from problem


def _read(directory: Path) -> Paper:
    found: Paper = {}
    for row in _rows(directory / _DECAYING):
        eps_bar = 0.8 if row["eps_bar"] == "0.9" else float(row["eps_bar"])
        cell = Cell(
            row["schedule"], row["metric"], eps_bar, row["algorithm"],
            float(row["clip_norm"]), int(row["epochs"]),
        )  # fmt: skip
        found[cell] = Number(float(row["accuracy"]), float(row["std"]))
    for row in _rows(directory / _ADAPTIVE):
        place = float(row["eps_bar"]), row["algorithm"], float(row["clip_norm"]), 60
        found[Cell("adaptive", "best", *place)] = Number(float(row["accuracy"]), float(row["std"]))
    return found


def _rows(path: Path) -> Iterator[dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)
    except OSError as problem:
        raise InvalidValueError(
            f"paper must be a directory with {_DECAYING} and {_ADAPTIVE}, got "
            f"{str(path.parent)!r}: {problem.strerror}"
        ) from problem
