"""What people look at: figures."""

from dither.reports.figures import save_figure
from dither.reports.plan_figure import plan_figure
from dither.reports.theory_figure import theory_figure

__all__ = ["plan_figure", "save_figure", "theory_figure"]
