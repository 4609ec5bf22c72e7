"""The left half of the paper's figure 1, and its figure 2."""

from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from dither.reports.figures import BLUE, GREEN, ORANGE
from dither.schedules import InverseSqrt, SqrtToZero
from dither.types import FloatArray

_STEPS_PER_EPOCH = 196
_BELOW: dict[str, Any] = {
    "loc": "upper center",
    "bbox_to_anchor": (0.5, -0.14),
    "ncols": 2,
    "fontsize": 9,
}

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def theory_figure(
    *, reaching: dict[str, FloatArray], spent: dict[str, FloatArray], schedule: str
) -> "Figure":
    """Draw the noise that reaches the parameters, the privacy spent, and the paper's schedules.

    Args:
        reaching: η_t·α_t·σ over the steps, for "uniform" and for "matched" noise.
        spent: ε after each step, for the same two.
        schedule: how the left-hand panel's schedule is called.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _noise_and_privacy(left, reaching, spent, schedule)
    _schedules(right)
    return figure


def _noise_and_privacy(
    axes: "Axes", reaching: dict[str, FloatArray], spent: dict[str, FloatArray], schedule: str
) -> None:
    privacy = axes.twinx()
    marker = "." if reaching["uniform"].size < 30 else ""
    for name, line, width in (("matched", "-", 1.5), ("uniform", "--", 2.5)):
        t = np.arange(1, reaching[name].size + 1)
        style: dict[str, Any] = {"linestyle": line, "linewidth": width, "marker": marker}
        axes.plot(t, reaching[name], color=GREEN, label=f"noise, {name}", **style)
        privacy.plot(t, spent[name], color=BLUE, label=f"ε so far, {name}", **style)
    axes.set(xlabel="step t", ylabel="noise per coordinate, η$_t$·α$_t$·σ", yscale="log")
    axes.set_title("\n".join(wrap(schedule, 56)), fontsize=10)
    privacy.set_ylabel("ε so far, as the theorem counts it")
    axes.yaxis.label.set_color(GREEN)
    privacy.yaxis.label.set_color(BLUE)
    lines = [*axes.get_lines(), *privacy.get_lines()]
    axes.legend(lines, [str(line.get_label()) for line in lines], **_BELOW)


def _schedules(axes: "Axes") -> None:
    styles = {60: ":", 120: "--", 200: "-"}
    longest = max(styles) * _STEPS_PER_EPOCH
    axes.plot(InverseSqrt().stepsizes(longest), color=BLUE, label="1/√(20 + t)")
    for epochs, line in styles.items():
        eta = SqrtToZero().stepsizes(epochs * _STEPS_PER_EPOCH)
        axes.plot(eta, line, color=ORANGE, label=f"0.1 to 0 like √t, {epochs} epochs")
    axes.set(xlabel="step t", ylabel="step size η$_t$", ylim=(0.0, None))
    axes.set_title("the paper's two schedules (196 steps an epoch)", fontsize=10)
    axes.legend(**_BELOW)
