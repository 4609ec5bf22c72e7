"""A report as HTML, markdown or JSON, written atomically."""

import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dither.ledger.files import write_atomic
from dither.reports.charts import draw_svg
from dither.reports.document import Block, Facts, Paragraph, Table, points_table, sections_of
from dither.reports.figures import check_output_path
from dither.reports.odds import membership_odds
from dither.reports.report import RunReport
from dither.reports.text import NOT_COVERED, headline

_TEMPLATES = Path(__file__).parent / "templates"


def to_html(report: RunReport) -> str:
    """Return the report as one HTML page without scripts and without external resources.

    Example:
        See `write_report`.
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
    environment.filters["svg"] = lambda chart: Markup(draw_svg(chart))  # noqa: S704 (our own)
    environment.filters["points"] = points_table
    title, text = headline(report)
    page = environment.get_template("report.html.j2").render(
        report=report,
        title=title,
        text=text,
        sections=sections_of(report),
        level="fine" if report.claim.verdict == "proven" and not report.warnings else "bad",
    )
    return f"{page}\n"


def to_markdown(report: RunReport) -> str:
    """Return the report as markdown, with tables in place of the charts.

    Example:
        See `write_report`.
    """
    title, text = headline(report)
    parts = [f"# Privacy report: {_escape(report.name)}", f"**{title}**", _escape(text)]
    parts += [f"> **WARNING** {_escape(warning)}" for warning in report.warnings]
    for section in sections_of(report):
        parts.append(f"## {section.title}")
        for block in section.blocks:
            parts += _markdown(block)
    return "\n\n".join(parts) + "\n"


def to_json(report: RunReport) -> str:
    """Return the report as JSON; infinite numbers are null, and the verdict gives the reason.

    Example:
        See `write_report`.
    """
    bound = report.claim.bound
    odds = None
    if bound is not None and report.claim.is_guarantee:
        found = membership_odds(bound.epsilon, bound.delta)
        odds = {**asdict(found), "to_one": found.to_one}
    title, text = headline(report)
    content = {
        "format": "dither-report-1",
        "headline": {"title": title, "text": text},
        **asdict(report),
        "odds": odds,
        "statement": report.statement,
        "not_covered": dict(NOT_COVERED),
    }
    return json.dumps(_finite(content), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


FORMATS = {".html": to_html, ".json": to_json, ".md": to_markdown}


def write_report(report: RunReport, path: str | Path) -> Path:
    """Write the report as .html, .json or .md. The file is replaced atomically.

    Example:
        >>> import dither, tempfile, torch
        >>> from dither.reports import run_report
        >>> run = dither.training.Run(tempfile.mkdtemp())
        >>> plan = dither.Plan.unsafe_without_noise(steps=2, dataset_size=10, batch_size=5)
        >>> data = torch.zeros(10, 3), torch.zeros(10, dtype=torch.int64)
        >>> trained = dither.train(torch.nn.Linear(3, 2), data, plan, run=run, progress=False)
        >>> report = run_report(run.directory)
        >>> to_markdown(report).splitlines()[2]
        '**No privacy: ε = ∞**'
        >>> write_report(report, run.directory + "/report.md").name
        'report.md'
    """
    target = check_output_path(path, FORMATS, "output")
    write_atomic(target, FORMATS[target.suffix.lower()](report).encode())
    return target


def _markdown(block: Block) -> list[str]:
    if isinstance(block, Paragraph):
        if block.kind == "code":
            return [f"```\n{block.text}\n```"]
        start = {"quote": "> ", "warning": "> **WARNING** "}.get(block.kind, "")
        return [f"{start}{_escape(block.text)}"]
    if isinstance(block, Facts):
        rows = (f"- **{_escape(name)}.** {_escape(text)}" for name, text in block.rows)
        return ["\n".join(rows)]
    if isinstance(block, Table):
        return [f"{_escape(block.caption)}:", _table(block)]
    parts = []
    for chart in block.charts:
        parts += [f"### {chart.title}", _escape(chart.description), _table(points_table(chart))]
    return parts


def _table(table: Table) -> str:
    rule = f"| {' | '.join('---' for _ in table.head)} |"
    head, *rows = (f"| {' | '.join(map(_escape, row))} |" for row in (table.head, *table.rows))
    return "\n".join([head, rule, *rows])


def _escape(text: str) -> str:
    """Return text on one line, without markup."""
    return re.sub(r"([\\`*_\[\]<>|#&])", r"\\\1", " ".join(text.split()))


def _finite(value: Any) -> Any:
    """Return a value with None for every number that is not finite."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
