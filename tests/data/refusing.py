"""What loading says to bad files."""

from pathlib import Path

import pytest

from dither.data import load
from dither.validate import InvalidValueError


def complaint(name: str | Path, data_dir: Path | None = None, label: str | None = None) -> str:
    """Load what must be refused, in one line and without a cause; return the line."""
    with pytest.raises(InvalidValueError) as caught:
        load(name, data_dir=data_dir, label=label)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value)
