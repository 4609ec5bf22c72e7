"""A bar with the time left, where there is a terminal to show it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

Advance = Callable[[], None]


@contextmanager
def bar(what: str, total: int, *, shown: bool) -> Iterator[Advance]:
    """Show a bar on a terminal's stderr; what is given is called after every step."""
    console = Console(stderr=True)
    hidden = not (shown and console.is_terminal)
    with Progress(console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)
