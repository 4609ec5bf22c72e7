"""Figures of plans, training runs, ledgers, audits and the paper's theory, and how to save them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from itertools import cycle
from pathlib import Path
from textwrap import fill, wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from dither import validate
from dither.ledger import Ledger
from dither.ledger.files import write_atomic
from dither.noise.iterates import iterate_variances
from dither.planning import Plan
from dither.schedules import InverseSqrt, SqrtToZero
from dither.training import TrainResult
from dither.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".pdf", ".png", ".svg")

# Okabe and Ito's colours, distinguishable by colour-blind readers.
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"


def save_figure(figure: "Figure", path: str | Path) -> Path:
    """Write a figure as .pdf, .png or .svg. The file is replaced atomically.

    Example:
        >>> import dither, tempfile
        >>> plan = dither.plan(epsilon=1.0, delta=1e-3, dataset_size=9, batch_size=9, steps=3)
        >>> path = tempfile.mkdtemp() + "/plan.svg"
        >>> save_figure(plan_figure({"optimal": plan}), path).name
        'plan.svg'
    """
    target = validate.output_file(SUFFIXES, plot=path).resolve()
    image = BytesIO()
    figure.savefig(image, format=target.suffix[1:].lower(), dpi=150)
    write_atomic(target, image.getvalue())
    return target


_NOISE_STYLES = {
    "uniform": (ORANGE, "--"),
    "matched": (VERMILION, ":"),
    "optimal": (BLUE, "-"),
    "correlated": (GREEN, "-."),
}


def plan_figure(plans: Mapping[str, Plan]) -> "Figure":
    """Draw the noise of plans, the noise in the iterates, and ε over the steps.

    The noise in an iterate is its standard deviation as in `dither.noise.iterates`, which compares
    correlated with independent noise.

    Args:
        plans: plans by the name to show. "uniform", "matched", "optimal" and "correlated" have the
            same colours in all figures.

    Example:
        >>> import dither
        >>> plan = dither.plan(epsilon=1.0, delta=1e-3, dataset_size=9, batch_size=9, steps=3)
        >>> [axes.get_title() for axes in plan_figure({"optimal": plan}).axes]
        ['noise', 'noise in the iterates', 'privacy spent']
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.0, 4.2), layout="constrained")
    noise, iterates, privacy = figure.subplots(1, 3)
    styles = _plan_styles(plans)
    for name, plan in plans.items():
        colour, line = styles[name]
        t = np.arange(1, plan.steps + 1)
        style = {"color": colour, "linestyle": line, "linewidth": 2.0, "label": name}
        noise.plot(t, plan.noise_multipliers, **style)
        variances = iterate_variances(
            plan.stepsizes, plan.noise_multipliers, correlation=plan.correlation
        )
        iterates.plot(t, np.sqrt(variances), **style)
        privacy.plot(*plan.spending(), **style)
    noise.set(title="noise", ylabel="noise multiplier z$_t$", yscale="log")
    iterates.set(title="noise in the iterates", ylabel="standard deviation (clip norms)")
    target = max(plan.bound.epsilon for plan in plans.values())
    privacy.axhline(target, color="grey", linewidth=0.8)
    privacy.set(title="privacy spent", ylabel="ε after t steps", ylim=(0.0, 1.08 * target))
    for axes in (noise, iterates, privacy):
        axes.set_xlabel("step t")
    noise.legend()
    return figure


def _plan_styles(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the style of each plan: that of its noise, or else one that no other plan has."""
    names = [*names]
    free = [style for noise, style in _NOISE_STYLES.items() if noise not in names]
    others = cycle(free or _NOISE_STYLES.values())
    return {name: _NOISE_STYLES.get(name) or next(others) for name in names}


_WAY_COLOURS = ("dimgrey", BLUE, GREEN, ORANGE, VERMILION)


def demo_figure(
    accuracies: Mapping[str, Sequence[float]],
    curves: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
    *,
    epsilon: float,
) -> "Figure":
    """Draw how accurate ways to train are, and how accuracy grows while ε is spent.

    Args:
        accuracies: of the runs with several seeds, in percent, by the name of the way.
        curves: pairs of ε and accuracy along the same runs; a way without is a line at its mean.
        epsilon: ε of the ways that are private.

    Example:
        >>> curves = {"mine": [[(0.5, 60.0), (1.0, 80.0)], [(0.5, 70.0), (1.0, 90.0)]]}
        >>> figure = demo_figure({"mine": [80.0, 90.0]}, curves, epsilon=1.0)
        >>> [axes.get_title() for axes in figure.axes]
        ['at the end, ε = 1', 'while ε is spent']
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    ends, growth = figure.subplots(1, 2, width_ratios=(1.0, 1.1))
    _ends(ends, accuracies)
    ends.set(title=f"at the end, ε = {epsilon:g}", xlabel="test accuracy, %")
    for (name, values), colour in zip(accuracies.items(), cycle(_WAY_COLOURS), strict=False):
        if name not in curves:
            growth.axhline(float(np.mean(values)), color=colour, linestyle="--", label=name)
            continue
        runs = np.array(curves[name])
        spent, mean = runs[0, :, 0], runs[:, :, 1].mean(0)
        spread = runs[:, :, 1].std(0, ddof=len(runs) > 1)
        growth.plot(spent, mean, color=colour, linewidth=2.0, label=name)
        growth.fill_between(spent, mean - spread, mean + spread, color=colour, alpha=0.2, lw=0.0)
    growth.set(title="while ε is spent", xlabel="ε spent so far", ylabel="test accuracy, %")
    growth.set(xlim=(0.0, 1.03 * epsilon), ylim=(0.0, 100.0))
    growth.legend(loc="lower right", fontsize=9)
    return figure


def _ends(axes: "Axes", accuracies: Mapping[str, Sequence[float]]) -> None:
    """Draw mean and standard deviation of each way, and its runs below them."""
    for place, (values, colour) in enumerate(
        zip(accuracies.values(), cycle(_WAY_COLOURS), strict=False)
    ):
        mean, spread = float(np.mean(values)), float(np.std(values, ddof=len(values) > 1))
        axes.errorbar(
            mean, place, xerr=spread, color=colour, fmt="o", markersize=8, capsize=4, linewidth=2.0
        )
        axes.plot(values, np.full(len(values), place + 0.25), "|", color=colour)
        axes.annotate(
            f"{mean:.1f} ± {spread:.1f}", (mean, place), xytext=(0, 9),
            textcoords="offset points", ha="center", color=colour,
        )  # fmt: skip
    axes.set_yticks(range(len(accuracies)), [fill(name, 18) for name in accuracies])
    axes.set_ylim(len(accuracies) - 0.5, -0.7)
    axes.margins(x=0.2)


_RUN_STYLES = ((BLUE, "-"), (ORANGE, "--"), (GREEN, ":"), (VERMILION, "-."))


def training_figure(runs: Mapping[str, TrainResult]) -> "Figure":
    """Draw metrics on public data, noise, and ε over the steps of training runs.

    Runs without noise appear in the first panel only.

    Args:
        runs: results of `train`, by the name to show.

    Example:
        >>> import dither, torch
        >>> plan = dither.plan(epsilon=1.0, delta=1e-3, dataset_size=9, batch_size=9, steps=3)
        >>> data = torch.zeros(9, 2), torch.zeros(9, dtype=torch.int64)
        >>> result = dither.train(torch.nn.Linear(2, 2), data, plan, progress=False)
        >>> [axes.get_title() for axes in training_figure({"run 1": result}).axes]
        ['on public test data', 'noise', 'privacy spent']
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.0, 4.2), layout="constrained")
    quality, noise, privacy = figure.subplots(1, 3)
    measured = [result.metrics for result in runs.values() if result.metrics]
    is_accuracy = bool(measured) and all("accuracy" in metrics for metrics in measured)
    metric = "accuracy" if is_accuracy else "loss"
    for (name, result), (colour, line) in zip(runs.items(), cycle(_RUN_STYLES), strict=False):
        style = {"color": colour, "linestyle": line, "linewidth": 2.0, "label": name}
        steps = [row.step for row in result.history]
        if result.metrics:
            quality.plot(steps, [row.metrics[metric] for row in result.history], **style)
        if math.isfinite(result.bound.epsilon):
            noise.plot(steps, [row.noise_multiplier for row in result.history], **style)
            privacy.plot([0, *steps], [0.0, *(row.epsilon for row in result.history)], **style)
    quality.set(title="on public test data", ylabel=metric)
    noise.set(title="noise", ylabel="noise multiplier z$_t$")
    privacy.set(title="privacy spent", ylabel="ε after t steps", ylim=(0.0, None))
    for axes in (quality, noise, privacy):
        axes.set_xlabel("step t")
        if axes.lines:
            axes.legend()
    return figure


def ledger_figure(ledger: Ledger, delta: float) -> "Figure":
    """Draw ε of each run of a ledger, and of all runs up to it together.

    Example:
        >>> import dither, tempfile
        >>> ledger = dither.ledger.Ledger(tempfile.mkdtemp() + "/ledger.sqlite")
        >>> ledger_figure(ledger, delta=1e-5).axes[0].get_ylabel()
        'ε at δ = 1e-05'
        >>> ledger.close()
    """
    from matplotlib.figure import Figure

    names = [*ledger.runs]
    alone = [ledger.total_of(name, delta=delta).epsilon for name in names]
    together = [ledger.total_of(*names[: k + 1], delta=delta).epsilon for k in range(len(names))]
    places = np.arange(len(names))
    figure = Figure(figsize=(max(6.0, 0.7 * len(names) + 4.0), 4.2), layout="constrained")
    axes = figure.subplots()
    axes.bar(places, np.where(np.isfinite(alone), alone, 0.0), color=ORANGE, label="run alone")
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


def audit_figure(
    roc: FloatArray, allowed: Callable[[FloatArray], FloatArray] | None, verdict: str
) -> "Figure":
    """Draw an attack's ROC curve, on linear and on logarithmic axes.

    Args:
        roc: false positive rates and true positive rates.
        allowed: the largest true positive rate that the claim allows at given false positive
            rates, or None.
        verdict: the title.

    Example:
        >>> import numpy as np
        >>> roc = np.array([[0.0, 0.5, 1.0], [0.0, 0.6, 1.0]])
        >>> len(audit_figure(roc, None, "not refuted").axes)
        2
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 5.2), layout="constrained")
    figure.suptitle(fill(verdict, 110), fontsize=10)
    linear, logarithmic = figure.subplots(1, 2)
    ranges = (linear, np.linspace(0.0, 1.0, 501)), (logarithmic, np.geomspace(1e-4, 1.0, 301))
    for axes, alpha in ranges:
        axes.plot(alpha, alpha, color="grey", linewidth=0.8, label="random guessing")
        if allowed is not None:
            upper = allowed(alpha)
            axes.plot(alpha, upper, color=VERMILION, linestyle="--", label="allowed by the claim")
            axes.fill_between(alpha, upper, 1.0, color=VERMILION, alpha=0.08)
        axes.plot(*roc, color=BLUE, linewidth=2.0, label="attack")
        axes.set(xlabel="false positive rate", ylabel="true positive rate", ylim=(0.0, 1.0))
    linear.set(xlim=(0.0, 1.0))
    logarithmic.set(xscale="log", yscale="log", xlim=(1e-4, 1.0), ylim=(1e-4, 1.0))
    linear.legend(loc="lower right")
    return figure


_STEPS_PER_EPOCH = 196
_LEGEND_BELOW: dict[str, Any] = {
    "loc": "upper center",
    "bbox_to_anchor": (0.5, -0.14),
    "ncols": 2,
    "fontsize": 9,
}


def theory_figure(
    *, parameter_noise: dict[str, FloatArray], spent: dict[str, FloatArray], schedule: str
) -> "Figure":
    """Draw the left half of the paper's figure 1, and its figure 2.

    Args:
        parameter_noise: η_t·α_t·σ over the steps, for "uniform" and for "matched" noise.
        spent: ε after each step, for the same two.
        schedule: the title of the left panel.

    Example:
        >>> import numpy as np
        >>> values = {"uniform": np.ones(3), "matched": np.ones(3)}
        >>> len(theory_figure(parameter_noise=values, spent=values, schedule="constant").axes)
        3
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _noise_and_privacy(left, parameter_noise, spent, schedule)
    _schedules(right)
    return figure


def _noise_and_privacy(
    axes: "Axes",
    parameter_noise: dict[str, FloatArray],
    spent: dict[str, FloatArray],
    schedule: str,
) -> None:
    privacy = axes.twinx()
    marker = "." if parameter_noise["uniform"].size < 30 else ""
    for name, line, width in (("matched", "-", 1.5), ("uniform", "--", 2.5)):
        t = np.arange(1, parameter_noise[name].size + 1)
        style: dict[str, Any] = {"linestyle": line, "linewidth": width, "marker": marker}
        axes.plot(t, parameter_noise[name], color=GREEN, label=f"noise, {name}", **style)
        privacy.plot(t, spent[name], color=BLUE, label=f"ε so far, {name}", **style)
    axes.set(xlabel="step t", ylabel="noise per coordinate, η$_t$·α$_t$·σ", yscale="log")
    axes.set_title("\n".join(wrap(schedule, 56)), fontsize=10)
    privacy.set_ylabel("ε so far, by the theorem")
    axes.yaxis.label.set_color(GREEN)
    privacy.yaxis.label.set_color(BLUE)
    lines = [*axes.get_lines(), *privacy.get_lines()]
    axes.legend(lines, [str(line.get_label()) for line in lines], **_LEGEND_BELOW)


def _schedules(axes: "Axes") -> None:
    styles = {60: ":", 120: "--", 200: "-"}
    longest = max(styles) * _STEPS_PER_EPOCH
    axes.plot(InverseSqrt().stepsizes(longest), color=BLUE, label="1/√(20 + t)")
    for epochs, line in styles.items():
        eta = SqrtToZero().stepsizes(epochs * _STEPS_PER_EPOCH)
        axes.plot(eta, line, color=ORANGE, label=f"0.1 to 0 like √t, {epochs} epochs")
    axes.set(xlabel="step t", ylabel="step size η$_t$", ylim=(0.0, None))
    axes.set_title("the paper's two schedules (196 steps per epoch)", fontsize=10)
    axes.legend(**_LEGEND_BELOW)
