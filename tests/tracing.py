"""Counting executed lines, which tells a vectorised function from a loop without a clock."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def traced_lines(call: Callable[[], object]) -> int:
    """Return how many lines of Python run during the call, without finalizers of other objects."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    previous, collecting = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(previous)
        if collecting:
            gc.enable()
    return lines
