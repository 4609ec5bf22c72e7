"""A report as HTML, markdown or JSON, written whole or not at all."""

import json
import math
import os
import re
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from dither import validate
from dither.ledger.files import write_atomic
from dither.reports.run.document import Charts, Facts, Paragraph, Table, sections_of
from dither.reports.run.drawing import svg_of
from dither.reports.run.in_words import headline, not_covered
from dither.reports.run.odds import odds_of
from dither.reports.run.report import Chart, RunReport
from dither.types import rounded

_TEMPLATES = Path(__file__).parent / "templates"
_SHOWN_POINTS = 8


def to_html(report: RunReport) -> str:
    """Return the report as one page that loads nothing: no script, no font, no picture.

    Everything that comes from the folder is escaped.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawing"] = lambda chart: Markup(svg_of(chart))  # noqa: S704 (our own)
    environment.filters["points"] = points_of
    page = environment.get_template("report.html.j2").render(
        report=report,
        headline=headline(report),
        sections=sections_of(report),
        level="fine" if report.claim.verdict == "proven" and not report.alarms else "bad",
    )
    return _clean(f"{page}\n")


def to_markdown(report: RunReport) -> str:
    """Return the report as markdown, in one file: charts are given as tables of some points."""
    top = headline(report)
    parts = [f"# Privacy report: {_escaped(report.name)}", f"**{top.title}**", _escaped(top.text)]
    parts += [f"> **WARNING** {_escaped(alarm)}" for alarm in report.alarms]
    for section in sections_of(report):
        parts.append(f"## {section.title}")
        for block in section.blocks:
            parts += _markdown(block)
    return _clean("\n\n".join(parts) + "\n")


def to_json(report: RunReport) -> str:
    """Return the report as JSON; what is infinite is null, and ``verdict`` says why."""
    claim, bound = report.claim, report.claim.bound
    odds = odds_of(bound.epsilon, bound.delta) if bound is not None and claim.has_odds else None
    found = {
        "format": "dither-report-1",
        "headline": asdict(headline(report)),
        **asdict(report),
        "odds": None if odds is None else {**asdict(odds), "to_one": odds.to_one},
        "statement": report.statement,
        "not_covered": dict(not_covered(report)),
    }
    return _clean(json.dumps(_plain(found), indent=2, allow_nan=False, ensure_ascii=False) + "\n")


FORMATS = {".html": to_html, ".json": to_json, ".md": to_markdown}


def checked_target(path: str | Path) -> Path:
    """Return where a report may be written, or say why not; nothing is written."""
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise validate.InvalidValueError(
            f"output must end in one of {', '.join(FORMATS)}, got {str(path)!r}"
        )
    if not target.parent.is_dir():
        raise validate.InvalidValueError(
            f"output must be in a folder that exists, got {str(path)!r}"
        )
    if target.is_dir() or not os.access(target.parent, os.W_OK):
        raise validate.InvalidValueError(
            f"output must be a file that can be written, got {str(path)!r}"
        )
    return target


def write_report(report: RunReport, path: str | Path) -> Path:
    """Write the report in one piece, as its suffix says: .html, .json or .md."""
    target = checked_target(path)
    write_atomic(target, FORMATS[target.suffix.lower()](report).encode())
    return target


def points_of(chart: Chart) -> Table:
    """Return some points of a chart's lines as a table, the first and the last among them."""

    def shown(value: float) -> str:
        return rounded(value, 6) if chart.is_privacy else f"{value:.6g}"

    rows = []
    for series in chart.series:
        last = len(series.x) - 1
        many = min(_SHOWN_POINTS, last + 1)
        kept = sorted({round(place * last / max(1, many - 1)) for place in range(many)})
        rows += [(series.name, f"{series.x[k]:.6g}", shown(series.y[k])) for k in kept]
    if chart.limit is not None:
        rows.append((chart.limit[0], "all", shown(chart.limit[1])))
    return Table(f"{chart.title}: some points", ("line", chart.x_name, chart.y_name), tuple(rows))


def _markdown(block: Paragraph | Facts | Table | Charts) -> list[str]:
    if isinstance(block, Paragraph):
        if block.kind == "code":
            return [f"```\n{block.text.replace('```', '')}\n```"]
        start = {"quote": "> ", "alarm": "> **WARNING** "}.get(block.kind, "")
        return [f"{start}{_escaped(block.text)}"]
    if isinstance(block, Facts):
        rows = (f"- **{_escaped(name)}.** {_escaped(text)}" for name, text in block.rows)
        return ["\n".join(rows)]
    if isinstance(block, Table):
        return [f"{_escaped(block.caption)}:", _table(block)]
    found = []
    for chart in block.charts:
        found += [f"### {chart.title}", _escaped(chart.words), _table(points_of(chart))]
    return found


def _table(table: Table) -> str:
    rows = [table.head, tuple("---" for _ in table.head), *table.rows]
    return "\n".join(f"| {' | '.join(_escaped(cell) for cell in row)} |" for row in rows)


def _escaped(text: str) -> str:
    """Return text in which nothing is markup, on one line."""
    line = " ".join(text.split())
    return "---" if line == "---" else re.sub(r"([\\`*_\[\]<>|#&])", r"\\\1", line)


def _clean(text: str) -> str:
    """Return text that can be written: names of files and runs may have halves of characters."""
    return text.encode(errors="replace").decode()


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
