"""The left half of the paper's figure 1, and its figure 2."""

from typing import TYPE_CHECKING

import numpy as np

from dither.reports.figures import BLUE, GREEN, ORANGE
from dither.schedules import InverseSqrt, SqrtToZero
from dither.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def theory_figure(
    *,
    reaching: dict[str, FloatArray],
    spent: dict[str, FloatArray],
    steps_per_epoch: int,
    schedule: str,
) -> "Figure":
    """Draw the noise that reaches the parameters, the privacy spent, and the paper's schedules.

    Args:
        reaching: η_t·α_t·σ over the steps, for "uniform" and for "matched" noise.
        spent: ε after each step, for the same two.
        steps_per_epoch: how many steps an epoch has in the right-hand panel.
        schedule: how the left-hand panel's schedule is called.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _noise_and_privacy(left, reaching, spent, schedule)
    _schedules(right, steps_per_epoch)
    return figure


def _noise_and_privacy(
    axes: "Axes", reaching: dict[str, FloatArray], spent: dict[str, FloatArray], schedule: str
) -> None:
    privacy = axes.twinx()
    for name, line in (("uniform", "--"), ("matched", "-")):
        t = np.arange(1, reaching[name].size + 1)
        axes.plot(t, reaching[name], line, color=GREEN, label=f"noise, {name}")
        privacy.plot(t, spent[name], line, color=BLUE, label=f"ε so far, {name}")
    axes.set(title=schedule, xlabel="step t", ylabel="noise per coordinate, η$_t$·α$_t$·σ")
    axes.set_yscale("log")
    privacy.set_ylabel("ε spent so far, by the theorem")
    axes.yaxis.label.set_color(GREEN)
    privacy.yaxis.label.set_color(BLUE)
    lines = [*axes.get_lines(), *privacy.get_lines()]
    axes.legend(lines, [str(line.get_label()) for line in lines], loc="center right", fontsize=9)


def _schedules(axes: "Axes", steps_per_epoch: int) -> None:
    styles = {60: ":", 120: "--", 200: "-"}
    longest = max(styles) * steps_per_epoch
    axes.plot(InverseSqrt().stepsizes(longest), color=BLUE, label="1/√(20 + t)")
    for epochs, line in styles.items():
        eta = SqrtToZero().stepsizes(epochs * steps_per_epoch)
        axes.plot(eta, line, color=ORANGE, label=f"0.1 to 0 like √t, {epochs} epochs")
    axes.set(title="the paper's two schedules", xlabel="step t", ylabel="step size η$_t$")
    axes.set_ylim(0.0, 0.12)
    axes.legend(fontsize=9)
