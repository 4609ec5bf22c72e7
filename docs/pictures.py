"""Draws the pictures of "Why shape the noise" into docs/images/: ``python docs/pictures.py``.

The plans are made here; where shaping matters comes from benchmarks/results/shaping.json.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import dither
from dither.accounting import renyi_divergences
from dither.reports import plan_figure, save_figure
from dither.reports.figures import BLUE, GREEN, ORANGE, VERMILION

DOCS = Path(__file__).parent
RECORD = DOCS.parent / "benchmarks/results/shaping.json"
RATE, STEPS, DELTA = 256 / 60_000, 5_000, 1e-5
PALETTES: dict[str, dict[Any, Any]] = {
    "light": {},
    "dark": {
        "axes.edgecolor": "#c9c9d1",
        "axes.facecolor": "#1e2129",
        "axes.labelcolor": "#e2e4e9",
        "figure.facecolor": "#1e2129",
        "legend.facecolor": "#1e2129",
        "legend.edgecolor": "#5a5f6d",
        "text.color": "#e2e4e9",
        "xtick.color": "#c9c9d1",
        "ytick.color": "#c9c9d1",
    },
}


@cache
def plans(epsilon: float) -> dict[str, dither.Plan]:
    """Return uniform, matched and optimal noise for the same ε."""
    return {
        name: dither.plan(
            epsilon=epsilon, delta=DELTA, dataset_size=60_000, batch_size=256, steps=STEPS,
            stepsizes=dither.schedules.InverseSqrt(20), noise=name,
        )
        for name in ("uniform", "matched", "optimal")
    }  # fmt: skip


def three_noises(epsilon: float) -> Figure:
    """Draw z_t, η_t·z_t and spent ε of the three noises."""
    return plan_figure(plans(epsilon))


def cost_of_a_step() -> Figure:
    """Draw what a sampled step costs over its noise, beside the theorem's 1/z²."""
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.subplots()
    z = np.geomspace(0.4, 10.0, 120)
    real = np.array([renyi_divergences([each], sample_rate=RATE, orders=[2.0])[0] for each in z])
    axes.plot(z, (z[-1] / z) ** 2 * real[-1], color=VERMILION, linestyle=":", linewidth=2.0,
              label="the theorem's cost, 1/z²")  # fmt: skip
    axes.plot(z, real, color=BLUE, linewidth=2.0, label="Rényi divergence of order 2")
    axes.set(xscale="log", yscale="log", xlabel="noise multiplier z", ylabel="cost of one step")
    axes.set_xticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
    axes.set_title("what a step costs, q = 256/60,000", fontsize=11)
    axes.legend()
    return figure


def where_it_matters() -> Figure:
    """Draw the noise that reaches the parameters, relative to uniform noise, over ε."""
    cells = json.loads(RECORD.read_text(encoding="utf-8"))["results"]
    figure = Figure(figsize=(11.0, 4.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    data = "q=256/60k, T=5,000"
    epsilons = (0.3, 1, 3, 8)
    colours = {"1/√(20+t)": BLUE, "linear to 0": ORANGE, "cosine to 0": GREEN,
               "exponential": VERMILION}  # fmt: skip
    for axes, noise in zip(panels, ("matched", "optimal"), strict=True):
        for schedule, colour in colours.items():
            ratio = [cells[f"{schedule}, {data}, ε={epsilon:g}"][noise] for epsilon in epsilons]
            axes.plot(epsilons, ratio, color=colour, marker="o", linewidth=2.0, label=schedule)
        axes.axhline(1.0, color="grey", linewidth=0.8)
        axes.set(xscale="log", xlabel="ε", title=f"{noise} noise, relative to uniform noise")
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axes.minorticks_off()
    panels[0].set(ylabel="Σ(η$_t$·z$_t$)² at equal ε", ylim=(0.0, None))
    panels[0].legend(title="step sizes")
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "why-three-noises": lambda: three_noises(1.0),
    "why-three-noises-small-epsilon": lambda: three_noises(0.3),
    "why-cost": cost_of_a_step,
    "why-where": where_it_matters,
}


def main() -> None:
    """Draw every picture for the light and for the dark palette."""
    for name, draw in PICTURES.items():
        for palette, settings in PALETTES.items():
            with mpl.rc_context(settings):
                save_figure(draw(), DOCS / "images" / f"{name}-{palette}.png")


if __name__ == "__main__":
    main()
