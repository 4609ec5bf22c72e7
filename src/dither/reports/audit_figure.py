"""An attack to look at: its ROC, and the trade-off that the claim allows."""

from collections.abc import Callable
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from dither.reports.figures import BLUE, VERMILION
from dither.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def audit_figure(
    roc: FloatArray, allowed: Callable[[FloatArray], FloatArray] | None, verdict: str
) -> "Figure":
    """Draw an attack's true positive rate over its false positive rate, twice.

    Args:
        roc: false positive rates and true positive rates.
        allowed: the largest true positive rate that the claim allows at given false ones, or None.
        verdict: one sentence, above the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 5.2), layout="constrained")
    figure.suptitle(fill(verdict, 110), fontsize=10)
    whole, rare = figure.subplots(1, 2)
    for axes, alpha in ((whole, np.linspace(0.0, 1.0, 501)), (rare, np.geomspace(1e-4, 1.0, 301))):
        axes.plot(alpha, alpha, color="grey", linewidth=0.8, label="guessing")
        if allowed is not None:
            most = allowed(alpha)
            axes.plot(alpha, most, color=VERMILION, linestyle="--", label="what the claim allows")
            axes.fill_between(alpha, most, 1.0, color=VERMILION, alpha=0.08)
        axes.plot(*roc, color=BLUE, linewidth=2.0, label="the attack")
        axes.set(xlabel="false positive rate", ylabel="true positive rate", ylim=(0.0, 1.0))
    whole.set(xlim=(0.0, 1.0))
    rare.set(xscale="log", yscale="log", xlim=(1e-4, 1.0), ylim=(1e-4, 1.0))
    whole.legend(loc="lower right")
    return figure
