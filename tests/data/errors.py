"""The one-line errors of loading."""

from pathlib import Path

import pytest

from dither.data import load
from dither.validate import InvalidValueError


def error_line(name: str | Path, data_dir: Path | None = None) -> str:
    """Load what cannot be loaded; return the error, one line without a cause."""
    with pytest.raises(InvalidValueError) as caught:
        load(name, data_dir=data_dir)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value)
