"""The history of a run: one row every few steps, in memory and as JSON lines.

Nothing in it comes from the private data but through the noise.
"""

import json
import math
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """One row of a run's history.

    Attributes:
        step: how many steps were released.
        epsilon: what they cost.
        stepsize: η of the last of them.
        noise_multiplier: z of the last of them.
        metrics: what was measured on public data.
        iterate_metrics: the same of the last iterate, where ``metrics`` are of an average of them.

    Example:
        >>> Row(step=20, epsilon=0.5, stepsize=0.1, noise_multiplier=2.0).metrics
        {}
    """

    step: int
    epsilon: float
    stepsize: float
    noise_multiplier: float
    metrics: dict[str, float] = field(default_factory=dict)
    iterate_metrics: dict[str, float] = field(default_factory=dict)

    def numbers(self) -> dict[str, float]:
        """Return what `dither.sinks` receive of the row, by name.

        >>> Row(20, 0.5, 0.1, 2.0, {"accuracy": 0.9}).numbers()
        {'epsilon': 0.5, 'stepsize': 0.1, 'noise_multiplier': 2.0, 'public/accuracy': 0.9}
        """
        return {
            "epsilon": self.epsilon,
            "stepsize": self.stepsize,
            "noise_multiplier": self.noise_multiplier,
            **{f"public/{name}": value for name, value in self.metrics.items()},
            **{f"public/iterate_{name}": value for name, value in self.iterate_metrics.items()},
        }


class History:
    """The rows of a run, written as they are added.

    Args:
        directory: where to write them, or None to write nothing.
        step: continue after that many steps, with the rows that are there already.
    """

    def __init__(self, directory: Path | None, step: int = 0) -> None:
        self._file = None if directory is None else directory / "history.jsonl"
        self.rows = [] if self._file is None else _read(self._file, step)
        if self._file is not None and step:
            self._file.write_text("".join(map(_line, self.rows)), encoding="utf-8")

    def add(self, row: Row) -> None:
        """Add a row, and write it."""
        self.rows.append(row)
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(_line(row))


def _line(row: Row) -> str:
    return json.dumps(finite(asdict(row)), allow_nan=False) + "\n"


def _read(file: Path, step: int) -> list[Row]:
    """Return the rows of a run up to a step; a last line that was cut off is left out."""
    rows: list[Row] = []
    if step and file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            with suppress(json.JSONDecodeError):
                values: dict[str, Any] = json.loads(line)
                known: dict[str, Any] = {k: math.nan if v is None else v for k, v in values.items()}
                rows.append(Row(**known))
    return [row for row in rows if row.step <= step]


def finite(value: Any) -> Any:
    """Return a JSON value: infinite and NaN numbers become None."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value
