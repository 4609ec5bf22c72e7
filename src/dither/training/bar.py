"""The bar of a training run: the step, ε so far and the time left."""

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """Shown on a terminal's standard error while it is entered.

    Args:
        steps: T.
        shown: whether it is wanted at all.
    """

    def __init__(self, steps: int, *, shown: bool) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("ε = {task.fields[epsilon]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not (shown and console.is_terminal),
        )
        self._task = self._progress.add_task("training", total=steps, epsilon="0")

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, step: int, epsilon: Callable[[], float]) -> None:
        """Show that a step was taken; what all cost is asked for only if somebody sees it."""
        if not self._progress.disable:
            self._progress.update(self._task, completed=step, epsilon=f"{epsilon():.3g}")
