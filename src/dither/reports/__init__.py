"""What people look at: figures, and the privacy statement."""

from dither.reports.audit_figure import audit_figure
from dither.reports.figures import save_figure
from dither.reports.ledger_figure import ledger_figure
from dither.reports.plan_figure import plan_figure
from dither.reports.theory_figure import theory_figure
from dither.reports.training_figure import training_figure
from dither.training.statement import statement

__all__ = [
    "audit_figure",
    "ledger_figure",
    "plan_figure",
    "save_figure",
    "statement",
    "theory_figure",
    "training_figure",
]
