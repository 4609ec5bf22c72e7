"""Figures, the privacy statement, and the report of a run directory."""

from dither.reports.figures import (
    audit_figure,
    plan_figure,
    save_figure,
    training_figure,
)
from dither.reports.render import to_html, to_json, write_report
from dither.reports.report import RunReport, run_report
from dither.training.statement import statement

__all__ = [
    "RunReport",
    "audit_figure",
    "plan_figure",
    "run_report",
    "save_figure",
    "statement",
    "to_html",
    "to_json",
    "training_figure",
    "write_report",
]
