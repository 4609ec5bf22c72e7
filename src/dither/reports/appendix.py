"""The appendix of a report: how the run was trained, its audits, its ledger, and its origin."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from decimal import ROUND_FLOOR
from importlib.metadata import version

from dither.ledger.ledger import spent_text
from dither.ledger.state import COMPOSITION_TEXT
from dither.reports.document import (
    UNKNOWN,
    Block,
    Facts,
    Paragraph,
    Section,
    Table,
    charts_of,
    metrics_table,
    minute,
    sections,
)
from dither.reports.report import RunReport
from dither.training.statement import foundations
from dither.types import rounded

_ATTACKERS = {
    "white-box": "sees every release",
    "final-model": "sees the final model",
    "one-run": "sees this run, with many canaries",
}
_ACCOUNTANTS = {
    "pld": "numerical composition of privacy loss distributions, rounded up",
    "rdp": "Rényi differential privacy",
    "filter": "a Rényi privacy filter, which covers noise that is chosen adaptively",
    "odometer": "a Rényi privacy odometer, which holds wherever a run stops",
    "gdp": "the central limit theorem, an estimate",
    "theorem": "the paper's theorem",
    "advanced": "advanced composition",
}


def appendix_of(report: RunReport) -> tuple[Section, ...]:
    """Return the sections of the appendix."""
    return sections(
        ("training", "How it was trained", _training(report)),
        ("measured", "What was measured", _measured(report)),
        ("audit", "Audit", _audit(report)),
        ("ledger", "All runs in this ledger", _ledger(report)),
        ("origin", "Versions and fingerprints", _origin(report)),
    )


def _training(report: RunReport) -> Iterator[Block]:
    spent, planned, replanned = report.spent_steps, report.planned_steps, report.fingerprints[1:]
    bound, so_far = report.claim.bound, report.claim.spent
    rows = [("Steps planned", UNKNOWN if planned is None else f"{planned:,}")]
    if report.cycles is None:
        rows.append(("Steps recorded in the ledger", UNKNOWN if spent is None else f"{spent:,}"))
    else:
        rows.append(("Cycles recorded in the ledger", spent_text(asdict(report.cycles))))
    if report.cycles is not None and planned is not None:
        lost = report.cycles.spent - -(-planned // report.cycles.bands)
        if lost > 0:
            rows.append(("Cycles lost", f"{lost:,} after a crash; they stay spent."))
    elif spent is not None and planned is not None and spent > planned:
        rows.append(("Steps lost", f"{spent - planned:,} after a crash; they stay spent."))
    if replanned:
        text = "the noise of the remaining steps was planned again within the budget."
        rows.append(("Planned again", f"{len(replanned)} time(s): {text}"))
    if report.claim.is_full_plan and so_far is not None:
        text = "if the number of steps was fixed in advance"
        rows.append(("Spent so far", f"ε = {rounded(so_far.epsilon, 4)}, {text}."))
    if bound is not None:
        name = bound.accountant
        rows.append(("Accountant", f"{name}: {_ACCOUNTANTS.get(name, 'none')}."))
    yield Facts(tuple(rows))
    if report.facts is None and spent == 0:
        yield Paragraph("No step was taken yet: nothing was released.")
    for text in [] if report.facts is None else foundations(report.facts, report.leaks):
        yield Paragraph(text)
    yield from charts_of(report, "noise", "spending")
    if report.settings:
        yield Table(
            "Settings chosen by dither's recipe from public quantities",
            ("setting", "value", "reason"),
            report.settings,
        )
    if report.plan_text is not None:
        confirmed = report.claim.verdict != "not confirmed"
        title = "The first plan:" if replanned else "The plan:"
        yield Paragraph(title if confirmed else "plan.json, which nothing confirms:")
        # The claim is made once, on the first page.
        lines = report.plan_text.splitlines()
        kept = [line for line in lines if "differentially private" not in line]
        yield Paragraph("\n".join(kept), "code")


def _measured(report: RunReport) -> Iterator[Block]:
    evaluation = report.evaluation
    if evaluation is not None:
        yield from metrics_table(evaluation, is_first=False)
    if evaluation is not None and evaluation.confusion:
        yield Table(
            "Confusion matrix of private records, with noise",
            ("true class", *(f"predicted {name}" for name in evaluation.classes)),
            tuple(
                (name, *(f"{value:.4g}" for value in row))
                for name, row in zip(evaluation.classes, evaluation.confusion, strict=True)
            ),
        )
    if report.averaging is not None:
        yield Paragraph(
            f"model.safetensors is an average of the models of the steps ({report.averaging}), "
            "which costs no privacy."
        )
    yield from charts_of(report, "metric")


def _audit(report: RunReport) -> Iterator[Block]:
    if report.canaries is not None:
        count, included = report.canaries
        some = "" if included is None else f": {included:,} of them"
        yield Paragraph(
            f"{count:,} canaries (artificial records) were candidates; about half were added at "
            f"random{some}."
        )
    if not report.audits:
        yield Paragraph("No audit is recorded. dither audit --run-dir DIR runs one.")
        return
    yield Table(
        "Audits of this run: a lower bound above the claimed ε refutes the claim",
        ("time (UTC)", "attacker", "steps", "ε claimed", "ε at least", "confidence", "verdict"),
        tuple(
            (
                minute(audit.time),
                _ATTACKERS.get(audit.attack, audit.attack),
                audit.steps,
                "none" if audit.claimed is None else rounded(audit.claimed, 4),
                rounded(audit.lower, 3, ROUND_FLOOR) if audit.lower > 0.0 else "0",
                f"{rounded(100.0 * audit.confidence, 6, ROUND_FLOOR)} %",
                "REFUTED" if audit.is_violated else "not refuted",
            )
            for audit in report.audits
        ),
    )
    yield Paragraph(
        f"The last audit: {report.audits[-1].verdict} An attack that fails proves nothing: others "
        "may succeed."
    )
    yield from charts_of(report, "audit")


def _ledger(report: RunReport) -> Iterator[Block]:
    ledger = report.ledger
    if ledger is None:
        yield Paragraph("There is no ledger that can be read, or no run in it with a finite ε.")
        return
    total = "∞" if ledger["epsilon"] is None else rounded(ledger["epsilon"], 4)
    cap = ledger["cap"]
    limit = "none" if cap is None else f"ε = {cap['epsilon']:g} at δ = {cap['delta']:g}"
    rows = [
        ("Spent by the runs in this ledger", f"ε = {total} at δ = {rounded(ledger['delta'], 3)}"),
        ("Composition", COMPOSITION_TEXT[ledger["composition"]]),
        ("Cap", limit),
    ]
    bound, spent = report.claim.training, report.claim.spent
    if bound and spent and 1.01 * spent.epsilon < bound.epsilon < math.inf:
        counted = f"ε = {rounded(spent.epsilon, 4)}, from the least noise that was registered"
        rows.append(("This run, in the total", counted))
    yield Facts(tuple(rows))
    has_parts = any(run["split"] is not None for run in ledger["runs"])
    yield Table(
        "The runs of the ledger, in the order of registration",
        (
            "number",
            "run",
            *(["part"] * has_parts),
            "registered (UTC)",
            "steps",
            "noise z",
            "ε",
            "state",
        ),
        tuple(
            (
                f"{place}{' (this run)' if run['run'] == report.run else ''}",
                run["run"],
                *([run["part"] or f"all {report.unit}s"] * has_parts),
                minute(run["registered"]),
                spent_text(run),
                "none"
                if run["least_noise"] is None
                else f"{run['least_noise']:.4g} to {run['most_noise']:.4g}",
                "∞" if run["epsilon"] is None else rounded(run["epsilon"], 4),
                ("open" if run["is_open"] else "ended")
                + (", SEEDED" if run["is_seeded"] else "")
                + (", conditional" if run["is_conditional"] else ""),
            )
            for place, run in enumerate(ledger["runs"], start=1)
        ),
    )


def _origin(report: RunReport) -> Iterator[Block]:
    missing = "not yet: the run is open" if report.state == "open" else UNKNOWN
    yield Facts(
        (
            ("Run", report.run or UNKNOWN),
            ("Registered (UTC)", minute(report.registered) if report.registered else UNKNOWN),
            ("Ended (UTC)", minute(report.ended) if report.ended else missing),
            ("Plan fingerprints", ", ".join(report.fingerprints) or UNKNOWN),
            ("Model, SHA-256", report.model_hash or missing),
            ("Report by", f"dither {version('dither')}"),
            (
                "Signature",
                "None: the files of a run are not signed. The ledger is checked for damage, not "
                "for tampering.",
            ),
        )
    )
    sessions = [session["versions"] for session in report.sessions]
    if sessions:
        names = [*dict.fromkeys(name for versions in sessions for name in versions)]
        yield Table(
            "Versions",
            ("library", *(f"session of {minute(each['time'])}" for each in report.sessions)),
            tuple((name, *(each.get(name, UNKNOWN) for each in sessions)) for name in names),
        )
