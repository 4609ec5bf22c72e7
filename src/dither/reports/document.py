"""The first page of a report as sections of blocks, for the HTML template."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TypeAlias, final

from dither.ledger.ledger import spent_text
from dither.reports.charts import Chart
from dither.reports.model_files import PaidEvaluation, Schema
from dither.reports.report import RunReport
from dither.reports.text import not_covered, odds, reading
from dither.training.statement import RunFacts

UNKNOWN = "not recorded"
_METRICS = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "log_loss": "log loss",
    "brier_score": "Brier score",
    "rmse": "root mean squared error",
    "mae": "mean absolute error",
    "r2": "R²",
}


@final
@dataclass(frozen=True)
class Paragraph:
    """A paragraph; its kind is "plain" or "code"."""

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


@final
@dataclass(frozen=True)
class Scale:
    """The scale of ε: this run's ε, its name there and its unit."""

    scale: tuple[float, str, str]


Block: TypeAlias = Paragraph | Facts | Table | Charts | Scale


@final
@dataclass(frozen=True)
class Section:
    """A section with a title."""

    key: str
    title: str
    blocks: tuple[Block, ...]


def front_of(report: RunReport) -> tuple[Section, ...]:
    """Return the sections of the first page, which follow the claim."""
    condition = ", if that is public" if report.claim.verdict == "conditional" else ""
    return sections(
        ("odds", f"As odds{condition}", _odds(report)),
        ("strength", "How strong that is", _strength(report)),
        ("not-covered", "What is not covered in this run", _not_covered(report)),
        ("quality", "Quality of the model", _quality(report)),
    )


def sections(*parts: tuple[str, str, Iterator[Block]]) -> tuple[Section, ...]:
    """Return the sections that have content."""
    made = (Section(key, title, tuple(blocks)) for key, title, blocks in parts)
    return tuple(section for section in made if section.blocks)


def what_of(report: RunReport) -> Facts:
    """Return what was trained on what."""
    schema = report.schema
    n = None if report.facts is None else _size(report.facts)
    part = None if report.part is None else f"the {report.part} part of a random split"
    rows = [
        ("Data", ", ".join(filter(None, (report.data, n, part)))),
        ("Columns", "" if schema is None else _columns(schema.kinds)),
        ("Target", "" if schema is None else _target(schema)),
        ("Model", report.model),
        ("Noise", _correlated(report)),
        ("Purpose", report.purpose or f"{UNKNOWN} (--purpose TEXT)"),
        ("State", _state(report)),
    ]
    return Facts(tuple((name, text) for name, text in rows if text))


def _size(facts: RunFacts) -> str:
    rows = "" if facts.rows_per_user is None else f", at most {facts.rows_per_user:,} rows of each"
    return f"{facts.dataset_size:,} {facts.unit}s{rows}"


def _columns(kinds: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())


def _target(schema: Schema) -> str:
    values = " or ".join(schema.classes)
    if len(schema.classes) > 4:
        values = f"{len(schema.classes):,} classes"
    if schema.bounds:
        values = " to ".join(f"{bound:,g}" for bound in schema.bounds)
    return ": ".join(filter(None, (schema.target, values)))


def charts_of(report: RunReport, *keys: str) -> Iterator[Block]:
    """Yield the charts with these keys, if the report has any of them."""
    charts = tuple(chart for chart in report.charts if chart.key in keys)
    if charts:
        yield Charts(charts)


def _odds(report: RunReport) -> Iterator[Block]:
    rows = odds(report)
    if rows:
        yield Facts(tuple(rows))


def _strength(report: RunReport) -> Iterator[Block]:
    bound, text = report.claim.bound, reading(report)
    if bound is None or not text:
        yield Paragraph("There is no proven ε, so nothing limits what an attacker may learn.")
        return
    yield Paragraph(text)
    condition = ", if public" if report.claim.verdict == "conditional" else ""
    yield Scale((bound.epsilon, f"This run{condition}", f"one {bound.unit}"))


def _not_covered(report: RunReport) -> Iterator[Block]:
    rows = not_covered(report)
    if rows:
        yield Facts(tuple(rows.items()))


def _quality(report: RunReport) -> Iterator[Block]:
    evaluation = report.evaluation
    if evaluation is not None:
        yield from metrics_table(evaluation, is_first=True)
        yield from charts_of(report, "calibration")
    if report.metrics:
        yield Table(
            "On public data",
            ("measure", "value"),
            tuple((name, f"{value:.4f}") for name, value in report.metrics.items()),
        )
    if evaluation is None and not report.metrics:
        yield Paragraph(
            "Not measured. On a private holdout, with noise: --holdout 0.1 --evaluate-epsilon E, "
            "which costs nothing more up to the ε of training. On public data: --public-test FILE."
        )


def metrics_table(evaluation: PaidEvaluation, *, is_first: bool) -> Iterator[Block]:
    """Yield a table of the usual metrics, for the first page, or of the others."""
    found, bases = evaluation.metrics, evaluation.base_rates
    names = [name for name in (_METRICS if is_first else found) if name in found]
    rows = []
    for name in names if is_first else [name for name in names if name not in _METRICS]:
        each, interval = found[name], UNKNOWN
        if each.low is not None and each.high is not None:
            interval = f"{_short(each.low)} to {_short(each.high)}"
        base = _short(bases[name]) if name in bases else ""
        title = _METRICS.get(name, name.replace("_", " "))
        rows.append((title, _short(each.value), interval, base))
    if rows:
        yield Table(
            "On private records, with noise, which the intervals include",
            ("measure", "value", "95 % interval", "base rate"),
            tuple(rows),
        )


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000.0 else f"{value:.3g}"


def _correlated(report: RunReport) -> str:
    """Return how noise was correlated and what was charged; empty if noise was independent."""
    if report.cycles is None:
        return ""
    return (
        f"Correlated within {report.cycles.bands} steps ({report.cycles.bands} bands), with cyclic "
        f"Poisson sampling. Charged: {spent_text(asdict(report.cycles))}."
    )


def _state(report: RunReport) -> str:
    spent, planned = report.spent_steps, report.planned_steps
    if report.state == "open":
        return "Open: it may still spend."
    if report.state == "unknown":
        return "Unknown: there is no ledger that has the run."
    ended = f"Ended {minute(report.ended)} (UTC)" if report.ended else "Ended"
    if spent is not None and planned is not None and spent < planned:
        return f"{ended}, early: the cost of the full plan is reported where it is larger."
    return f"{ended}."


def minute(time: str) -> str:
    """Return a time of the ledger to the minute."""
    return time[:16].replace("T", " ")
