"""What a run leaves behind: one row every few steps, in memory, as JSON lines and for TensorBoard.

Nothing here comes from the private data but through the noise.
"""

import json
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dither.validate import InvalidValueError


@dataclass(frozen=True)
class Row:
    """The run after a number of steps.

    Attributes:
        step: how many steps were released.
        epsilon: what they cost.
        stepsize: η of the last of them.
        noise_multiplier: z of the last of them.
        metrics: what was measured on public data.
    """

    step: int
    epsilon: float
    stepsize: float
    noise_multiplier: float
    metrics: dict[str, float] = field(default_factory=dict)


class History:
    """Rows, written as they come.

    Args:
        run_dir: a folder that is new or empty, or None to write nothing.
    """

    def __init__(self, run_dir: str | Path | None) -> None:
        self.rows: list[Row] = []
        self._folder = None if run_dir is None else checked_new_folder(run_dir)
        self._board: Any = None

    def open(self, plan: str) -> None:
        """Make the folder, once there is something to keep."""
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        self.write("plan.json", plan)
        if find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self._folder / "tensorboard"))

    def add(self, row: Row) -> None:
        """Keep a row, and write it down."""
        self.rows.append(row)
        if self._folder is not None:
            with (self._folder / "history.jsonl").open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(finite(asdict(row)), allow_nan=False) + "\n")
        if self._board is not None:
            for name, value in {**asdict(row), **row.metrics}.items():
                if isinstance(value, float):
                    self._board.add_scalar(name, value, row.step)

    def write(self, name: str, text: str) -> None:
        """Write a file into the run's folder, whole or not at all."""
        if self._folder is not None:
            part = self._folder / f"{name}.part"
            part.write_text(text, encoding="utf-8")
            part.replace(self._folder / name)

    def path(self, name: str) -> Path | None:
        """Return where a file of the run goes, if anywhere."""
        return None if self._folder is None else self._folder / name

    def close(self) -> None:
        """Finish what is buffered."""
        if self._board is not None:
            self._board.close()


def checked_new_folder(run_dir: str | Path) -> Path:
    """Return the folder of a run, if it is new or empty."""
    folder = Path(run_dir)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise InvalidValueError(
            f"run_dir must be a folder that is new or empty, got {str(folder)!r}"
        )
    return folder


def finite(value: Any) -> Any:
    """Return numbers as JSON can hold them: what is infinite or unknown as None."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value
