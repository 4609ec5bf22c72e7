"""Training runs to look at: accuracy on public data, noise, and ε over the steps."""

import math
from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING

from dither.reports.figures import BLUE, GREEN, ORANGE, VERMILION
from dither.training import TrainResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLES = ((BLUE, "-"), (ORANGE, "--"), (GREEN, ":"), (VERMILION, "-."))


def training_figure(runs: Mapping[str, TrainResult]) -> "Figure":
    """Draw runs side by side, by their names; those without noise have no part in the others."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.0, 4.2), layout="constrained")
    quality, noise, privacy = figure.subplots(1, 3)
    measured = [result.metrics for result in runs.values() if result.metrics]
    is_accuracy = bool(measured) and all("accuracy" in metrics for metrics in measured)
    name_of_metric = "accuracy" if is_accuracy else "loss"
    for (name, result), (colour, line) in zip(runs.items(), cycle(_STYLES), strict=False):
        style = {"color": colour, "linestyle": line, "linewidth": 2.0, "label": name}
        steps = [row.step for row in result.history]
        if result.metrics:
            quality.plot(steps, [row.metrics[name_of_metric] for row in result.history], **style)
        if math.isfinite(result.bound.epsilon):
            noise.plot(steps, [row.noise_multiplier for row in result.history], **style)
            privacy.plot([0, *steps], [0.0, *(row.epsilon for row in result.history)], **style)
    quality.set(title="on public test data", ylabel=name_of_metric)
    noise.set(title="noise", ylabel="noise multiplier z$_t$")
    privacy.set(title="privacy spent", ylabel="ε after t steps", ylim=(0.0, None))
    for axes in (quality, noise, privacy):
        axes.set_xlabel("step t")
        if axes.lines:
            axes.legend()
    return figure
