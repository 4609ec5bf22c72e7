"""The paper's two tables for decaying step sizes: one layout, two schedules."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.reproduction.experiment import Profile, Section
from experiments.reproduction.head import HeadRun
from experiments.reproduction.looks import ACCOUNTING_NAMES, CIFAR, NOISE_LOOKS, NOISE_NAMES
from experiments.reproduction.noises import NOISES
from experiments.reproduction.paper import Cell, Number, Paper
from experiments.reproduction.run import Known, Run
from experiments.reproduction.summaries import (
    Agreement,
    Gap,
    Summary,
    format_entry,
    gap,
    markdown_table,
    summary,
)

METRICS = {"best": "best iterate", "last": "last iterate"}
_LEFT_OUT = (
    "Cells in which the paper has an accuracy below 15 %, which it leaves out of account, or no "
    "gap at all, are left out."
)
_BEST = (
    "The best iterate is the best of all that were measured on the test images, as in the paper: "
    "a choice by test data, the same for all noises."
)
ACCOUNTINGS = ("theorem", "real")
_ALGORITHMS = {"uniform": "dp", "matched": "adp"}
_TOO_LOW = 15.0
"""Gaps where an accuracy is below this, in percent, the paper leaves out of account."""


@dataclass(frozen=True)
class DecayGrid:
    """The cells of a table."""

    eps_bars: tuple[float, ...]
    clip_norms: tuple[float, ...]
    epochs: tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """A column of the table, in a block of rows."""

    eps_bar: float
    clip_norm: float
    epochs: int


def seeds_of(
    profile: Profile, schedule: str, place: Place, noise: str, accounting: str, seeds: Sequence[int]
) -> list[HeadRun]:
    """Return one run per seed; calibrated uniform noise is the theorem's own."""
    if noise == "uniform" and accounting == "real":
        accounting = "theorem"
    where = place.epochs, place.eps_bar, place.clip_norm
    return [HeadRun(profile.head, schedule, *where, noise, accounting, seed) for seed in seeds]


@dataclass(frozen=True)
class DecayTable:
    """A table of accuracies over ε̄, C_G and epochs."""

    name: str
    title: str
    schedule: str
    grids: dict[str, DecayGrid]

    def runs(self, profile: Profile, seeds: Sequence[int], known: Known) -> list[Run]:
        """Return all its runs, the shorter ones first."""
        return [
            run
            for place, seed, accounting, noise in product(
                self._places(profile), seeds, ACCOUNTINGS, NOISES
            )
            for run in seeds_of(profile, self.schedule, place, noise, accounting, [seed])
        ]

    def section(
        self, profile: Profile, seeds: Sequence[int], known: Known, paper: Paper | None
    ) -> Section:
        """Return the tables of both metrics and accountings, and a picture of the gaps."""
        filled = _Filled(self, profile, seeds, known, paper)
        parts = []
        for metric, accounting in product(METRICS, ACCOUNTINGS):
            parts.append(f"#### {CIFAR}, {METRICS[metric]}, {ACCOUNTING_NAMES[accounting]}\n")
            parts.append(filled.table(metric, accounting))
            if paper is not None:
                agreement = filled.agreement(metric, accounting)
                parts.append(f"Matched against uniform noise: {agreement}. {_LEFT_OUT}\n")
        picture = f"{self.name}.png"
        parts.append(f"![{CIFAR}: gaps to uniform noise]({picture})\n")
        return Section("\n".join([filled.costs(), _BEST, "", *parts]), {picture: filled.figure()})

    def _places(self, profile: Profile) -> list[Place]:
        grid = self.grids[profile.name]
        columns = product(grid.epochs, grid.eps_bars, grid.clip_norms)
        return [Place(eps_bar, clip_norm, epochs) for epochs, eps_bar, clip_norm in columns]


@dataclass(frozen=True)
class _Filled:
    """A table with what is known of it."""

    table_of: DecayTable
    profile: Profile
    seeds: Sequence[int]
    known: Known
    paper: Paper | None

    @property
    def grid(self) -> DecayGrid:
        return self.table_of.grids[self.profile.name]

    def summary(self, place: Place, noise: str, accounting: str, metric: str) -> Summary | None:
        schedule = self.table_of.schedule
        runs = seeds_of(self.profile, schedule, place, noise, accounting, self.seeds)
        return summary(runs, self.known, metric)

    def gap(self, place: Place, noise: str, accounting: str, metric: str) -> Gap | None:
        ours = self.summary(place, noise, accounting, metric)
        return gap(ours, self.summary(place, "uniform", accounting, metric))

    def paper_number(self, place: Place, noise: str, metric: str) -> Number | None:
        where = place.eps_bar, _ALGORITHMS[noise], place.clip_norm, place.epochs
        return (self.paper or {}).get(Cell(self.table_of.schedule, metric, *where))

    def paper_gap(self, place: Place, metric: str) -> float | None:
        adp, dp = (self.paper_number(place, noise, metric) for noise in ("matched", "uniform"))
        return None if adp is None or dp is None else adp.mean - dp.mean

    def agreement(self, metric: str, accounting: str) -> Agreement:
        """Return the cells to be compared: those that count in the paper, and have a gap there."""
        pairs = []
        for place in self.table_of._places(self.profile):
            theirs = [self.paper_number(place, noise, metric) for noise in _ALGORITHMS]
            if all(number is not None and number.mean >= _TOO_LOW for number in theirs):
                ours = self.gap(place, "matched", accounting, metric)
                pairs.append((ours, self.paper_gap(place, metric) or None))
        return Agreement.of(pairs)

    def costs(self) -> str:
        """Return the theorem's nominal ε and what its noise really costs."""
        rows = []
        for eps_bar, epochs in product(self.grid.eps_bars, self.grid.epochs):
            place = Place(eps_bar, self.grid.clip_norms[0], epochs)
            costs = [f"{eps_bar:g}", str(epochs), f"{16.0 * eps_bar:g}"]
            for noise in NOISES:
                run = seeds_of(
                    self.profile, self.table_of.schedule, place, noise, "theorem", self.seeds[:1]
                )[0]
                outcome = self.known.get(run)
                costs.append(format_entry(None if outcome is None else outcome.epsilon, ".3f"))
            rows.append(costs)
        header = ["ε̄", "epochs", "nominal ε", *(f"{noise}: real ε" for noise in NOISES)]
        return (
            "What the noise of the paper's theorem really costs: at one ε̄ the three noises do not "
            "cost the same. The nominal ε = 16·ε̄ is the theorem's; where its condition fails, as "
            "it can at the paper's own settings, it claims nothing.\n\n"
            + markdown_table(header, rows)
        )

    def table(self, metric: str, accounting: str) -> str:
        """Return the layout of the paper: blocks of rows by ε̄, columns by C_G and epochs."""
        columns = list(product(self.grid.clip_norms, self.grid.epochs))
        header = ["ε̄", "noise", *(f"C_G = {c:g}, {e} epochs" for c, e in columns)]
        rows = [
            [f"{eps_bar:g}", name, *entries]
            for eps_bar in self.grid.eps_bars
            for name, entries in self._block(
                [Place(eps_bar, *column) for column in columns], metric, accounting
            )
        ]
        return markdown_table(header, rows)

    def _block(
        self, places: list[Place], metric: str, accounting: str
    ) -> Iterator[tuple[str, list[str]]]:
        for noise in NOISES:
            found = [self.summary(place, noise, accounting, metric) for place in places]
            yield NOISE_NAMES[noise], [format_entry(each) for each in found]
        for noise in ("matched", "optimal"):
            ahead = [self.gap(place, noise, accounting, metric) for place in places]
            yield f"gap {noise} − uniform", [format_entry(each) for each in ahead]
        if self.paper is not None:
            for noise, algorithm in (("uniform", "DP-SGD"), ("matched", "ADP-SGD")):
                numbers = [self.paper_number(place, noise, metric) for place in places]
                yield (
                    f"*paper: {algorithm}*",
                    [
                        format_entry(None if n is None else f"{n.mean:.2f} ± {n.sd:.2f}")
                        for n in numbers
                    ],
                )
            gaps = [self.paper_gap(place, metric) for place in places]
            yield "*paper: gap*", [format_entry(each, "+.2f") for each in gaps]

    def figure(self) -> Figure:
        """Draw the gaps at the last iterate, and ours against the paper's."""
        figure = Figure(figsize=(11.0, 4.6), layout="constrained")
        if self.paper is None:
            self._draw_gaps(figure.subplots())
        else:
            left, right = figure.subplots(1, 2, width_ratios=(2.0, 1.0))
            self._draw_gaps(left)
            self._draw_agreement(right)
        return figure

    def _draw_gaps(self, axes: Axes) -> None:
        places = self.table_of._places(self.profile)
        names = [f"ε̄ {p.eps_bar:g}, C {p.clip_norm:g}, {p.epochs} ep." for p in places]
        for noise in ("matched", "optimal"):
            found = [self.gap(place, noise, "real", "last") for place in places]
            shown = [(i, each) for i, each in enumerate(found) if each is not None]
            look = NOISE_LOOKS[noise]
            axes.errorbar(
                [i for i, _ in shown], [each.mean for _, each in shown],
                [each.error for _, each in shown], fmt=look["marker"], color=look["color"],
                label=NOISE_NAMES[noise],
            )  # fmt: skip
        if self.paper is not None:
            numbers = [self.paper_gap(place, "last") for place in places]
            theirs = [(i, value) for i, value in enumerate(numbers) if value is not None]
            axes.plot(
                [i for i, _ in theirs], [value for _, value in theirs], "x", color="#555555",
                label="the paper's own (at its σ, not at equal ε)",
            )  # fmt: skip
        axes.axhline(0.0, color="black", linewidth=0.8)
        axes.set_xticks(range(len(names)), names, rotation=75, fontsize=7)
        axes.set(
            ylabel="accuracy ahead of uniform noise, points",
            title=f"{CIFAR}, last iterate, equal real ε",
        )
        axes.legend(fontsize=8)

    def _draw_agreement(self, axes: Axes) -> None:
        for metric, marker in (("best", "o"), ("last", "^")):
            agreement = self.agreement(metric, "theorem")
            ours = [each.mean for each in agreement.ours]
            axes.plot(agreement.paper, ours, marker, label=METRICS[metric], alpha=0.7)
        axes.axhline(0.0, color="black", linewidth=0.8)
        axes.axvline(0.0, color="black", linewidth=0.8)
        axes.set(
            xlabel="the paper's gap ADP − DP, points", ylabel="ours (matched − uniform), points"
        )
        axes.set_title("the theorem's σ: equal ε̄")
        axes.legend(fontsize=8)
