"""Where shaping and correlating the noise matter: against uniform noise, at equal ε.

48 cells: step sizes × sampling rate and steps × ε. In each, the noise that reaches the parameters,
Σ(η_t·z_t)², of matched and of optimal noise relative to uniform noise at the same certified ε, and
how much ε optimal noise saves at equal noise. `benchmarks.correlated` has correlated noise.
Run by ``make bench``; writes a record and two pictures.
"""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.progress import track

import dither
from benchmarks import correlated
from benchmarks.recording import RESULTS, record
from dither.reports import save_figure
from dither.schedules import Cosine, Exponential, InverseSqrt, Linear, Schedule

DELTA = 1e-5
EPSILONS = (0.3, 1.0, 3.0, 8.0)
DATA = {
    "q=256/60k, T=5,000": (256, 5_000),
    "q=1,024/60k, T=600": (1_024, 600),
    "q=4,096/60k, T=300": (4_096, 300),
}
SCHEDULES: dict[str, Schedule] = {
    "1/√(20+t)": InverseSqrt(20.0),
    "linear to 0": Linear(1.0, 1e-3),
    "cosine to 0": Cosine(1.0, 1e-3),
    "exponential": Exponential(1.0, 0.995),
}


def cell(schedule: Schedule, batch_size: int, steps: int, epsilon: float) -> dict[str, float]:
    """Return the three plans' noise, and the ε that optimal noise saves."""
    setting: dict[str, Any] = {
        "delta": DELTA,
        "dataset_size": 60_000,
        "batch_size": batch_size,
        "steps": steps,
        "stepsizes": schedule,
    }
    plans = {
        name: dither.plan(epsilon=epsilon, noise=name, **setting)
        for name in ("uniform", "matched", "optimal")
    }
    noise = {
        name: float(np.sum((made.stepsizes * made.noise_multipliers) ** 2))
        for name, made in plans.items()
    }
    optimal = plans["optimal"]
    scale = np.sqrt(noise["uniform"] / noise["optimal"])
    same_noise = dither.epsilon(
        optimal.noise_multipliers * scale, sample_rate=optimal.sample_rate, delta=DELTA
    )
    return {
        "matched": noise["matched"] / noise["uniform"],
        "optimal": noise["optimal"] / noise["uniform"],
        "epsilon saved": 1.0 - same_noise.epsilon / plans["uniform"].bound.epsilon,
    }


def draw(results: dict[str, dict[str, float]]) -> Figure:
    """Draw a heat map: one panel for each of the three figures."""
    rows = [f"{name}, {data}" for name in SCHEDULES for data in DATA]
    figure = Figure(figsize=(13.0, 6.0), layout="constrained")
    panels = {
        "matched": ("matched noise / uniform noise", "RdBu_r", (0.0, 2.0)),
        "optimal": ("optimal noise / uniform noise", "RdBu_r", (0.0, 2.0)),
        "epsilon saved": ("share of ε saved at equal noise", "Greens", (0.0, 0.4)),
    }
    for axes, (key, (title, colours, limits)) in zip(
        figure.subplots(1, 3, sharey=True), panels.items(), strict=True
    ):
        values = np.array([[results[f"{row}, ε={eps:g}"][key] for eps in EPSILONS] for row in rows])
        axes.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto")
        axes.set(title=title, xlabel="ε", xticks=range(len(EPSILONS)), yticks=range(len(rows)))
        axes.set_xticklabels([f"{eps:g}" for eps in EPSILONS])
        axes.set_yticklabels(rows)
        for (i, j), value in np.ndenumerate(values):
            far = abs(value - sum(limits) / 2) / (limits[1] - limits[0])
            dark = far > 0.3 if colours == "RdBu_r" else value > 0.7 * limits[1]
            ink = "white" if dark else "black"
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=8, color=ink)
    return figure


def main() -> None:
    """Fill the grid, print and record."""
    grid = [
        (f"{name}, {data}, ε={eps:g}", schedule, *DATA[data], eps)
        for name, schedule in SCHEDULES.items()
        for data in DATA
        for eps in EPSILONS
    ]
    results = {}
    for label, schedule, batch_size, steps, eps in track(grid, "shaping"):
        results[label] = cell(schedule, batch_size, steps, eps)
        print(label, {key: round(value, 3) for key, value in results[label].items()})
    save_figure(draw(results), RESULTS / "shaping.png")
    found = correlated.measure()
    save_figure(correlated.draw(found["cells"]), RESULTS / "correlated.png")
    record("shaping", "make bench", ("numpy", "scipy"), results, correlated=found)


if __name__ == "__main__":
    main()
