"""How many rows of a batch fit into memory at once."""

import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from dither.validate import InvalidValueError, count

FIRST_ROWS = 8
"""Rows of the first part of a batch, of which the memory is measured."""

MOST_ROWS = 1024
"""More rows at once are hardly faster."""

_SHARE = 0.5
"""Of the memory that is available: the rest is for what is not measured."""


class SeenBytes:
    """Counts the bytes of tensors, those that share their memory once.

    Example:
        >>> counter, values = SeenBytes(), torch.ones(10, 3)
        >>> counter.add([values, values.t(), torch.zeros(5)])
        >>> counter.total
        140
    """

    def __init__(self) -> None:
        self.total = 0
        self._seen: set[int] = set()

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Count these tensors, too."""
        for tensor in tensors:
            whole = tensor if tensor._base is None else tensor._base
            place = whole.data_ptr()
            if place not in self._seen and not isinstance(whole, torch.nn.Parameter):
                self._seen.add(place)
                self.total += whole.numel() * whole.element_size()


def check_size(**argument: object) -> None:
    """Raise if a size of microbatches is neither a number nor "auto"."""
    ((name, value),) = argument.items()
    if isinstance(value, str) and value != "auto":
        raise InvalidValueError(
            f'{name} must be an integer of at least 1, or "auto", got {value!r}'
        )
    if not isinstance(value, str):
        count(**argument)


def rows_that_fit(bytes_per_row: float, device: torch.device) -> int:
    """Return how many rows fit into half of the memory that is available, at most 1,024.

    Example:
        >>> rows_that_fit(1.0, torch.device("cpu")), rows_that_fit(1e18, torch.device("cpu"))
        (1024, 1)
    """
    fitting = _SHARE * available_bytes(device) / max(1.0, bytes_per_row)
    return int(min(max(1.0, fitting), MOST_ROWS))


def available_bytes(device: torch.device) -> int:
    """Return how much memory is left on a device; of a container, what it may still use."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    return int(min(_of_machine(), _of_container()))


def _of_machine() -> int:
    table = Path("/proc/meminfo")
    if not table.exists():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    lines = dict(line.split(":") for line in table.read_text(encoding="ascii").splitlines())
    return 1024 * int(lines["MemAvailable"].split()[0])


def _of_container(folder: Path = Path("/sys/fs/cgroup")) -> int | float:
    limit, used = folder / "memory.max", folder / "memory.current"
    if not limit.exists() or (most := limit.read_text(encoding="ascii").strip()) == "max":
        return float("inf")
    return max(0, int(most) - int(used.read_text(encoding="ascii")))
