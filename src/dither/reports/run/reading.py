"""The files of a run's folder, each read by itself: what is missing or damaged is told, not hidden.

Nothing in them is trusted to be of the right kind. A file that cannot be read as what it should be
gives None and an alarm, and the rest is reported without it.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from dither import validate
from dither.planning import Plan
from dither.planning.serialization import from_json_value
from dither.reports.run.audits import audit_of
from dither.reports.run.plain_files import BAD, damaged, json_of, parsed, text_of
from dither.reports.run.report import Point
from dither.training.run_directory import ABOUT, CANARIES
from dither.types import FloatArray, PrivacyBound
from dither.validate import LARGEST

RESULT, PLAN, HISTORY, AUDITS = "result.json", "plan.json", "history.jsonl", "audit.json"
MODEL = "model.safetensors"
_MOST = 10**80  # no count and no seed is larger
_RAW = "UNSAFE: the step sizes follow the raw gradients' norms"
_REACTIVE = re.compile(
    r"up to ([\d,]+) steps, (poisson|fixed) sampling of m = ([\d,]+) out of n = ([\d,]+) "
    r"\(q = \S+\), clip norm (\S+)\n"
    r"step size   .+\nnoise z     .+\nprivacy     (.+)\nfingerprint ([0-9a-f]{16})\s*"
)


@final
@dataclass(frozen=True)
class About:
    """What run.json says: the run's name, where its ledger is, and how it was made."""

    run: str
    ledger: str | None
    is_moved: bool
    derived_from_private_data: tuple[str, ...] | None
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
    derived_from_private_data: tuple[str, ...] = ()


@final
@dataclass(frozen=True)
class Planned:
    """What plan.json says; of step sizes that react it has words, and ``privacy`` among them."""

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
    privacy: str | None = None


def read_about(folder: Path, alarms: list[str]) -> About | None:
    """Return what run.json says."""
    found = json_of(folder, ABOUT, alarms, needed=True)
    if found is None:
        return None
    try:
        run, ledger, derived_from_private_data = (
            found["run"],
            found["ledger"],
            found.get("derived_from_private_data"),
        )
        sessions = tuple(
            {"time": str(each["time"]), "versions": _texts(each["versions"])}
            for each in found.get("sessions", [])
        )
        if not isinstance(run, str) or not isinstance(ledger, str | None):
            raise TypeError
        known = None if derived_from_private_data is None else _names(derived_from_private_data)
        is_moved = found.get("folder") != folder.stat().st_ino
        return About(run, ledger, is_moved, known, sessions)
    except BAD:
        alarms.append(damaged(ABOUT))
        return None


def read_result(folder: Path, alarms: list[str]) -> Recorded | None:
    """Return what result.json says."""
    found = json_of(folder, RESULT, alarms)
    if found is None:
        return None
    try:
        averaging = found["averaging"] or "none" if "averaging" in found else None
        return Recorded(
            steps=_whole(found["steps"]),
            seed=None if found["seed"] is None else _whole(found["seed"]),
            plan=_name(found["plan"]),
            bound=_bound(found["bound"]),
            metrics=_metrics(found.get("metrics", {})),
            iterate_metrics=_metrics(found.get("iterate_metrics", {})),
            averaging=None if averaging is None else str(averaging),
            derived_from_private_data=_names(found.get("derived_from_private_data", [])),
        )
    except BAD:
        alarms.append(damaged(RESULT))
        return None


def read_plan(folder: Path, alarms: list[str]) -> Planned | None:
    """Return what plan.json says; a plan's claim is counted again."""
    text = text_of(folder, PLAN, alarms, needed=True)
    if text is None:
        return None
    if text.startswith("up to "):
        try:
            return _reactive(text)
        except BAD:
            alarms.append(damaged(PLAN))
            return None
    try:
        plan = Plan.from_json(text)
    except BAD as problem:
        alarms.append(f"{PLAN} is damaged or not a plan, and is not used: {str(problem)[:200]}.")
        return None
    return Planned(
        plan.steps, plan.dataset_size, plan.batch_size, plan.sampling, plan.clip_norm,
        plan.fingerprint, str(plan), bool(plan.noise_multipliers.any()), False, plan.stepsizes,
        plan,
    )  # fmt: skip


def read_history(folder: Path, alarms: list[str]) -> tuple[Point, ...]:
    """Return the points of history.jsonl; a last line that was cut off is left out."""
    text = text_of(folder, HISTORY, alarms)
    points: list[Point] = []
    lines = [] if text is None else text.splitlines()
    for place, line in enumerate(lines):
        try:
            row = parsed(line)
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
        except BAD:
            if place < len(lines) - 1:
                alarms.append(f"{HISTORY} is damaged in line {place + 1}, which is left out.")
    return tuple(points)


def read_audits(folder: Path, alarms: list[str]) -> tuple[tuple[dict[str, Any], ...], bool]:
    """Return what audits have found, and whether all of them could be read."""
    text = text_of(folder, AUDITS, alarms)
    if text is None:
        return (), damaged(AUDITS) not in alarms
    try:
        found = parsed(text)["audits"]
        kept = [audit_of(each) for each in validate.instance(list, audits=found)]
    except BAD:
        kept = [None]
    if None in kept:
        alarms.append(damaged(AUDITS))
    return tuple(each for each in kept if each is not None), None not in kept


def read_canaries(folder: Path, alarms: list[str]) -> tuple[int, int | None] | None:
    """Return how many canaries there were, and how many of them were in the data, if known."""
    found = json_of(folder, CANARIES, alarms)
    if found is None:
        return None
    try:
        coins = found.get("included")
        return _whole(found["count"]), None if coins is None else sum(map(bool, coins))
    except BAD:
        alarms.append(damaged(CANARIES))
        return None


def _reactive(text: str) -> Planned:
    found = _REACTIVE.fullmatch(text)
    if found is None:
        raise ValueError(text)
    steps, sampling, m, n, norm, privacy, fingerprint = found.groups()
    T, batch, size = (int(each.replace(",", "")) for each in (steps, m, n))
    clip_norm = float(norm)
    if not (1 <= batch <= size <= LARGEST and 0.0 < clip_norm <= LARGEST):
        raise ValueError(text)
    return Planned(
        T, size, batch, sampling, clip_norm, fingerprint, text, True, privacy.startswith(_RAW),
        None, None, privacy,
    )  # fmt: skip


def _bound(found: dict[str, Any]) -> PrivacyBound:
    epsilon, delta, lower = from_json_value(found["epsilon"]), found["delta"], found["lower"]
    fine = type(epsilon) is float and (0.0 <= epsilon <= LARGEST or epsilon == math.inf)
    fine = fine and type(delta) is float and 0.0 <= delta < 1.0
    fine = fine and (lower is None or (type(lower) is float and 0.0 <= lower <= epsilon))
    adjacency, sampling = found["adjacency"], found["sampling"]
    known = adjacency in ("add-remove", "replace-one") and sampling in ("poisson", "fixed", "full")
    if not (fine and known and isinstance(found["is_upper_bound"], bool)):
        raise ValueError(found)
    return PrivacyBound(
        epsilon, delta, _name(found["accountant"]), sampling, adjacency, lower,
        _name(found["unit"]), found["is_upper_bound"],
    )  # fmt: skip


def _metrics(found: dict[str, Any]) -> dict[str, float]:
    """Return the metrics that are numbers: what was not finite was written as null."""
    kept = {str(name): _finite(value) for name, value in found.items()}
    return {name: value for name, value in kept.items() if value is not None}


def _finite(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    return float(value) if abs(value) <= LARGEST else None


def _whole(value: Any) -> int:
    if type(value) is not int or abs(value) > _MOST:
        raise TypeError(value)
    return value


def _name(value: Any) -> str:
    return validate.instance(str, value=value)


def _names(value: Any) -> tuple[str, ...]:
    return tuple(_name(each) for each in validate.instance(list, value=value))


def _texts(found: dict[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in found.items()}
