"""What the page would send, and patience for the answer."""

import time
from collections.abc import Callable
from typing import Any

from dither.explorer import settings


def texts(**changed: str) -> dict[str, Any]:
    """Return the fields of a small run, some of them changed."""
    small = {"batch_size": "2000", "epochs": "2", "schedule": "linear"}
    given = {**settings.DEFAULTS, **small, **changed}
    parameters = settings.form()["parameters"][given["schedule"]]
    return {**given, "parameters": changed.get("parameters", parameters)}


def eventually(
    condition: Callable[[], bool],
    seconds: float = 30.0,
    pause: Callable[[], None] = lambda: time.sleep(0.02),
) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} seconds"
        pause()
