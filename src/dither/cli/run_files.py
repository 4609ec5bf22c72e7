"""What commands read in the folder of a run."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dither import validate

ABOUT, AUDITS = "run.json", "audit.json"
_MOST_BYTES = 2**28


def read_run_file(folder: Path, name: str) -> dict[str, Any]:
    """Return what a JSON file of a run says, or say in one line why it cannot be read."""
    path = folder / name
    if not path.is_file():  # a pipe would block
        raise validate.InvalidValueError(
            f"run_dir must be the folder of a run with its {name}, got {str(folder)!r}"
        )
    try:
        text = path.read_text(encoding="utf-8") if path.stat().st_size <= _MOST_BYTES else ""
        found = json.loads(text)
    except (OSError, ValueError, RecursionError):  # also for a number too long to be read
        found = None
    if not isinstance(found, dict):
        raise validate.InvalidValueError(f"{name} must be whole, got one that is not: {path}")
    return found


def ledger_place(path: Path) -> Path:
    """Return where a ledger is; the folder of a run may say that it is elsewhere."""
    if not (path / ABOUT).is_file():
        return path
    ledger = read_run_file(path, ABOUT).get("ledger") or str(path)
    return Path(validate.instance(str, ledger=ledger))


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
    """Add an audit to those of a run: none is overwritten, least of all one that refutes.

    Others who add one at the same time wait.
    """
    from dither.ledger.entries import now
    from dither.ledger.files import write_atomic

    with _alone(folder / f"{AUDITS}.lock"):
        audits = [*audits_of(folder), {"time": now(), **found}]
        kept = {"format": "dither-audits-1", "audits": audits}
        write_atomic(folder / AUDITS, json.dumps(kept, allow_nan=False).encode())


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Keep other processes out, where that can be asked for; who dies lets go of the lock."""
    if os.name != "posix":
        yield
        return
    import fcntl

    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
