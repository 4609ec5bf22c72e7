"""Progress of long work with the time left: a bar on a terminal, else a line now and then."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import rich.progress

_FIRST_LINE, _BETWEEN_LINES = 2.0, 10.0  # seconds


class Progress:
    """Progress on standard error, from entering to leaving a ``with`` block.

    Args:
        label: what is being done.
        total: the number of steps.
        shown: False shows nothing.

    Example:
        >>> with Progress("training", 100, shown=False) as progress:
        ...     for step in range(100):
        ...         progress.update(step + 1, lambda: "ε = 0.5")
    """

    def __init__(self, label: str, total: int, *, shown: bool = True) -> None:
        self._label, self._total, self._shown = label, total, shown
        self._bar: rich.progress.Progress | None = None
        self._begin = time.monotonic()
        self._due = self._begin + _FIRST_LINE
        self._done = 0

    def __enter__(self) -> "Progress":
        if self._shown and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[detail]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.add_task(self._label, total=self._total, detail="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int | None = None, detail: Callable[[], str] | None = None) -> None:
        """Show that ``done`` steps are done, or one more if it is None.

        Args:
            done: the number of steps done.
            detail: returns further text; called only if something is shown.
        """
        self._done = self._done + 1 if done is None else done
        if self._bar is not None:
            text = "" if detail is None else detail()
            self._bar.update(self._bar.task_ids[0], completed=self._done, detail=text)
        elif self._shown and time.monotonic() >= self._due:
            self._due = time.monotonic() + _BETWEEN_LINES
            self._write_line("" if detail is None else f", {detail()}")

    def _write_line(self, detail: str) -> None:
        elapsed = time.monotonic() - self._begin
        left = elapsed * (self._total - self._done) / max(self._done, 1)
        minutes, seconds = divmod(round(left), 60)
        sys.stderr.write(
            f"{self._label}: {self._done:,} of {self._total:,}{detail}, "
            f"{minutes}:{seconds:02d} left\n"
        )
        sys.stderr.flush()
