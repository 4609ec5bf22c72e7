"""One look for all figures, and one way to save them."""

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dither import validate
from dither.ledger.files import usual_mode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".pdf", ".png", ".svg")

# Okabe and Ito's colours, which colour-blind people can tell apart.
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"


def checked_figure_path(path: str | Path) -> Path:
    """Return where a figure may be written, or say why not; nothing is written."""
    target = Path(path).resolve()
    if target.suffix.lower() not in SUFFIXES:
        raise validate.InvalidValueError(
            f"plot must end in one of {', '.join(SUFFIXES)}, got {str(path)!r}"
        )
    if not target.parent.is_dir():
        raise validate.InvalidValueError(f"plot must be in a folder that exists, got {str(path)!r}")
    if target.is_dir() or not os.access(target.parent, os.W_OK):
        raise validate.InvalidValueError(
            f"plot must be a file that can be written, got {str(path)!r}"
        )
    return target


def save_figure(figure: "Figure", path: str | Path) -> Path:
    """Write the figure in one piece: a reader sees the old file or the new one, never half."""
    target = checked_figure_path(path)
    handle, name = tempfile.mkstemp(suffix=target.suffix, dir=target.parent)
    os.close(handle)
    draft = Path(name)
    try:
        figure.savefig(draft, dpi=150)
        draft.chmod(usual_mode())
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target
