"""What commands read and write in a run directory: facts, audits, canaries."""

import argparse
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dither import validate

if TYPE_CHECKING:
    from dither.audit import Canaries
    from dither.data import Examples
    from dither.training import TrainResult

ABOUT, AUDITS, CANARIES = "run.json", "audit.json", "canaries.json"


def read_run_file(directory: Path, name: str) -> dict[str, Any]:
    """Return the contents of a JSON file of a run."""
    path = directory / name
    if not path.is_file():
        raise validate.InvalidValueError(
            f"run_dir must be the directory of a run with its {name}, got {str(directory)!r}"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict):
        raise validate.InvalidValueError(f"{name} must be complete, got a damaged one: {path}")
    return content


def find_ledger(path: Path) -> Path:
    """Return the path of a ledger, given as such or by the directory of a run that uses it."""
    if not (path / ABOUT).is_file():
        return path
    return Path(read_run_file(path, ABOUT).get("ledger") or path)


def read_audits(directory: Path) -> list[Any]:
    """Return the audits of a run so far."""
    if not (directory / AUDITS).exists():
        return []
    return list(read_run_file(directory, AUDITS).get("audits", []))


def append_audit(directory: Path, audit: dict[str, Any]) -> None:
    """Add an audit to those of a run; none is overwritten, also by concurrent processes."""
    from dither.ledger.entries import now
    from dither.ledger.files import write_atomic

    with _lock(directory / f"{AUDITS}.lock"):
        audits = [*read_audits(directory), {"time": now(), **audit}]
        content = {"format": "dither-audits-1", "audits": audits}
        write_atomic(directory / AUDITS, json.dumps(content, allow_nan=False).encode())


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Exclude other processes, on systems with flock."""
    with path.open("a", encoding="utf-8") as stream:
        if os.name == "posix":
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def check_canaries(arguments: argparse.Namespace) -> None:
    """Check --canaries against the other options, and against a run that is resumed."""
    count = getattr(arguments, "canaries", None)
    if count is not None and not hasattr(arguments, "run_dir"):
        raise validate.InvalidValueError("canaries need a run directory, --run-dir, got none")
    sampling = getattr(arguments, "sampling", "poisson")
    if count is not None and sampling != "poisson":
        raise validate.InvalidValueError(
            f"canaries need poisson sampling, which can leave records out, got {sampling!r}"
        )
    directory = Path(getattr(arguments, "run_dir", ""))
    if hasattr(arguments, "run_dir") and (directory / "plan.json").exists():
        began = _read_canaries(directory).get("count")
        if count != began:
            raise validate.InvalidValueError(
                f"canaries must be the number that the run began with, {began or 'none'}, got "
                f"{count or 'none'}"
            )


def build_canaries(arguments: argparse.Namespace, examples: "Examples") -> "Canaries | None":
    """Return the canaries of a run, the same after --resume; their seed is saved first."""
    from dither.audit import out_of_distribution
    from dither.ledger.files import write_atomic

    if not hasattr(arguments, "canaries"):
        return None
    directory = Path(arguments.run_dir)
    saved = _read_canaries(directory)
    if not saved:
        saved = {"count": arguments.canaries, "seed": str(secrets.randbits(128))}
        directory.mkdir(parents=True, exist_ok=True)
        write_atomic(directory / CANARIES, json.dumps(saved).encode())
    return out_of_distribution(
        arguments.canaries,
        tuple(examples.inputs.shape[1:]),
        classes=len(examples.classes),
        seed=int(saved["seed"]),
    )


@contextmanager
def remove_unused_canaries(
    arguments: argparse.Namespace, canaries: "Canaries | None"
) -> Iterator[None]:
    """Remove the canaries' file of a run that did not begin."""
    try:
        yield
    finally:
        directory = Path(getattr(arguments, "run_dir", ""))
        if canaries is not None and not (directory / "plan.json").exists():
            (directory / CANARIES).unlink(missing_ok=True)
            with suppress(OSError):  # it may not be empty
                directory.rmdir()


def add_canaries(canaries: "Canaries", examples: "Examples") -> "Examples":
    """Return the data with the canaries that are included."""
    from dither.data import Examples

    inputs, targets = canaries.mixed_into(examples.inputs, examples.targets)
    return Examples(inputs, targets, examples.classes)


def write_scores(directory: Path, canaries: "Canaries", result: "TrainResult") -> None:
    """Save the final model's scores of the canaries; nothing about other records."""
    from dither.ledger.files import write_atomic

    content = {
        **_read_canaries(directory),
        "included": canaries.included.tolist(),
        "scores": canaries.scores(result.model).tolist(),
    }
    write_atomic(directory / CANARIES, json.dumps(content).encode())


def read_scores(directory: Path) -> tuple[list[float], list[bool]]:
    """Return the scores of a run's canaries, and which were included."""
    saved = _read_canaries(directory)
    if not saved:
        raise validate.InvalidValueError(
            "run_dir must be of a run with canaries, dither train --canaries N --run-dir DIR, got "
            f"{str(directory)!r}"
        )
    if "scores" not in saved:
        raise validate.InvalidValueError(
            f"run_dir must be of a run that has ended, got {str(directory)!r}: continue it with "
            "dither train --resume"
        )
    return saved["scores"], saved["included"]


def _read_canaries(directory: Path) -> dict[str, Any]:
    """Return what is saved of a run's canaries; nothing if it has none."""
    return read_run_file(directory, CANARIES) if (directory / CANARIES).exists() else {}
