"""What commands read in the folder of a run."""

import json
from pathlib import Path
from typing import Any

from dither import validate

ABOUT = "run.json"


def read_run_file(folder: Path, name: str) -> dict[str, Any]:
    """Return what a JSON file of a run says, or say in one line why it cannot be read."""
    path = folder / name
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise validate.InvalidValueError(
            f"run_dir must be the folder of a run with its {name}, got {str(folder)!r}"
        ) from None
    except (UnicodeDecodeError, json.JSONDecodeError):
        found = None
    if not isinstance(found, dict):
        raise validate.InvalidValueError(f"{name} must be whole, got one that is not: {path}")
    return found


def ledger_place(path: Path) -> Path:
    """Return where a ledger is; the folder of a run may say that it is elsewhere."""
    if not (path / ABOUT).is_file():
        return path
    return Path(read_run_file(path, ABOUT).get("ledger") or path)
