"""What the runs of a ledger have spent, one after the other."""

from typing import TYPE_CHECKING

import numpy as np

from dither.ledger import Ledger
from dither.reports.figures import BLUE, ORANGE, VERMILION

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def ledger_figure(ledger: Ledger, delta: float) -> "Figure":
    """Draw ε of every run by itself, and of all runs up to it together."""
    from matplotlib.figure import Figure

    names = [*ledger.runs]
    alone = [ledger.total_of(name, delta=delta).epsilon for name in names]
    together = [ledger.total_of(*names[: k + 1], delta=delta).epsilon for k in range(len(names))]
    places = np.arange(len(names))
    figure = Figure(figsize=(max(6.0, 0.7 * len(names) + 4.0), 4.2), layout="constrained")
    axes = figure.subplots()
    axes.bar(places, np.where(np.isfinite(alone), alone, 0.0), color=ORANGE, label="the run alone")
    axes.plot(places, together, color=BLUE, marker="o", label="all runs up to it")
    if ledger.limit is not None:
        axes.axhline(
            ledger.limit.epsilon, color=VERMILION, linestyle="--",
            label=f"cap, at δ = {ledger.limit.delta:g}",
        )  # fmt: skip
    axes.set(title=f"privacy spent, {ledger.composition} composition", ylabel=f"ε at δ = {delta:g}")
    axes.set_ylim(0.0, None)
    axes.set_xticks(places, names, rotation=30, ha="right")
    axes.legend()
    return figure
