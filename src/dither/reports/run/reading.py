"""The files of a run's folder, each read by itself: what is missing or damaged is told, not hidden.

Nothing in them is trusted to be of the right kind. A file that cannot be read as what it should be
gives None and an alarm, and the rest is reported without it.
"""

import hashlib
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from dither.planning import Plan
from dither.planning.written import read as number_of
from dither.reports.run.report import Point
from dither.training.run_folder import ABOUT, CANARIES
from dither.types import FloatArray, PrivacyBound
from dither.validate import InvalidTypeError, InvalidValueError

RESULT, PLAN, HISTORY, AUDITS = "result.json", "plan.json", "history.jsonl", "audit.json"
MODEL = "model.safetensors"
_BAD = (KeyError, TypeError, ValueError, AttributeError)
_REACTIVE = re.compile(
    r"up to ([\d,]+) steps, (poisson|fixed) sampling of m = ([\d,]+) out of n = ([\d,]+) "
    r"\(q = \S+\), clip norm (\S+)\n"
)


@final
@dataclass(frozen=True)
class About:
    """What run.json says: the run's name, where its ledger is, and how it was made."""

    run: str
    ledger: str | None
    is_moved: bool
    read_off: tuple[str, ...] | None
    sessions: tuple[dict[str, Any], ...]


@final
@dataclass(frozen=True)
class Recorded:
    """What result.json says."""

    steps: int
    seed: int | None
    plan: str
    bound: PrivacyBound
    metrics: dict[str, float]
    iterate_metrics: dict[str, float]
    averaging: str | None


@final
@dataclass(frozen=True)
class Planned:
    """What plan.json says; of step sizes that react it has no numbers."""

    steps: int
    dataset_size: int
    batch_size: int
    sampling: str
    clip_norm: float
    fingerprint: str
    text: str
    has_noise: bool
    is_raw: bool
    stepsizes: FloatArray | None
    plan: Plan | None


def read_about(folder: Path, alarms: list[str]) -> About | None:
    """Return what run.json says."""
    found = _json(folder, ABOUT, alarms, needed=True)
    if found is None:
        return None
    try:
        run, ledger, read_off = found["run"], found["ledger"], found.get("read_off")
        sessions = tuple(
            {"time": str(each["time"]), "versions": _texts(each["versions"])}
            for each in found.get("sessions", [])
        )
        if not isinstance(run, str) or not isinstance(ledger, str | None):
            raise TypeError
        known = None if read_off is None else tuple(str(each) for each in read_off)
        is_moved = found.get("folder") != folder.stat().st_ino
        return About(run, ledger, is_moved, known, sessions)
    except _BAD:
        alarms.append(_damaged(ABOUT))
        return None


def read_result(folder: Path, alarms: list[str]) -> Recorded | None:
    """Return what result.json says."""
    found = _json(folder, RESULT, alarms)
    if found is None:
        return None
    try:
        averaging = found["averaging"] or "none" if "averaging" in found else None
        return Recorded(
            steps=_whole(found["steps"]),
            seed=None if found["seed"] is None else _whole(found["seed"]),
            plan=str(found["plan"]),
            bound=_bound(found["bound"]),
            metrics=_metrics(found.get("metrics", {})),
            iterate_metrics=_metrics(found.get("iterate_metrics", {})),
            averaging=None if averaging is None else str(averaging),
        )
    except _BAD:
        alarms.append(_damaged(RESULT))
        return None


def read_plan(folder: Path, alarms: list[str]) -> Planned | None:
    """Return what plan.json says; a plan's claim is counted again."""
    text = _text(folder, PLAN, alarms, needed=True)
    if text is None:
        return None
    if text.startswith("up to "):
        reactive = _reactive(text)
        if reactive is None:
            alarms.append(_damaged(PLAN))
        return reactive
    try:
        plan = Plan.from_json(text)
    except (InvalidValueError, InvalidTypeError, *_BAD) as problem:
        alarms.append(f"{PLAN} is not used: {problem}.")
        return None
    return Planned(
        plan.steps, plan.dataset_size, plan.batch_size, plan.sampling, plan.clip_norm,
        plan.fingerprint, str(plan), bool(plan.noise_multipliers.any()), False, plan.stepsizes,
        plan,
    )  # fmt: skip


def read_history(folder: Path, alarms: list[str]) -> tuple[Point, ...]:
    """Return the points of history.jsonl; a last line that was cut off is left out."""
    text = _text(folder, HISTORY, alarms)
    points: list[Point] = []
    lines = [] if text is None else text.splitlines()
    for place, line in enumerate(lines):
        try:
            row = json.loads(line)
            points.append(
                Point(
                    step=_whole(row["step"]),
                    epsilon=_finite(row["epsilon"]),
                    stepsize=_finite(row["stepsize"]),
                    noise_multiplier=_finite(row["noise_multiplier"]),
                    metrics=_metrics(row["metrics"]),
                    iterate_metrics=_metrics(row.get("iterate_metrics", {})),
                )
            )
        except _BAD:
            if place < len(lines) - 1:
                alarms.append(f"{HISTORY} is damaged in line {place + 1}, which is left out.")
    return tuple(points)


def read_audits(folder: Path, alarms: list[str]) -> tuple[dict[str, Any], ...]:
    """Return what audits have found."""
    found = _json(folder, AUDITS, alarms)
    try:
        return () if found is None else tuple(_audit(each) for each in found["audits"])
    except _BAD:
        alarms.append(_damaged(AUDITS))
        return ()


def read_canaries(folder: Path, alarms: list[str]) -> tuple[int, int | None] | None:
    """Return how many canaries there were, and how many of them were in the data, if known."""
    found = _json(folder, CANARIES, alarms)
    if found is None:
        return None
    try:
        coins = found.get("included")
        return _whole(found["count"]), None if coins is None else sum(map(bool, coins))
    except _BAD:
        alarms.append(_damaged(CANARIES))
        return None


def model_hash(folder: Path) -> str | None:
    """Return the SHA-256 of the model, if there is one."""
    path = folder / MODEL
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _text(folder: Path, name: str, alarms: list[str], *, needed: bool = False) -> str | None:
    path = folder / name
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if needed:
            alarms.append(f"{name} is missing.")
    except (OSError, UnicodeDecodeError):
        alarms.append(_damaged(name))
    return None


def _json(
    folder: Path, name: str, alarms: list[str], *, needed: bool = False
) -> dict[str, Any] | None:
    text = _text(folder, name, alarms, needed=needed)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        alarms.append(_damaged(name))
        return None
    return found


def _damaged(name: str) -> str:
    return f"{name} is damaged or cannot be read, and is not used."


def _reactive(text: str) -> Planned | None:
    found = _REACTIVE.match(text)
    print_ = re.search(r"\nfingerprint ([0-9a-f]{16})$", text.rstrip())
    if found is None or print_ is None:
        return None
    steps, sampling, m, n, norm = found.groups()
    T, batch, size = (int(each.replace(",", "")) for each in (steps, m, n))
    is_raw = "UNSAFE: the step sizes follow the raw gradients" in text
    if not 1 <= batch <= size:
        return None
    return Planned(
        T, size, batch, sampling, float(norm), print_[1], text, True, is_raw, None, None
    )  # fmt: skip


def _bound(found: dict[str, Any]) -> PrivacyBound:
    epsilon, delta, lower = number_of(found["epsilon"]), found["delta"], found["lower"]
    fine = type(epsilon) is float and epsilon >= 0.0 and type(delta) is float and 0.0 <= delta < 1.0
    relation, sampling = found["relation"], found["sampling"]
    known = relation in ("add-remove", "replace-one") and sampling in ("poisson", "fixed", "full")
    if not (fine and known and isinstance(found["is_upper_bound"], bool)):
        raise ValueError(found)
    return PrivacyBound(
        epsilon, delta, str(found["accountant"]), sampling, relation,
        None if lower is None else float(lower), str(found["unit"]), found["is_upper_bound"],
    )  # fmt: skip


def _audit(found: dict[str, Any]) -> dict[str, Any]:
    """Return an audit with the fields that are shown, if they are what they should be."""
    curves = found["curves"]
    claimed = found["claimed"]["epsilon"]
    lower, confidence = (float(found[key]) for key in ("lower", "confidence"))
    if not isinstance(found["is_violated"], bool):
        raise TypeError
    return {
        "time": str(found["time"]),
        "attack": str(found["attack"]),
        "steps": str(found["steps"]),
        "claimed": None if claimed is None else float(claimed),
        "lower": lower,
        "confidence": confidence,
        "trials": _whole(found["trials"]),
        "guesses": _whole(found["guesses"]),
        "right": _whole(found["right"]),
        "is_violated": found["is_violated"],
        "verdict": str(found["verdict"]),
        "curves": {
            key: None if curves[key] is None else [float(each) for each in curves[key]]
            for key in ("false_positives", "true_positives", "allowed")
        },
    }


def _metrics(found: dict[str, Any]) -> dict[str, float]:
    """Return the metrics that are numbers: what was not finite was written as null."""
    kept = {str(name): _finite(value) for name, value in found.items()}
    return {name: value for name, value in kept.items() if value is not None}


def _finite(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    return float(value) if math.isfinite(value) else None


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(value)
    return value


def _texts(found: dict[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in found.items()}
