"""Load a run directory: a file that is missing or damaged gives a warning, and the rest is used."""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, final

from dither import accounting
from dither.ledger import Ledger
from dither.ledger.entries import EndEntry, PlanEntry
from dither.ledger.ledger import FILE
from dither.ledger.state import RunState
from dither.planning import Plan
from dither.planning.serialization import from_json_value
from dither.reports.model_files import (
    Audit,
    PaidEvaluation,
    Schema,
    parse_audits,
    parse_canaries,
    parse_evaluation,
    parse_model,
    parse_schema,
)
from dither.training.history import Row
from dither.training.recipe import Recipe
from dither.training.run_directory import (
    ABOUT,
    CANARIES,
    EVALUATION,
    MODEL,
    PLAN,
    REACTIVE_PLAN,
    RECIPE,
    RESULT,
    SCHEMA,
)
from dither.types import PrivacyBound, adjacency_of
from dither.validate import InvalidValueError

HISTORY, AUDITS, WEIGHTS = "history.jsonl", "audit.json", "model.safetensors"
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
_T = TypeVar("_T")


@final
@dataclass(frozen=True)
class About:
    """run.json: the name of the run, its data and purpose, its ledger if that is elsewhere."""

    run: str
    data: str | None
    purpose: str | None
    is_counted: bool
    ledger: str | None
    is_moved: bool
    derived_from_private_data: tuple[str, ...]
    sessions: tuple[dict[str, Any], ...]


@final
@dataclass(frozen=True)
class Result:
    """result.json, which is written when a run ends."""

    steps: int
    seed: int | None
    fingerprint: str
    bound: PrivacyBound
    averaging: str | None
    factor: float | None
    metrics: dict[str, float]
    derived_from_private_data: tuple[str, ...]
    is_weighted: bool = False


@final
@dataclass(frozen=True)
class PlanFacts:
    """plan.json: a `Plan`, or the facts of a plan with reactive step sizes."""

    steps: int
    dataset_size: int
    batch_size: int
    sampling: str
    clip_norm: float
    fingerprint: str
    text: str
    clipping: str = "flat"
    has_noise: bool = True
    uses_raw_gradients: bool = False
    plan: Plan | None = None
    rows_per_user: int | None = None


@final
@dataclass(frozen=True)
class LedgerView:
    """A ledger, and the run in it.

    Attributes:
        summary: as ``dither ledger show --json`` prints it; None if nothing was spent.
        run: the run, or None if the ledger does not have it.
        spent: the cost of the run so far, without other runs.
        full_plan: the cost of the run's full plan, which holds wherever it stops.
        evaluation: the runs that may be its paid evaluation.
        together: the cost of the run and of these, by the ledger.
        fingerprints: of all its plans, in order.
        ended: when it ended.
    """

    summary: dict[str, Any] | None = None
    run: RunState | None = None
    spent: PrivacyBound | None = None
    full_plan: PrivacyBound | None = None
    evaluation: tuple[RunState, ...] = ()
    together: PrivacyBound | None = None
    fingerprints: tuple[str, ...] = ()
    ended: str | None = None


@final
@dataclass
class RunFiles:
    """Everything that is in a run directory; None or empty is what is not there or damaged.

    Attributes:
        path: the run directory.
        warnings: one line for each file that is damaged, or missing and needed.
        canaries: how many canaries were offered, and how many of them were included, if known.
    """

    path: Path
    warnings: list[str] = field(default_factory=list)
    about: About | None = None
    result: Result | None = None
    plan: PlanFacts | None = None
    recipe: Recipe | None = None
    ledger: LedgerView | None = None
    history: tuple[Row, ...] = ()
    audits: tuple[Audit, ...] = ()
    has_unreadable_audits: bool = False
    canaries: tuple[int, int | None] | None = None
    schema: Schema | None = None
    model: str | None = None
    model_hash: str | None = None
    evaluation: PaidEvaluation | None = None

    @property
    def bands(self) -> int:
        """How many steps a charge of the ledger covers: more than one for correlated noise."""
        run = None if self.ledger is None else self.ledger.run
        if run is not None and run.entry.bands is not None:
            return run.entry.bands
        return 1 if self.plan is None or self.plan.plan is None else self.plan.plan.bands

    def steps_of(self, charges: int) -> int:
        """Return how many steps the first charges of the run cover; the last may cover fewer."""
        steps = charges * self.bands
        T = 0 if self.plan is None else self.plan.steps
        return T if T <= steps < T + self.bands else steps

    @property
    def is_seeded(self) -> bool:
        """Whether the ledger or result.json records a seed."""
        run = None if self.ledger is None else self.ledger.run
        in_ledger = run is not None and run.entry.is_seeded
        return in_ledger or (self.result is not None and self.result.seed is not None)

    @property
    def derived_from_private_data(self) -> tuple[str, ...]:
        """What run.json or result.json lists; never empty if the ledger has a condition."""
        lists = [each.derived_from_private_data for each in (self.about, self.result) if each]
        found = tuple(dict.fromkeys(value for values in lists for value in values))
        run = None if self.ledger is None else self.ledger.run
        return found or ("a setting",) * bool(run is not None and run.entry.is_conditional)


def load_run(path: str | Path) -> RunFiles:
    """Return what a run directory has.

    Raises:
        InvalidValueError: if it is not a run directory.
    """
    directory, needed = Path(path), (ABOUT, PLAN, RESULT, FILE)
    if not directory.is_dir() or not any((directory / name).exists() for name in needed):
        raise InvalidValueError(
            f"run_dir must be a run directory, with {', '.join(needed)}, got {str(path)!r}"
        )
    files = RunFiles(directory)
    files.about = _read(files, ABOUT, lambda text: _about(directory, text), needed=True)
    files.result = _read(files, RESULT, _result)
    files.plan = _read(files, PLAN, _plan, needed=True)
    files.recipe = _read(files, RECIPE, lambda text: _recipe(files.plan, text))
    files.evaluation = _read(files, EVALUATION, parse_evaluation)
    files.ledger = _read_ledger(files)
    files.history = _read_history(files)
    audits = _read(files, AUDITS, parse_audits)
    files.has_unreadable_audits = audits is None and (directory / AUDITS).exists()
    files.audits = audits or ()
    files.canaries = _read(files, CANARIES, parse_canaries)
    files.schema = _read(files, SCHEMA, parse_schema)
    files.model = _read(files, MODEL, parse_model)
    model = directory / WEIGHTS
    if model.exists():
        with model.open("rb") as stream:
            files.model_hash = hashlib.file_digest(stream, "sha256").hexdigest()
    return files


def _read(
    files: RunFiles, name: str, parse: Callable[[str], _T], *, needed: bool = False
) -> _T | None:
    try:
        return parse((files.path / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if needed:
            files.warnings.append(f"{name} is missing.")
    except (OSError, *_DAMAGE):
        files.warnings.append(f"{name} is damaged, and is not used.")
    return None


def _about(directory: Path, text: str) -> About:
    found = json.loads(text)
    return About(
        run=str(found["run"]),
        data=found.get("data"),
        purpose=found.get("purpose"),
        is_counted=bool(found.get("is_counted")),
        ledger=found["ledger"],
        is_moved=found["inode"] != directory.stat().st_ino,
        derived_from_private_data=tuple(found["derived_from_private_data"]),
        sessions=tuple(
            {"time": session["time"], "versions": dict(session["versions"])}
            for session in found["sessions"]
        ),
    )


def _result(text: str) -> Result:
    found = json.loads(text)
    bound = {**found["bound"], "epsilon": float(from_json_value(found["bound"]["epsilon"]))}
    if not (bound["epsilon"] >= 0.0 and found["steps"] > 0):
        raise ValueError(text)
    return Result(
        steps=found["steps"],
        seed=found["seed"],
        fingerprint=found["plan"],
        bound=PrivacyBound(**bound),
        averaging=found["averaging"],
        factor=found.get("factor"),
        metrics=_metrics(found["metrics"]),
        derived_from_private_data=tuple(found["derived_from_private_data"]),
        is_weighted=bool(found.get("is_weighted")),
    )


def _plan(text: str) -> PlanFacts:
    names = ("steps", "dataset_size", "batch_size", "sampling", "clip_norm", "fingerprint")
    found = json.loads(text)
    if found["format"] == REACTIVE_PLAN:
        extra = ("uses_raw_gradients", "text")
        clipping = found.get("clipping", "flat")
        return PlanFacts(
            **{name: found[name] for name in (*names, *extra)},
            clipping=clipping,
            rows_per_user=found.get("rows_per_user"),
        )
    plan = Plan.from_json(text)
    return PlanFacts(
        **{name: getattr(plan, name) for name in names},
        text=str(plan),
        clipping=plan.clipping,
        has_noise=bool(plan.noise_multipliers.any()),
        plan=plan,
        rows_per_user=plan.rows_per_user,
    )


def _recipe(plan: PlanFacts | None, text: str) -> Recipe:
    recipe, names = Recipe.from_json(text), ("dataset_size", "batch_size", "clip_norm", "clipping")
    if plan is not None and any(getattr(plan, name) != getattr(recipe, name) for name in names):
        raise ValueError(text)
    return recipe


def _read_history(files: RunFiles) -> tuple[Row, ...]:
    """Return the rows of history.jsonl; a last line that is incomplete is left out."""
    lines = _read(files, HISTORY, str.splitlines) or []
    rows: list[Row] = []
    for number, line in enumerate(lines, start=1):
        try:
            row: dict[str, Any] = json.loads(line)
            fields: dict[str, Any] = {
                name: math.nan if value is None else value for name, value in row.items()
            }
            metrics = {name: _metrics(row[name]) for name in ("metrics", "iterate_metrics")}
            rows.append(Row(**fields | metrics))
        except _DAMAGE:
            if number < len(lines):
                files.warnings.append(f"{HISTORY} is damaged in line {number}, which is left out.")
    return tuple(rows)


def _metrics(found: dict[str, float | None]) -> dict[str, float]:
    """Return the metrics that are finite: others are written as null."""
    return {name: float(value) for name, value in found.items() if value is not None}


def _read_ledger(files: RunFiles) -> LedgerView | None:
    about = files.about
    path = files.path / FILE if about is None or about.ledger is None else Path(about.ledger)
    if not path.is_file():
        files.warnings.append(f"The ledger {path.name} is missing: what was spent is unknown.")
        return None
    try:
        ledger = Ledger(path, create=False)
        try:
            view = _ledger_view(ledger, files)
        finally:
            ledger.close()
    except (OSError, *_DAMAGE) as problem:
        reason = str(problem).replace(str(path), path.name)[:300]
        files.warnings.append(f"The ledger is damaged, so what was spent is unknown: {reason}.")
        return None
    if about is not None and view.run is None:
        files.warnings.append(f"The ledger has no run {about.run!r}: what it spent is unknown.")
    return view


def _ledger_view(ledger: Ledger, files: RunFiles) -> LedgerView:
    runs, name = ledger.runs, None if files.about is None else files.about.run
    try:
        view = LedgerView(ledger.summary(ledger.default_delta()))
    except InvalidValueError:  # no run with a finite ε, and no cap
        view = LedgerView()
    if name is None or name not in runs:
        return view
    run = runs[name]
    plans = [each for each in ledger.entries if isinstance(each, PlanEntry) and each.run == name]
    ends = [each for each in ledger.entries if isinstance(each, EndEntry) and each.run == name]
    spent, full_plan = _costs(ledger, run)
    others = _evaluation_runs(files, runs)
    if others and math.isfinite(full_plan.epsilon):
        names = [each.entry.run for each in others]
        together = ledger.total_of(name, *names, delta=run.entry.delta)
        view = replace(view, evaluation=others, together=together)
    return replace(
        view,
        run=run,
        spent=spent,
        full_plan=full_plan,
        fingerprints=(run.entry.fingerprint, *(each.fingerprint for each in plans)),
        ended=ends[-1].time if ends and not run.is_open else None,
    )


def _evaluation_runs(files: RunFiles, runs: dict[str, RunState]) -> tuple[RunState, ...]:
    """Return the evaluation's run, or all others of the run's own ledger if it has no name."""
    about, evaluation = files.about, files.evaluation
    if about is None or evaluation is None:
        return ()
    if evaluation.run is not None or about.ledger is not None:
        return (runs[evaluation.run],) if evaluation.run in runs else ()
    return tuple(run for name, run in runs.items() if name != about.run)


def _costs(ledger: Ledger, run: RunState) -> tuple[PrivacyBound, PrivacyBound]:
    """Return the cost of a run so far and of its full plan, at its plan's δ."""
    entry, unit = run.entry, run.entry.unit or "record"
    if math.isinf(entry.epsilon) or entry.delta == 0.0:
        adjacency = adjacency_of(entry.sampling)
        infinite = PrivacyBound(
            math.inf, entry.delta, "none", run.sampling, adjacency, unit=unit,
            is_upper_bound=False,
        )  # fmt: skip
        return infinite, infinite
    # A condition is in `derived_from_private_data`: here it is taken as given.
    spent = replace(ledger.total_of(entry.run, delta=entry.delta), is_upper_bound=True)
    if not run.is_open and run.spent:
        return spent, spent
    full_plan = accounting.epsilon(
        run.planned_noise(), sample_rate=entry.sample_rate, delta=entry.delta,
        sampling=entry.sampling,
    )  # fmt: skip
    # A filter's ε may be above the cost of its least noise.
    epsilon = max(full_plan.epsilon, entry.epsilon)
    return spent, replace(full_plan, epsilon=epsilon, lower=None, sampling=run.sampling, unit=unit)
