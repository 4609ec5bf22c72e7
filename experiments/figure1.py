"""Figure 1 of the paper: matched noise spreads over the run, and the accuracy it gives.

η_t = 1/√(20+t), C_G = 2.5, ε̄ = 3.2, 120 epochs. Left: the noise that reaches the parameters, and
the ε spent over the iterations by the theorem and by numerical composition. Right: the accuracy,
under three accountings: what shaping buys is between the lines of a panel, what tight accounting
buys is between the panels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dither import theory
from experiments.reproduction.curves import draw_accuracy, draw_noise
from experiments.reproduction.decay_table import METRICS, Place, seeds_of
from experiments.reproduction.experiment import Profile, Section
from experiments.reproduction.head import HeadRun
from experiments.reproduction.looks import ACCOUNTING_NAMES, NOISE_NAMES, line_of
from experiments.reproduction.noises import ACCOUNTINGS, NOISES, noise_multipliers
from experiments.reproduction.paper import Paper
from experiments.reproduction.run import Known, Run
from experiments.reproduction.summaries import format_entry, markdown_table, summary

_SCHEDULE = "inverse_sqrt"
_PLACES = {
    "smoke": Place(3.2, 2.5, 2),
    "small": Place(3.2, 2.5, 120),
    "full": Place(3.2, 2.5, 120),
}


@dataclass(frozen=True)
class Figure1:
    """Noise, ε and accuracy at one setting."""

    name: str = "figure1"
    title: str = "Noise and ε over the iterations, and accuracy, at C_G = 2.5 and ε̄ = 3.2"

    def runs(self, profile: Profile, seeds: Sequence[int], known: Known) -> list[Run]:
        """Return one run per noise, accounting and seed."""
        place = _PLACES[profile.name]
        return [
            run
            for accounting, noise in product(ACCOUNTINGS, NOISES)
            for run in seeds_of(profile, _SCHEDULE, place, noise, accounting, seeds)
        ]

    def section(
        self, profile: Profile, seeds: Sequence[int], known: Known, paper: Paper | None
    ) -> Section:
        """Return both halves, and the numbers behind the second."""
        text = (
            "![Noise and ε over the iterations](figure1-noise.png)\n\n"
            "![Accuracy over the iterations](figure1-accuracy.png)\n\n"
        )
        figures = {
            "figure1-noise.png": draw_noise_and_cost(profile),
            "figure1-accuracy.png": draw_accuracies(profile, seeds, known),
        }
        return Section(text + _table(profile, seeds, known), figures)


def _table(profile: Profile, seeds: Sequence[int], known: Known) -> str:
    rows = []
    for accounting, noise in product(ACCOUNTINGS, NOISES):
        runs = seeds_of(profile, _SCHEDULE, _PLACES[profile.name], noise, accounting, seeds)
        cost = next((known[run].epsilon for run in runs if run in known), None)
        found = [format_entry(summary(runs, known, metric)) for metric in METRICS]
        rows.append(
            [ACCOUNTING_NAMES[accounting], NOISE_NAMES[noise], format_entry(cost, ".3f"), *found]
        )
    return markdown_table(["accounting", "noise", "real ε", *METRICS.values()], rows)


def draw_noise_and_cost(profile: Profile) -> Figure:
    """Draw the noise that reaches the parameters, and what was spent."""
    figure = Figure(figsize=(11.0, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    place = _PLACES[profile.name]
    draw_noise(left, profile, _SCHEDULE, place, "theorem")
    left.legend(fontsize=8)
    for noise in NOISES:
        run = seeds_of(profile, _SCHEDULE, place, noise, "theorem", [0])[0]
        _draw_cost(right, run)
    right.set(xlabel="iteration t", ylabel="ε spent", yscale="log")
    right.legend(fontsize=8)
    return figure


def _draw_cost(axes: Axes, run: HeadRun) -> None:
    z = noise_multipliers(run.mechanism)
    spent = theory.adp_spent(z, epsilon=16.0 * run.eps_bar)
    look = {"color": line_of(run.noise)["color"]}
    axes.plot(range(1, z.size + 1), spent, linestyle=":", label=f"theorem, {run.noise}", **look)
    knots, costs = run.mechanism.plan(1.0).spending()
    axes.plot(knots, costs, linestyle="-", label=f"numerical, {run.noise}", **look)


def draw_accuracies(profile: Profile, seeds: Sequence[int], known: Known) -> Figure:
    """Draw a panel for each accounting."""
    figure = Figure(figsize=(12.0, 4.0), layout="constrained")
    panels = figure.subplots(1, len(ACCOUNTINGS), sharey=True)
    for axes, accounting in zip(panels, ACCOUNTINGS, strict=True):
        place = _PLACES[profile.name]
        draw_accuracy(axes, profile, _SCHEDULE, place, accounting, seeds, known)
        axes.set_title(ACCOUNTING_NAMES[accounting], fontsize=9)
    if panels[0].get_lines():
        panels[0].legend(fontsize=8)
    return figure


EXPERIMENT = Figure1()
