"""A plan to look at: noise, noise that reaches the parameters, and ε over the steps."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from dither.planning import Plan
from dither.reports.figures import BLUE, ORANGE, VERMILION

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLES = {
    "uniform": (ORANGE, "--"),
    "matched": (VERMILION, ":"),
    "optimal": (BLUE, "-"),
}


def plan_figure(plans: Mapping[str, Plan]) -> "Figure":
    """Draw plans side by side, named "uniform", "matched" and "optimal"."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.0, 4.2), layout="constrained")
    noise, reaching, privacy = figure.subplots(1, 3)
    for name, made in plans.items():
        colour, line = _STYLES[name]
        t = np.arange(1, made.steps + 1)
        style = {"color": colour, "linestyle": line, "linewidth": 2.0, "label": name}
        noise.plot(t, made.noise_multipliers, **style)
        reaching.plot(t, made.stepsizes * made.noise_multipliers, **style)
        privacy.plot(*made.spending(), **style)
    noise.set(title="noise", ylabel="noise multiplier z$_t$", yscale="log")
    reaching.set(
        title="noise that reaches the parameters", ylabel="η$_t$·z$_t$ (clip norms)", yscale="log"
    )
    target = max(made.bound.epsilon for made in plans.values())
    privacy.axhline(target, color="grey", linewidth=0.8)
    privacy.set(title="privacy spent", ylabel="ε after t steps", ylim=(0.0, 1.08 * target))
    for axes in (noise, reaching, privacy):
        axes.set_xlabel("step t")
    noise.legend()
    return figure
