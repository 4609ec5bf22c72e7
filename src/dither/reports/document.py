"""The report as sections of blocks, for the HTML template."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_FLOOR
from importlib.metadata import version
from typing import TypeAlias, final

from dither.ledger.state import COMPOSITION_TEXT
from dither.reports.charts import Chart
from dither.reports.odds import membership_odds, percent
from dither.reports.report import RunReport
from dither.reports.text import NOT_COVERED, meaning
from dither.types import rounded

UNKNOWN = "not recorded"
_ATTACKERS = {
    "white-box": "sees every release",
    "final-model": "sees the final model",
    "one-run": "sees this run, with many canaries",
}


@final
@dataclass(frozen=True)
class Paragraph:
    """A paragraph; its kind is "plain", "quote", "code" or "warning"."""

    text: str
    kind: str = "plain"


@final
@dataclass(frozen=True)
class Facts:
    """Pairs of a name and a text."""

    rows: tuple[tuple[str, str], ...]


@final
@dataclass(frozen=True)
class Table:
    """A table with a head and a caption."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@final
@dataclass(frozen=True)
class Charts:
    """Charts, side by side where the page is wide enough."""

    charts: tuple[Chart, ...]


Block: TypeAlias = Paragraph | Facts | Table | Charts


@final
@dataclass(frozen=True)
class Section:
    """A section with a title."""

    key: str
    title: str
    blocks: tuple[Block, ...]


def sections_of(report: RunReport) -> tuple[Section, ...]:
    """Return the sections of a report, in reading order."""
    parts = (
        ("statement", "Privacy statement", _statement(report)),
        ("meaning", "What ε and δ mean", _meaning(report)),
        ("not-covered", "What is not covered", iter([Facts(NOT_COVERED)])),
        ("plan", "Plan, noise and privacy over the steps", _plan(report)),
        ("accuracy", "Accuracy", _accuracy(report)),
        ("audit", "Audit", _audit(report)),
        ("ledger", "All runs in this ledger", _ledger(report)),
        ("origin", "Versions and fingerprints", _origin(report)),
    )
    return tuple(Section(key, title, tuple(blocks)) for key, title, blocks in parts)


def _charts(report: RunReport, *keys: str) -> Iterator[Block]:
    charts = tuple(chart for chart in report.charts if chart.key in keys)
    if charts:
        yield Charts(charts)


def _statement(report: RunReport) -> Iterator[Block]:
    if report.claim.verdict == "refuted":
        yield Paragraph("An audit has refuted this statement:", "warning")
    for text in report.statement:
        yield Paragraph(text, "quote")
    if report.facts is None:
        yield Paragraph(
            "No step was taken yet: nothing was released."
            if report.spent_steps == 0
            else "None: the run directory has too few files that can be used."
        )


def _meaning(report: RunReport) -> Iterator[Block]:
    rows, bound = meaning(report), report.claim.bound
    if bound is None or not rows:
        yield Paragraph("There is no proven ε, so nothing limits what an attacker may learn.")
        return
    yield Facts(tuple(rows))
    rates = membership_odds(bound.epsilon, bound.delta).rates
    yield Table(
        "The largest true positive rate of any membership test",
        ("false positive rate", "true positive rate, at most"),
        tuple((f"{100.0 * F:g} %", percent(P)) for F, P in rates),
    )


def _plan(report: RunReport) -> Iterator[Block]:
    spent, planned, replanned = report.spent_steps, report.planned_steps, report.fingerprints[1:]
    rows = [
        ("State", _state(report)),
        ("Steps planned", UNKNOWN if planned is None else f"{planned:,}"),
        ("Steps recorded in the ledger", UNKNOWN if spent is None else f"{spent:,}"),
    ]
    if spent is not None and planned is not None and spent > planned:
        rows.append(("Steps lost", f"{spent - planned:,} after a crash; they stay spent."))
    if replanned:
        text = "the noise of the remaining steps was planned again within the budget."
        rows.append(("Planned again", f"{len(replanned)} time(s): {text}"))
    yield Facts(tuple(rows))
    yield from _charts(report, "noise", "spending")
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
        yield Paragraph(report.plan_text, "code")


def _state(report: RunReport) -> str:
    spent, planned = report.spent_steps, report.planned_steps
    if report.state == "open":
        return "Open: it may still spend."
    if report.state == "unknown":
        return "Unknown: there is no ledger that has the run."
    if spent is not None and planned is not None and spent < planned:
        return "Ended early: the cost of the full plan is reported where it is larger."
    return "Ended."


def _accuracy(report: RunReport) -> Iterator[Block]:
    if not report.metrics:
        yield Paragraph("No metrics are recorded. They need public data: --public-test FILE.")
    else:
        metrics, iterate = report.metrics, report.iterate_metrics
        head = ["on public data", "measured"]
        if report.averaging is not None:
            head = ["on public data", f"with {report.averaging} averaging", "last iterate"]
        rows = [
            (name, f"{value:.4f}", *([f"{iterate[name]:.4f}"] if name in iterate else []))
            for name, value in metrics.items()
        ]
        yield Table("The final model", tuple(head), tuple(rows))
        if report.averaging is not None:
            yield Paragraph("model.safetensors is the average, which costs no privacy.")
    yield from _charts(report, "metric")


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
                _minute(audit.time),
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
    yield from _charts(report, "audit")


def _ledger(report: RunReport) -> Iterator[Block]:
    ledger = report.ledger
    if ledger is None:
        yield Paragraph("There is no ledger that can be read, or no run in it with a finite ε.")
        return
    total = "∞" if ledger["epsilon"] is None else rounded(ledger["epsilon"], 4)
    cap, count = ledger["cap"], len(ledger["runs"])
    limit = "none" if cap is None else f"ε = {cap['epsilon']:g} at δ = {cap['delta']:g}"
    rows = [
        ("Spent by the runs in this ledger", f"ε = {total} at δ = {rounded(ledger['delta'], 3)}"),
        ("Composition", COMPOSITION_TEXT[ledger["composition"]]),
        ("Cap", limit),
    ]
    if count > 1:
        rows.append(("Shared records", "A record that is in all runs is protected by the total."))
    else:
        text = "are not counted unless they use the same ledger (--ledger FILE)."
        rows.append(("Other runs", f"Other runs on the same data {text}"))
    bound, spent = report.claim.bound, report.claim.spent
    if bound and spent and 1.01 * spent.epsilon < bound.epsilon < math.inf:
        counted = f"ε = {rounded(spent.epsilon, 4)}, from the least noise that was registered"
        rows.append(("This run, in the total", counted))
    yield Facts(tuple(rows))
    yield Table(
        "The runs of the ledger, in the order of registration",
        ("number", "run", "registered (UTC)", "steps", "noise z", "ε", "state"),
        tuple(
            (
                f"{place}{' (this run)' if run['run'] == report.run else ''}",
                run["run"],
                _minute(run["registered"]),
                f"{run['spent']:,} of {run['planned']:,}",
                "none"
                if run["least_noise"] is None
                else f"{run['least_noise']:.4g} to {run['most_noise']:.4g}",
                "∞" if run["epsilon"] is None else rounded(run["epsilon"], 4),
                ("open" if run["is_open"] else "ended") + (", SEEDED" if run["is_seeded"] else ""),
            )
            for place, run in enumerate(ledger["runs"], start=1)
        ),
    )
    yield from _charts(report, "ledger")


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")


def _origin(report: RunReport) -> Iterator[Block]:
    missing = "not yet: the run is open" if report.state == "open" else UNKNOWN
    yield Facts(
        (
            ("Run", report.run or UNKNOWN),
            ("Registered (UTC)", _minute(report.registered) if report.registered else UNKNOWN),
            ("Ended (UTC)", _minute(report.ended) if report.ended else missing),
            ("Plan fingerprints", ", ".join(report.fingerprints) or UNKNOWN),
            ("Model, SHA-256", report.model_hash or missing),
            ("Report by", f"dither {version('dither')}"),
        )
    )
    sessions = [session["versions"] for session in report.sessions]
    if sessions:
        names = [*dict.fromkeys(name for versions in sessions for name in versions)]
        yield Table(
            "Versions",
            ("library", *(f"session of {_minute(each['time'])}" for each in report.sessions)),
            tuple((name, *(each.get(name, UNKNOWN) for each in sessions)) for name in names),
        )
