"""The canaries of a run of ``dither train``, and what is written down of them in its folder."""

import argparse
import hashlib
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dither import validate
from dither.cli.run_files import read_run_file
from dither.planning import Plan

if TYPE_CHECKING:
    from dither.audit import Canaries
    from dither.data import Examples
    from dither.training import TrainResult

_FEWEST = 100


def canaries_of(
    arguments: argparse.Namespace, made: Plan, examples: "Examples"
) -> "Canaries | None":
    """Return the canaries of a run, the same ones when it goes on, and write down which."""
    from dither.audit import out_of_distribution

    asked = getattr(arguments, "canaries", None)
    folder = Path(arguments.run_dir) if hasattr(arguments, "run_dir") else None
    if asked is not None and folder is None:
        raise validate.InvalidValueError("canaries need a folder to be kept in, --run-dir")
    has_begun = folder is not None and (folder / "plan.json").exists()
    known = read_canaries(folder) if folder is not None and has_begun else None
    if has_begun and asked != (None if known is None else known["count"]):
        began = "without any" if known is None else f"with {known['count']}"
        raise validate.InvalidValueError(
            f"canaries must be as the run began, {began}, got {asked!r}"
        )
    if asked is None or folder is None:
        return None
    count = validate.count(canaries=asked)
    if count < _FEWEST:
        raise validate.InvalidValueError(f"canaries must be at least {_FEWEST}, got {count}")
    if made.sampling != "poisson":
        raise validate.InvalidValueError(
            f"canaries need sampling poisson, which can leave records out, got {made.sampling!r}"
        )
    if known is None:
        known = {"count": count, "seed": str(secrets.randbits(128))}
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder, known)
    shape = tuple(examples.inputs.shape[1:])
    return out_of_distribution(count, shape, classes=len(examples.classes), seed=int(known["seed"]))


@contextmanager
def clearing(arguments: argparse.Namespace, canaries: "Canaries | None") -> Iterator[None]:
    """Leave no canaries behind of a run that did not begin."""
    try:
        yield
    finally:
        folder = Path(getattr(arguments, "run_dir", ""))
        if canaries is not None and not (folder / "plan.json").exists():
            _file(folder).unlink(missing_ok=True)
            with suppress(OSError):  # others may have put something there
                folder.rmdir()


def with_canaries(canaries: "Canaries", examples: "Examples") -> "Examples":
    """Return the data with the canaries whose coins say so."""
    from dither.data import Examples

    inputs, targets = canaries.mixed_into(examples.inputs, examples.targets)
    return Examples(inputs, targets, examples.classes, examples.columns)


def keep_scores(canaries: "Canaries", result: "TrainResult", folder: Path) -> None:
    """Write down what the final model thinks of the canaries: nothing of anybody's records."""
    found = {
        "included": canaries.included.tolist(),
        "scores": canaries.scores(result.model).tolist(),
        "model": _model_hash(folder),
    }
    _write(folder, {**(read_canaries(folder) or {}), **found})


def read_canaries(folder: Path) -> dict[str, Any] | None:
    """Return what is known of a run's canaries, or None if it has none."""
    file = _file(folder)
    if not file.exists():
        return None
    kept = read_run_file(folder, file.name)
    if not isinstance(kept.get("count"), int) or not str(kept.get("seed")).isdecimal():
        raise validate.InvalidValueError(
            f"{file.name} must say how many canaries there are and their seed, got one in "
            f"{str(folder)!r} that does not"
        )
    return kept


def read_scores(folder: Path) -> tuple[Any, Any]:
    """Return the scores and coins of a run's canaries, if the run is over."""
    kept = read_canaries(folder)
    if kept is None:
        raise validate.InvalidValueError(
            f"run_dir must be of a run with canaries, dither train --canaries N --run-dir DIR, got "
            f"{str(folder)!r}"
        )
    if "scores" not in kept:
        raise validate.InvalidValueError(
            f"run_dir must have a run that is over, got {str(folder)!r}: dither train --resume "
            "goes on with it"
        )
    if kept.get("model") != _model_hash(folder):
        raise validate.InvalidValueError(
            f"{_file(folder).name} must have the scores of the model that is beside it, got "
            f"another's in {str(folder)!r}"
        )
    return kept["scores"], kept.get("included", [])


def _file(folder: Path) -> Path:
    from dither.training.run_directory import CANARIES

    return folder / CANARIES


def _write(folder: Path, kept: dict[str, Any]) -> None:
    from dither.ledger.files import write_atomic

    write_atomic(_file(folder), json.dumps(kept).encode())


def _model_hash(folder: Path) -> str | None:
    path = folder / "model.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
