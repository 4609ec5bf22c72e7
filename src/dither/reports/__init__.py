"""What people look at: figures, the privacy statement, and the report of a run's folder."""

from dither.reports.audit_figure import audit_figure
from dither.reports.figures import save_figure
from dither.reports.ledger_figure import ledger_figure
from dither.reports.plan_figure import plan_figure
from dither.reports.run import (
    RunReport,
    run_report,
    to_html,
    to_json,
    to_markdown,
    write_report,
)
from dither.reports.theory_figure import theory_figure
from dither.reports.training_figure import training_figure
from dither.training.statement import statement

__all__ = [
    "RunReport",
    "audit_figure",
    "ledger_figure",
    "plan_figure",
    "run_report",
    "save_figure",
    "statement",
    "theory_figure",
    "to_html",
    "to_json",
    "to_markdown",
    "training_figure",
    "write_report",
]
