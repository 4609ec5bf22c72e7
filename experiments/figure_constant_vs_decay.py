"""Claim of the paper's appendix: for DP-SGD a decaying step size is better than a constant one.

A CNN from random initialisation on MNIST (and here also Fashion-MNIST), uniform noise of σ times
the clip norm 1 on the sum of clipped gradients, η_t = 1/√(2+ct); c = 0 is constant. Test error over
the epochs, with ε by numerical composition and by the theorem. In the paper every c > 0 is better.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from dither import theory
from experiments.reproduction.curves import curve
from experiments.reproduction.experiment import Profile, Section
from experiments.reproduction.network import NetworkRun, NetworkSetting
from experiments.reproduction.noises import DELTA
from experiments.reproduction.paper import Paper
from experiments.reproduction.run import Known, Run
from experiments.reproduction.summaries import (
    format_entry,
    format_with_spread,
    markdown_table,
    summary,
)

_ENDS, _ALL = (1.6, 12.8), (1.6, 3.2, 6.4, 12.8)
_COLOURS = ("#000000", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7")


@dataclass(frozen=True)
class Grid:
    """What is run, with which σ by set."""

    setting: NetworkSetting
    sigmas: dict[str, tuple[float, ...]]
    slopes: tuple[float, ...]


_GRIDS = {
    "smoke": Grid(NetworkSetting(600, 60, 2), {"mnist": _ENDS, "fashion-mnist": _ENDS}, (0.0, 0.5)),
    "small": Grid(
        NetworkSetting(epochs=4),
        {"mnist": _ALL, "fashion-mnist": _ENDS},
        (0.0, 1e-2, 1e-1, 0.5),
    ),
    "full": Grid(
        NetworkSetting(),
        {"mnist": _ALL, "fashion-mnist": _ALL},
        (0.0, 1e-5, 1e-3, 1e-2, 1e-1, 0.5),
    ),
}


@dataclass(frozen=True)
class FigureConstantVsDecay:
    """Test error over the epochs, a panel for each σ."""

    name: str = "figure-constant-vs-decay"
    title: str = "Constant against decaying step sizes: a CNN on MNIST and Fashion-MNIST"

    def runs(self, profile: Profile, seeds: Sequence[int], known: Known) -> list[Run]:
        """Return one run a set, σ, c and seed."""
        grid = _GRIDS[profile.name]
        return [
            NetworkRun(grid.setting, dataset, sigma, c, seed)
            for (dataset, sigmas), seed in product(grid.sigmas.items(), seeds)
            for sigma, c in product(sigmas, grid.slopes)
        ]

    def section(
        self, profile: Profile, seeds: Sequence[int], known: Known, paper: Paper | None
    ) -> Section:
        """Return a picture and a table for each set."""
        text, figures = "", {}
        for dataset in _GRIDS[profile.name].sigmas:
            name = f"{self.name}-{dataset}.png"
            figures[name] = draw(profile, dataset, seeds, known)
            text += f"#### {dataset}: test error at the end, percent\n\n"
            text += _table(profile, dataset, seeds, known)
            text += f"\n![Test error over the epochs, {dataset}]({name})\n\n"
        return Section(text, figures)


def _seeds_of(
    grid: Grid, dataset: str, sigma: float, c: float, seeds: Sequence[int]
) -> list[NetworkRun]:
    return [NetworkRun(grid.setting, dataset, sigma, c, seed) for seed in seeds]


def _table(profile: Profile, dataset: str, seeds: Sequence[int], known: Known) -> str:
    grid, rows = _GRIDS[profile.name], []
    for sigma in grid.sigmas[dataset]:
        cells = []
        for c in grid.slopes:
            found = summary(_seeds_of(grid, dataset, sigma, c, seeds), known, "last")
            cells.append("–" if found is None else format_with_spread(100.0 - found.mean, found.sd))
        run = _seeds_of(grid, dataset, sigma, grid.slopes[0], seeds)[0]
        cost = None if run not in known else known[run].epsilon
        rows.append([f"{sigma:g}", format_entry(cost, ".2f"), *cells])
    header = ["σ", "real ε", *(f"c = {c:g}" for c in grid.slopes)]
    return markdown_table(header, rows)


def draw(profile: Profile, dataset: str, seeds: Sequence[int], known: Known) -> Figure:
    """Draw a panel for each σ."""
    grid = _GRIDS[profile.name]
    rows = len(grid.sigmas[dataset]) // 2
    figure = Figure(figsize=(12.0, 4.2 * rows), layout="constrained")
    panels = figure.subplots(rows, 2, squeeze=False).flat
    for axes, sigma in zip(panels, grid.sigmas[dataset], strict=True):
        for c, colour in zip(grid.slopes, _COLOURS, strict=False):
            found = curve(_seeds_of(grid, dataset, sigma, c, seeds), known)
            if found is not None:
                epochs = found.steps / grid.setting.steps_per_epoch
                error, marker = 100.0 - found.mean, "o" if c > 0.0 else "s"
                axes.errorbar(
                    epochs, error, found.sd, marker=marker, color=colour, label=f"c = {c:g}"
                )
        axes.set(title=f"σ = {sigma:g}", xlabel="epoch", ylabel="test error, %", yscale="log")
        axes.set_xticks(range(1, grid.setting.epochs + 1, max(1, grid.setting.epochs // 10)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(StrMethodFormatter("{x:g}"))
        behind = axes.twinx()
        _draw_cost(behind, _seeds_of(grid, dataset, sigma, 0.0, [0])[0])
    handles = [*axes.get_legend_handles_labels()[0], *behind.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _draw_cost(axes: Axes, run: NetworkRun) -> None:
    """Draw ε over the epochs, by numerical composition and by the theorem."""
    own, grey = run.setting, "#999999"
    epochs = np.arange(1, own.epochs + 1)
    plan = run.plan()
    numerical = [plan.spent(int(epoch) * own.steps_per_epoch) for epoch in epochs]
    theorem = [
        theory.adp_epsilon(
            np.ones(int(epoch) * own.steps_per_epoch),
            sigma=run.sigma * plan.clip_norm / own.batch_size,
            clip_norm=plan.clip_norm,
            dataset_size=own.images,
            batch_size=own.batch_size,
            delta=DELTA,
        )
        for epoch in epochs
    ]
    axes.plot(epochs, numerical, color=grey, linestyle="--", label="numerical ε")
    axes.plot(epochs, theorem, color=grey, linestyle=":", label="the theorem's ε")
    axes.set(ylabel="ε (grey)", yscale="log")


EXPERIMENT = FigureConstantVsDecay()
