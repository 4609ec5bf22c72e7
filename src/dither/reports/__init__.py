"""Figures, the privacy statement, and the report of a run directory.

Of the report, `text` has the sentences (the claim: ``headline``), `document` the first page,
`appendix` the rest, `claim` the verdict, `odds` what ε means, `scale` how strong it is, `charts`
the curves, `load` and `model_files` read the run directory, and `render` writes HTML or JSON. The
words of the privacy statement are in `dither.training.statement`.
"""

from dither.reports.figures import (
    audit_figure,
    demo_figure,
    ledger_figure,
    plan_figure,
    save_figure,
    theory_figure,
    training_figure,
)
from dither.reports.render import write_report
from dither.reports.report import RunReport, run_report
from dither.training.statement import statement

__all__ = [
    "RunReport",
    "audit_figure",
    "demo_figure",
    "ledger_figure",
    "plan_figure",
    "run_report",
    "save_figure",
    "statement",
    "theory_figure",
    "training_figure",
    "write_report",
]
