"""The report as sections of blocks: HTML and markdown say the same because this says it once."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import ROUND_FLOOR
from importlib.metadata import version
from typing import Any, TypeAlias, final

from dither.ledger.state import COMPOSITION_TEXT
from dither.reports.run.in_words import in_short, not_covered, odds_in_words, odds_rows
from dither.reports.run.odds import odds_of
from dither.reports.run.report import Chart, Claim, RunReport
from dither.types import rounded

UNKNOWN = "not recorded"
_ATTACKS = {
    "white-box": "sees every release",
    "final-model": "sees the final model",
    "one-run": "sees one run with many canaries",
}
_SIDES = {
    "add-remove": ("% of records not in the data", "% of those in it"),
    "replace-one": ("% of the cases with another in its place", "% of those with this record"),
}


@final
@dataclass(frozen=True)
class Paragraph:
    """A paragraph, with its weight: "plain", "quote" for a statement, "alarm"."""

    text: str
    kind: str = "plain"


@final
@dataclass(frozen=True)
class Facts:
    """Names and what is to be said of each."""

    rows: tuple[tuple[str, str], ...]


@final
@dataclass(frozen=True)
class Table:
    """A table with a head; what it shows is in its caption."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@final
@dataclass(frozen=True)
class Charts:
    """Charts side by side, where there is room."""

    charts: tuple[Chart, ...]


Block: TypeAlias = Paragraph | Facts | Table | Charts


@final
@dataclass(frozen=True)
class Section:
    """A part of the report."""

    key: str
    title: str
    blocks: tuple[Block, ...]


def sections_of(report: RunReport) -> tuple[Section, ...]:
    """Return the report's sections, in the order in which they are read."""
    parts = (
        ("meaning", "What this means for one person", _meaning(report)),
        ("not-covered", "What is not covered", iter([Facts(tuple(not_covered(report)))])),
        ("statement", "The privacy statement", _statement(report)),
        ("plan", "Plan, noise and privacy over the steps", _plan(report)),
        ("accuracy", "Accuracy", _accuracy(report)),
        ("audit", "Audit", _audit(report)),
        ("ledger", "All runs on this data", _ledger(report)),
        ("origin", "Versions and fingerprints", _origin(report)),
    )
    return tuple(Section(key, title, tuple(blocks)) for key, title, blocks in parts)


def _charts(report: RunReport, *keys: str) -> Iterator[Block]:
    found = tuple(chart for chart in report.charts if chart.key in keys)
    if found:
        yield Charts(found)


def _meaning(report: RunReport) -> Iterator[Block]:
    bound = report.claim.bound
    rows, words = in_short(report), odds_in_words(report.claim)
    if not rows:
        yield Paragraph("No ε is reported, so nothing can be said of what an attacker may learn.")
        return
    yield Facts(tuple(rows))
    for text in words:
        yield Paragraph(text)
    if words and bound is not None:
        outside, inside = _SIDES[bound.adjacency]
        yield Table(
            "The most that any test can find, by how often it is wrong",
            (f"is wrong about at most ({outside})", f"finds at most ({inside})"),
            tuple(odds_rows(odds_of(bound.epsilon, bound.delta))),
        )


def _statement(report: RunReport) -> Iterator[Block]:
    if report.stated is None:
        yield Paragraph(
            "No step was paid for yet: nothing was released."
            if report.paid_steps == 0
            else "There is none: too little of the folder can be read."
        )
        return
    if report.claim.verdict == "refuted":
        yield Paragraph("An audit has refuted what this run states:", "alarm")
    for text in report.statement:
        yield Paragraph(text, "quote")


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _plan(report: RunReport) -> Iterator[Block]:
    stated, paid, planned = report.stated, report.paid_steps, report.planned_steps
    rows = [("State of the run", _state(report))]
    rows.append(("Steps planned", _number(report.planned_steps)))
    rows.append(("Steps paid for, by the ledger", _number(paid)))
    if paid is not None and planned is not None and paid > planned:
        rows.append(
            (
                "Steps lost",
                f"{paid - planned:,} paid for and lost on the way, which stay spent.",
            )
        )
    if report.replanned:
        often = "once" if report.replanned == 1 else f"{report.replanned:,} times"
        why = "the noise of the rest was changed, so that the total stays within the budget."
        rows.append(("Planned anew", f"{often}: {why}"))
    if stated is not None:
        q = stated.batch_size / stated.dataset_size
        rows += [
            ("Records, n (public)", f"{stated.dataset_size:,}"),
            ("Expected batch, m", f"{stated.batch_size:,} (q = m/n = {q:.4g})"),
            ("Clip norm, C", f"{stated.clip_norm:g}" if math.isfinite(stated.clip_norm) else "∞"),
        ]
    yield Facts(tuple(rows))
    yield from _charts(report, "noise", "reaching", "spending")
    if report.plan_text is not None:
        yield Paragraph(_of_plan(report))
        yield Paragraph(report.plan_text, "code")


def _of_plan(report: RunReport) -> str:
    """Return what to think of the plan's own words."""
    if report.claim.verdict == "not confirmed":
        return "What plan.json promises. Nothing confirms that the run has kept to it:"
    return "The plan that the run began with, as plan.json has it:"


def _state(report: RunReport) -> str:
    if report.state == "open":
        return "Open: by the ledger it may still spend."
    if report.state == "unknown":
        return "Not known, as there is no ledger that has it."
    paid, planned = report.paid_steps, report.planned_steps
    if paid is not None and planned is not None and paid < planned:
        return "Ended early. What is reported is the cost of the whole plan where that is more."
    return "Ended."


def _accuracy(report: RunReport) -> Iterator[Block]:
    if not report.metrics:
        yield Paragraph(
            "Nothing was measured, or it was not recorded: a model is measured on data that is "
            "declared public only (dither train --public-test FILE)."
        )
    else:
        averaged = report.averaging not in (None, "none")
        name = f"with averaging ({report.averaging})" if averaged else "measured"
        head = ["on public data", name, *(["last iterate, without averaging"] if averaged else [])]
        rows = [
            [
                key,
                f"{value:.4f}",
                *([_metric(report.iterate_metrics.get(key))] if averaged else []),
            ]
            for key, value in report.metrics.items()
        ]
        yield Table(
            "The final model, on data that was declared public",
            tuple(head),
            tuple(tuple(row) for row in rows),
        )
        if report.averaging is None:
            yield Paragraph("Whether the iterates were averaged is not recorded.")
        elif averaged:
            yield Paragraph(
                "Averaging is computed from what was released: it costs no privacy. The model in "
                "the folder is the averaged one."
            )
    yield from _charts(report, "quality")


def _metric(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4f}"


def _audit(report: RunReport) -> Iterator[Block]:
    if report.canaries is not None:
        count, included = report.canaries
        among = "" if included is None else f", of which {included:,} were in"
        yield Paragraph(
            f"{count:,} artificial records (canaries) were offered to the data{among}. They are "
            "noise, and of nobody."
        )
    if not report.has_all_audits:
        yield Paragraph(
            "audit.json is damaged: what an audit has found is lost, and it may have refuted this "
            "run.",
            "alarm",
        )
    if not report.audits and report.has_all_audits:
        yield Paragraph(
            "This run was not audited: dither audit --run-dir DIR attacks it, and says how large ε "
            "must be at least."
        )
    if not report.audits:
        return
    yield Table(
        "Attacks on this run, the oldest first: a lower bound above the claim refutes it",
        ("when (UTC)", "the attacker", "steps", "ε claimed", "ε at least", "confidence", "verdict"),
        tuple(
            (
                _minute(each["time"]),
                _ATTACKS.get(each["attack"], each["attack"]),
                each["steps"],
                "nothing" if each["claimed"] is None else rounded(each["claimed"], 4),
                rounded(each["lower"], 3, ROUND_FLOOR) if each["lower"] > 0.0 else "not proven",
                f"{rounded(100.0 * each['confidence'], 6, ROUND_FLOOR)} %",
                "REFUTED" if each["is_violated"] else "not refuted",
            )
            for each in report.audits
        ),
    )
    for each in report.audits:
        if each["is_violated"]:
            yield Paragraph(each["verdict"], "alarm")
    yield Paragraph(
        f"The last: {report.audits[-1]['verdict']} An attack that fails proves nothing: others may "
        "succeed. Who sees one run attacks the canaries in this run's own data; the others attack "
        "new runs with the noise that this one has paid for."
    )
    yield from _charts(report, "audit")


def _ledger(report: RunReport) -> Iterator[Block]:
    found = report.ledger
    if found is None:
        yield Paragraph("There is no ledger that can be read, or none that has a claim to add up.")
        return
    yield Paragraph(_total(found))
    more = _claimed_more(report.claim)
    if more is not None:
        yield Paragraph(more)
    cap = found["cap"]
    yield Paragraph(
        "There is no cap."
        if cap is None
        else f"The cap is ε = {cap['epsilon']:g} at δ = {cap['delta']:g}."
    )
    yield Table(
        "The runs of the ledger, as they were registered",
        ("number", "run", "registered (UTC)", "steps", "noise z", "its ε", "state"),
        tuple(
            (
                f"{place}{' (this one)' if each['run'] == report.run else ''}",
                each["run"],
                _minute(each["registered"]),
                f"{each['spent']:,} of {each['planned']:,}",
                "none"
                if each["least_noise"] is None
                else f"{each['least_noise']:.4g} to {each['most_noise']:.4g}",
                "∞" if each["epsilon"] is None else rounded(each["epsilon"], 4),
                ("open" if each["is_open"] else "ended")
                + (", SEEDED" if each["is_seeded"] else ""),
            )
            for place, each in enumerate(found["runs"], start=1)
        ),
    )
    yield from _charts(report, "ledger")


def _total(found: Mapping[str, Any]) -> str:
    """Return what all runs of a ledger cost, in words."""
    total = "∞" if found["epsilon"] is None else rounded(found["epsilon"], 4)
    count = len(found["runs"])
    runs = "one run" if count == 1 else f"{count:,} runs"
    text = (
        f"Spent together by {runs} in the ledger: ε = {total} at "
        f"δ = {rounded(found['delta'], 3)}. {COMPOSITION_TEXT[found['composition']]}"
    )
    if count == 1:
        return text
    return f"{text} Whose record was in all of them is protected by this total, not by one run's ε."


def _claimed_more(claim: Claim) -> str | None:
    """Return that the run claims more than the ledger counts for it, if it does."""
    bound, counted = claim.bound, claim.counted
    if bound is None or counted is None or claim.is_whole_plan or math.isinf(bound.epsilon):
        return None
    if bound.epsilon <= 1.01 * counted.epsilon:
        return None
    return (
        f"For this run the ledger counts ε = {rounded(counted.epsilon, 4)} from the least noise "
        f"that was promised. The run itself claims more, ε = {rounded(bound.epsilon, 4)}, which is "
        "reported above."
    )


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")


def _missing(report: RunReport) -> str:
    return "not yet: the run is open" if report.state == "open" else UNKNOWN


def _origin(report: RunReport) -> Iterator[Block]:
    times = [_minute(each["time"]) for each in report.sessions]
    rows = [
        ("Run", report.run or UNKNOWN),
        ("Registered (UTC)", _minute(report.registered) if report.registered else UNKNOWN),
        ("Ended (UTC)", _minute(report.ended) if report.ended else _missing(report)),
        ("Begun, and gone on (UTC)", ", ".join(times) or UNKNOWN),
        ("Plan's fingerprint", report.plan_fingerprint or UNKNOWN),
    ]
    if report.last_fingerprint not in (None, report.plan_fingerprint):
        rows.append(("Fingerprint of the last plan", str(report.last_fingerprint)))
    rows += [
        ("Model, SHA-256", report.model_hash or _missing(report)),
        ("Report made by", f"dither {version('dither')}"),
    ]
    yield Facts(tuple(rows))
    versions = [each["versions"] for each in report.sessions]
    if not versions:
        yield Paragraph("Versions of libraries are not recorded.")
        return
    names = [*dict.fromkeys(name for each in versions for name in each)]
    yield Table(
        "Versions that the run was made with",
        ("library", *(f"session {place}" for place in range(1, len(versions) + 1))),
        tuple((name, *(each.get(name, UNKNOWN) for each in versions)) for name in names),
    )
