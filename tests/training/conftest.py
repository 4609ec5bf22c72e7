"""Models and batches are random: the same ones every time. Nothing of a run is left open."""

from collections.abc import Iterator

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack, _pop_mode


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Fail if a test leaves a recorder active: all that comes after it would be recorded."""
    yield
    left = _get_current_function_mode_stack()
    for _ in left:
        _pop_mode()
    assert not left
