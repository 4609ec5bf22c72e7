"""The report of a run as a value: the one source of the HTML and the JSON."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from dither.reports.charts import Chart, find_charts
from dither.reports.claim import Claim, find_claim
from dither.reports.load import RunFiles, load_run
from dither.reports.model_files import Audit, PaidEvaluation, Schema
from dither.training.history import Row
from dither.training.statement import RunFacts, derived_clause, paragraphs, recipe_facts
from dither.types import PrivacyBound, SpentSoFar

_SIZES = (2, 5, 10)


@final
@dataclass(frozen=True)
class Cycles:
    """The cycles of a run with correlated noise, which are what the ledger counts.

    Attributes:
        bands: the number of steps of a cycle, within which noise is correlated.
        spent: how many were charged.
        planned: how many the latest plan has.
    """

    bands: int
    spent: int
    planned: int


@final
@dataclass(frozen=True)
class RunReport:
    """Everything that is reported of a run; made by `run_report`.

    Attributes:
        name: name of the run directory.
        run: name of the run in its ledger, or None if it is not known.
        data: name of the data, if it is recorded.
        purpose: what the model is for, if that is recorded.
        schema: the columns of the data and the target, if there is a schema.
        model: the kind of model, if that is recorded.
        state: "ended", "open", or "unknown" without a ledger that has the run.
        warnings: what is damaged, missing or disagrees; a refuting audit comes first.
        claim: what may be claimed.
        groups: what it means for a person with 2, 5 and 10 records; empty if the plan alone does
            not say.
        facts: the facts of the statement, or None if they are not known.
        planned_steps: T of the plan.
        spent_steps: number of steps in the ledger, or in the cycles that it has.
        cycles: what was charged instead of steps, if noise is correlated.
        plan_text: the plan as text.
        settings: what dither's recipe has chosen: name, value and reason of each setting.
        fingerprints: of the plans of the run, in order: it may have been planned again.
        averaging: "ema", "tail", or None.
        history: the rows of history.jsonl.
        metrics: the last metrics on public data.
        evaluation: the quality of the model on private records, which was paid for.
        derived_from_private_data: what was derived from the private data and treated as public.
        canaries: how many canaries were offered, and how many of them were included, if known.
        audits: the audits of the run, oldest first.
        ledger: summary of the ledger, as ``dither ledger show --json`` prints it.
        is_ledger_shared: whether other runs use the ledger, or may use it.
        sessions: when the run began and was resumed, with versions of libraries.
        registered: when it was registered.
        ended: when it ended.
        model_hash: SHA-256 of model.safetensors.
        charts: the charts.

    Example:
        >>> import tempfile, dither, torch
        >>> run = dither.Run(tempfile.mkdtemp() + "/run1")
        >>> plan = dither.plan(epsilon=2.0, delta=1e-3, dataset_size=50, batch_size=10, steps=3)
        >>> data = torch.zeros(50, 3), torch.zeros(50, dtype=torch.int64)
        >>> _ = dither.train(torch.nn.Linear(3, 2), data, plan, run=run, progress=False)
        >>> report = run_report(run.directory)
        >>> report.name, report.state, report.planned_steps, report.spent_steps
        ('run1', 'ended', 3, 3)
    """

    name: str
    run: str | None
    data: str | None
    purpose: str | None
    schema: Schema | None
    model: str | None
    state: str
    warnings: tuple[str, ...]
    claim: Claim
    groups: tuple[PrivacyBound, ...]
    facts: RunFacts | None
    planned_steps: int | None
    spent_steps: int | None
    cycles: Cycles | None
    plan_text: str | None
    settings: tuple[tuple[str, str, str], ...]
    fingerprints: tuple[str, ...]
    averaging: str | None
    history: tuple[Row, ...]
    metrics: dict[str, float]
    evaluation: PaidEvaluation | None
    derived_from_private_data: tuple[str, ...]
    canaries: tuple[int, int | None] | None
    audits: tuple[Audit, ...]
    ledger: dict[str, Any] | None
    is_ledger_shared: bool
    sessions: tuple[dict[str, Any], ...]
    registered: str | None
    ended: str | None
    model_hash: str | None
    charts: tuple[Chart, ...]

    @property
    def part(self) -> str | None:
        """The part of a random split that the run has, of which the ledger has another part."""
        runs = {} if self.ledger is None else {run["run"]: run for run in self.ledger["runs"]}
        own = runs.get(self.run)
        if own is None or own["split"] is None:
            return None
        parts = {run["part"] for run in runs.values() if run["split"] == own["split"]}
        return str(own["part"]) if len(parts) > 1 else None

    @property
    def unit(self) -> str:
        """What is protected: "record" or "user"."""
        bound = self.claim.bound or self.claim.recorded
        return "record" if bound is None else bound.unit

    @property
    def leaks(self) -> list[str]:
        """What was derived from the private data, as clauses."""
        return [derived_clause(value) for value in self.derived_from_private_data]

    @property
    def statement(self) -> list[str]:
        """The paragraphs of the privacy statement; empty if its facts are not known."""
        return [] if self.facts is None else paragraphs(self.facts, leaks=self.leaks)


def run_report(path: str | Path) -> RunReport:
    """Return the report of a run directory.

    Guarantees: ε is never smaller than what the ledger counts for the run; without a ledger that
    has the run, or with files of another run, no ε is reported. What is missing or damaged is in
    ``warnings``. Nothing in the directory but the ledger's own journal is written to.

    Args:
        path: the run directory of ``dither train --run-dir`` or of `dither.train`.

    Returns:
        A `RunReport`, for `write_report`.

    Example:
        >>> import tempfile, dither, torch
        >>> run = dither.training.Run(tempfile.mkdtemp() + "/run1")
        >>> plan = dither.plan(epsilon=2.0, delta=1e-3, dataset_size=50, batch_size=10, steps=3)
        >>> data = torch.zeros(50, 3), torch.zeros(50, dtype=torch.int64)
        >>> trained = dither.train(torch.nn.Linear(3, 2), data, plan, run=run, progress=False)
        >>> report = run_report(run.directory)
        >>> report.claim.verdict, report.claim.bound == trained.bound, report.warnings
        ('proven', True, ())
    """
    files = load_run(path)
    claim, warnings = find_claim(files)
    refuting = [audit.verdict for audit in files.audits if audit.is_violated]
    if refuting:
        warnings.insert(0, f"An audit has refuted the claim of this run. {refuting[-1]}")
    about, result, view = files.about, files.result, files.ledger
    run = None if view is None else view.run
    planned = None if run is None else len(run.entry.noise) * files.bands
    return RunReport(
        name=files.path.resolve().name,
        run=None if about is None else about.run,
        data=None if about is None else about.data,
        purpose=None if about is None else about.purpose,
        schema=files.schema,
        model=files.model,
        state="unknown" if run is None else "open" if run.is_open else "ended",
        warnings=(*warnings, *files.warnings),
        claim=claim,
        groups=_groups(files, claim),
        facts=_facts(files, claim),
        planned_steps=planned if files.plan is None else files.plan.steps,
        spent_steps=None if run is None else files.steps_of(len(run.spent)),
        cycles=_cycles(files),
        plan_text=None if files.plan is None else files.plan.text,
        settings=() if files.recipe is None else tuple(files.recipe.rows()),
        fingerprints=() if view is None else view.fingerprints,
        averaging=None if result is None else result.averaging,
        history=files.history,
        metrics={} if result is None else result.metrics,
        evaluation=files.evaluation,
        derived_from_private_data=files.derived_from_private_data,
        canaries=files.canaries,
        audits=files.audits,
        ledger=None if view is None else view.summary,
        is_ledger_shared=_is_ledger_shared(files),
        sessions=() if about is None else about.sessions,
        registered=None if run is None else run.entry.time,
        ended=None if view is None else view.ended,
        model_hash=files.model_hash,
        charts=find_charts(files, claim),
    )


def _groups(files: RunFiles, claim: Claim) -> tuple[PrivacyBound, ...]:
    """Return the plan's bounds for groups, if the run had that plan alone and paid no more."""
    plan, bound, view = None if files.plan is None else files.plan.plan, claim.bound, files.ledger
    if plan is None or bound is None or view is None or not claim.is_guarantee:
        return ()
    is_whole = plan.delta == bound.delta and bound.epsilon <= plan.bound.epsilon * (1.0 + 1e-6)
    has_more = claim.evaluated is not None or len(view.fingerprints) != 1
    if has_more or not is_whole or bound.unit != "record":
        return ()
    return tuple(plan.for_group(size) for size in _SIZES if size <= plan.dataset_size)


def _cycles(files: RunFiles) -> Cycles | None:
    run = None if files.ledger is None else files.ledger.run
    if files.bands == 1 or run is None:
        return None
    return Cycles(files.bands, len(run.spent), len(run.noise))


def _is_ledger_shared(files: RunFiles) -> bool:
    if files.about is not None and files.about.ledger is not None:
        return True
    summary = None if files.ledger is None else files.ledger.summary
    runs = [] if summary is None else summary["runs"]
    # The parts of one split belong together: a model is evaluated on another part.
    return len({run["split"] or run["run"] for run in runs}) > 1


def _facts(files: RunFiles, claim: Claim) -> RunFacts | None:
    """Return the facts of the statement, if the plan and a bound are known."""
    plan, result, bound = files.plan, files.result, claim.bound
    if plan is None or bound is None:
        return None
    steps, plan_epsilon = 0 if result is None else result.steps, bound.epsilon
    if result is None and files.ledger is not None and files.ledger.run is not None:
        steps = files.steps_of(len(files.ledger.run.spent))
        bound = claim.spent if isinstance(claim.spent, SpentSoFar) else bound
    if not steps:
        return None
    factor = None if result is None else result.factor
    chosen = recipe_facts(files.recipe, factor)
    is_counted = files.about is not None and files.about.is_counted
    return RunFacts(
        bound=bound,
        plan_epsilon=plan_epsilon,
        steps=steps,
        dataset_size=plan.dataset_size,
        batch_size=plan.batch_size,
        sampling=plan.sampling,
        clip_norm=plan.clip_norm,
        clipping=plan.clipping,
        fingerprint=plan.fingerprint if result is None else result.fingerprint,
        has_noise=plan.has_noise,
        uses_raw_gradients=plan.uses_raw_gradients,
        is_seeded=files.is_seeded,
        seed=None if result is None else result.seed,
        search=None if plan.plan is None else plan.plan.search,
        factor=factor,
        is_weighted=result is not None and result.is_weighted,
        bands=files.bands,
        charges=0
        if files.ledger is None or files.ledger.run is None
        else len(files.ledger.run.spent),
        rows_per_user=plan.rows_per_user,
        **{"is_counted": is_counted, **chosen},
    )
