"""From a run's folder to its report."""

import math
from pathlib import Path

from dither.ledger import FILE
from dither.reports.run import reading
from dither.reports.run.audits import after_audits, judged
from dither.reports.run.booking import Booked, read_ledger
from dither.reports.run.charting import charts_of
from dither.reports.run.judging import Files, claim_of, fits_ledger
from dither.reports.run.plain_files import model_hash
from dither.reports.run.reading import Planned, Recorded
from dither.reports.run.report import Claim, RunReport
from dither.training.run_directory import ABOUT
from dither.training.statement import Stated
from dither.types import PrivacyBound, SpentSoFar
from dither.validate import InvalidValueError

_MARKS = (ABOUT, reading.PLAN, reading.RESULT, FILE)


def run_report(path: str | Path) -> RunReport:
    """Gather everything that can be said of a run from its folder.

    Guarantees: ε is never smaller than what the ledger counts for the run, and without a ledger
    that has the run, or with files of another run, no ε is reported at all. What is missing,
    damaged or contradicts something else is in ``alarms``. Nothing in the folder but the ledger's
    own journal is touched. The files are not signed: who can write them can change the report.

    Args:
        path: the folder that ``dither train --run-dir`` or ``dither.train(run=…)`` has made.

    Returns:
        A frozen `RunReport`, for `to_html`, `to_markdown`, `to_json` or `write_report`.

    Example:
        >>> import tempfile, dither, torch
        >>> folder = tempfile.mkdtemp() + "/run1"
        >>> plan = dither.plan(epsilon=2.0, delta=1e-3, dataset_size=50, batch_size=10, steps=3)
        >>> data = torch.zeros(50, 3), torch.zeros(50, dtype=torch.int64)
        >>> model = torch.nn.Linear(3, 2)
        >>> trained = dither.train(model, data, plan, run=dither.Run(folder), progress=False)
        >>> found = run_report(folder)
        >>> found.claim.verdict, found.claim.bound == trained.bound, found.alarms
        ('proven', True, ())
    """
    folder = Path(path)
    if not folder.is_dir() or not any((folder / name).exists() for name in _MARKS):
        raise InvalidValueError(
            f"run_dir must be the folder of a run, with its {', '.join(_MARKS)}, got {str(path)!r}"
        )
    alarms: list[str] = []
    about = reading.read_about(folder, alarms)
    recorded = reading.read_result(folder, alarms)
    planned = reading.read_plan(folder, alarms)
    booked = read_ledger(folder, about, alarms)
    if planned is None or fits_ledger(planned, booked, alarms):
        files = Files(about, recorded, planned, booked)
    else:
        files = Files(about, recorded, None, booked, has_other_plan=True)
    return _report(folder, files, claim_of(files, alarms), alarms)


def _report(folder: Path, files: Files, claim: Claim, alarms: list[str]) -> RunReport:
    about, recorded, planned, booked = files.about, files.recorded, files.planned, files.booked
    run = None if booked is None else booked.run
    history, canaries = reading.read_history(folder, alarms), reading.read_canaries(folder, alarms)
    kept, is_whole = reading.read_audits(folder, alarms)
    audits = judged(kept, claim)
    claim = after_audits(claim, audits, alarms, is_whole=is_whole)
    if about is not None and about.is_moved and run is not None and run.is_open:
        alarms.append(
            "This folder is a copy, or was moved, and its run is open: if another copy goes on, "
            "the ledger here may not know of it."
        )
    fingerprints = () if booked is None else booked.fingerprints
    hashed = model_hash(folder, reading.MODEL, alarms)
    return RunReport(
        name=folder.resolve().name,
        run=None if about is None else about.run,
        state="unknown" if run is None else "open" if run.is_open else "ended",
        alarms=tuple(alarms),
        claim=claim,
        stated=_stated(files, claim),
        planned_steps=_planned_steps(planned, booked),
        paid_steps=None if run is None else len(run.spent),
        recorded_steps=None if recorded is None else recorded.steps,
        plan_text=None if planned is None else planned.text,
        plan_fingerprint=fingerprints[0] if fingerprints else planned and planned.fingerprint,
        last_fingerprint=None if recorded is None else recorded.plan,
        replanned=max(0, len(fingerprints) - 1),
        seed=None if recorded is None else recorded.seed,
        is_seeded=files.is_seeded,
        averaging=None if recorded is None else recorded.averaging,
        history=history,
        metrics={} if recorded is None else recorded.metrics,
        iterate_metrics={} if recorded is None else recorded.iterate_metrics,
        derived_from_private_data=files.derived_from_private_data,
        canaries=canaries,
        audits=audits,
        has_all_audits=is_whole,
        ledger=None if booked is None else booked.summary,
        sessions=() if about is None else about.sessions,
        registered=None if run is None else run.entry.time,
        ended=None if booked is None or run is None or run.is_open else booked.ended,
        model_hash=hashed,
        charts=charts_of(files, history, claim, audits),
    )


def _planned_steps(planned: Planned | None, booked: Booked | None) -> int | None:
    if planned is not None:
        return planned.steps
    return None if booked is None or booked.run is None else len(booked.run.entry.noise)


def _stated(files: Files, claim: Claim) -> Stated | None:
    """Return what the statement speaks of, if the plan and a bound are known."""
    planned, recorded, booked = files.planned, files.recorded, files.booked
    bound = _stated_bound(claim, recorded)
    run = None if booked is None else booked.run
    steps = recorded.steps if recorded is not None else len(run.spent) if run is not None else 0
    if planned is None or bound is None or not steps:
        return None
    whole = claim.bound.epsilon if claim.bound is not None else math.inf
    return Stated(
        bound=bound,
        plan_epsilon=whole,
        steps=steps,
        dataset_size=planned.dataset_size,
        batch_size=planned.batch_size,
        sampling=planned.sampling,
        clip_norm=planned.clip_norm,
        fingerprint=planned.fingerprint if recorded is None else recorded.plan,
        has_noise=planned.has_noise,
        is_raw=planned.is_raw,
        is_seeded=files.is_seeded,
        seed=None if recorded is None else recorded.seed,
    )


def _stated_bound(claim: Claim, recorded: Recorded | None) -> PrivacyBound | None:
    if claim.bound is None or recorded is not None:
        return claim.bound
    return claim.counted if isinstance(claim.counted, SpentSoFar) else claim.bound
