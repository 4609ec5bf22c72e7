"""A report as HTML or JSON, written atomically."""

import json
from dataclasses import asdict
from pathlib import Path

from dither.ledger.files import write_atomic
from dither.reports.appendix import appendix_of
from dither.reports.charts import draw_svg
from dither.reports.document import front_of, what_of
from dither.reports.odds import membership_odds
from dither.reports.report import RunReport
from dither.reports.scale import scale_svg
from dither.reports.text import headline, not_covered, odds, reading
from dither.training.history import finite
from dither.validate import output_file

_TEMPLATES = Path(__file__).parent / "templates"


def to_html(report: RunReport) -> str:
    """Return the report as one HTML page without scripts and without external resources."""
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
    environment.filters["scale"] = lambda scale: Markup(scale_svg(*scale))  # noqa: S704 (our own)
    title, text = headline(report)
    page = environment.get_template("report.html.j2").render(
        report=report,
        title=title,
        text=text,
        what=what_of(report),
        front=front_of(report),
        appendix=appendix_of(report),
        level="fine" if report.claim.verdict == "proven" and not report.warnings else "bad",
    )
    return f"{page}\n"


def to_json(report: RunReport) -> str:
    """Return the report as JSON; infinite numbers are null, and the verdict gives the reason."""
    bound = report.claim.bound
    numbers = None
    if bound is not None and report.claim.is_guarantee:
        numbers = {
            **asdict(membership_odds(bound.epsilon, bound.delta)),
            "text": dict(odds(report)),
        }
    title, text = headline(report)
    content = {
        "format": "dither-report-2",
        "headline": {"title": title, "text": text},
        **asdict(report),
        "unit": report.unit,
        "rows_per_user": None if report.facts is None else report.facts.rows_per_user,
        "odds": numbers,
        "reading": reading(report),
        "not_covered": not_covered(report),
        "statement": report.statement,
    }
    return json.dumps(finite(content), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


FORMATS = {".html": to_html, ".json": to_json}


def write_report(report: RunReport, path: str | Path) -> Path:
    """Write the report as .html or .json. The file is replaced atomically.

    Example:
        >>> import dither, tempfile, torch
        >>> from dither.reports import run_report
        >>> run = dither.training.Run(tempfile.mkdtemp())
        >>> plan = dither.Plan.unsafe_without_noise(steps=2, dataset_size=10, batch_size=5)
        >>> data = torch.zeros(10, 3), torch.zeros(10, dtype=torch.int64)
        >>> trained = dither.train(torch.nn.Linear(3, 2), data, plan, run=run, progress=False)
        >>> report = run_report(run.directory)
        >>> json.loads(to_json(report))["headline"]["title"]
        'No privacy: ε = ∞'
        >>> write_report(report, run.directory + "/report.json").name
        'report.json'
    """
    target = output_file(FORMATS, output=path)
    write_atomic(target, FORMATS[target.suffix.lower()](report).encode())
    return target
