"""What commands read in the folder of a run."""

import json
from pathlib import Path
from typing import Any

from dither import validate

ABOUT, AUDITS = "run.json", "audit.json"


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


def audits_of(folder: Path) -> list[Any]:
    """Return the audits that a run has had, or say in one line why they cannot be read."""
    if not (folder / AUDITS).exists():
        return []
    audits = read_run_file(folder, AUDITS).get("audits")
    if not isinstance(audits, list):
        raise validate.InvalidValueError(
            f"{AUDITS} must have a list of audits, got one that has not: {folder / AUDITS}"
        )
    return audits


def keep_audit(folder: Path, found: dict[str, Any]) -> None:
    """Add an audit to those of a run: none is overwritten, least of all one that refutes."""
    from dither.ledger.entries import now
    from dither.ledger.files import write_whole

    audits = [*audits_of(folder), {"time": now(), **found}]
    kept = {"format": "dither-audits-1", "audits": audits}
    write_whole(folder / AUDITS, json.dumps(kept, allow_nan=False).encode())
