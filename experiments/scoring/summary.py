"""What the runs say: a table by task and ε, whether the goals are met, and a picture per task."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from matplotlib.figure import Figure
from scipy.stats import t as student

from experiments.reproduction.summaries import markdown_table
from experiments.scoring.competitors import TUNED, Result, Run, Setting
from experiments.scoring.grid import Grid
from experiments.scoring.tasks import Task

Known = Mapping[Run, Result]
TITLES = {
    "recipe": "recipe",
    TUNED: "recipe, tune=0.1",
    "grid": "best of the grid",
    "defaults": "defaults of 0.1",
    "opacus": "Opacus' examples",
}
_LOOKS = {
    "recipe": ("#0072B2", "o"), TUNED: ("#56B4E9", "P"), "grid": ("black", "s"),
    "defaults": ("#D55E00", "^"), "opacus": ("#009E73", "v"),
}  # fmt: skip
MEAN_REGRET, WORST_REGRET, BEHIND_DEFAULTS = 1.0, 3.0, 1.0


@dataclass(frozen=True)
class Score:
    """A mean over seeds with half of its 95 % interval (Student's t)."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.half:.1f}"


@dataclass(frozen=True)
class Cell:
    """The scores of a task at an ε.

    Attributes:
        task: the task.
        epsilon: ε.
        scores: by competitor.
        chosen: the setting that the grid chose.
        trials: what the grid cost, in trainings.
        is_interior: whether the best rate has a lower and a higher one beside it.
    """

    task: Task
    epsilon: float
    scores: Mapping[str, Score]
    chosen: Setting
    trials: int
    is_interior: bool

    @property
    def regret(self) -> float:
        """How far the recipe is behind the grid, in points."""
        return self.scores["grid"].mean - self.scores["recipe"].mean

    @property
    def behind_defaults(self) -> float:
        """How far the recipe is behind the defaults of 0.1, in points."""
        return self.scores["defaults"].mean - self.scores["recipe"].mean


def score_of(values: Sequence[float]) -> Score:
    """Return the mean and its interval.

    Example:
        >>> str(score_of([80.0, 81.0, 82.0, 83.0, 84.0]))
        '82.0 ± 2.0'
    """
    n = len(values)
    if n < 2:
        return Score(values[0], math.nan)
    return Score(mean(values), float(student.ppf(0.975, n - 1)) * stdev(values) / math.sqrt(n))


def cells(tasks: Iterable[Task], epsilons: Sequence[float], seeds: int, known: Known) -> list[Cell]:
    """Return the cells in which nothing is missing."""
    found = (cell(task, e, seeds, known) for task in tasks for e in epsilons)
    return [each for each in found if each is not None]


def cell(task: Task, epsilon: float, seeds: int, known: Known) -> Cell | None:
    """Return the scores of a task at an ε, or None while something is missing."""
    values: dict[str, dict[int, float]] = {}
    for run, result in known.items():
        if (run.task, run.epsilon) == (task.name, epsilon) and run.competitor != "grid":
            values.setdefault(run.competitor, {})[run.seed] = result.score
    if len(values.get("recipe", {})) < seeds:
        return None
    grid = Grid(task.name, epsilon, known)
    best = grid.best()
    if best is None or best.setting is None:
        return None
    for seed in range(1, seeds + 1):
        run = Run(task.name, epsilon, "grid", seed, best.setting)
        if run in known:
            values.setdefault("grid", {})[seed] = known[run].score
    complete = {name: [*each.values()] for name, each in values.items() if len(each) >= seeds}
    if not complete.keys() >= {"recipe", "grid", "defaults", "opacus"}:
        return None
    scores = {name: score_of(each) for name, each in complete.items()}
    return Cell(task, epsilon, scores, best.setting, grid.trials(), grid.is_interior())


def table(found: Sequence[Cell]) -> str:
    """Return the scores of all cells in Markdown."""
    names = [name for name in TITLES if any(name in each.scores for each in found)]
    header = ["task", "n", "ε", *(TITLES[name] for name in names), "regret", "ahead of 0.1",
              "the grid's choice", "trials"]  # fmt: skip
    rows = [
        [
            f"{each.task.title} ({each.task.metric})", f"{each.task.records:,}",
            f"{each.epsilon:g}",
            *(str(each.scores.get(name, "–")) for name in names),
            f"{each.regret:+.1f}", f"{-each.behind_defaults:+.1f}", _text(each.chosen),
            f"{each.trials}{'' if each.is_interior else ' (at the edge)'}",
        ]
        for each in found
    ]  # fmt: skip
    return markdown_table(header, rows)


def _text(setting: Setting) -> str:
    clip = "automatic" if setting.clipping == "automatic" else f"clip {setting.clip_norm:g}"
    return f"{clip}, {setting.optimizer} {setting.learning_rate:g}"


def goals(found: Sequence[Cell]) -> str:
    """Return in Markdown what was aimed at, what was reached and where the worst is."""
    worst = max(found, key=lambda each: each.regret)
    behind = max(found, key=lambda each: each.behind_defaults)
    average = mean(each.regret for each in found)
    count = f"{len(found)} cell{'s' if len(found) > 1 else ''}"
    rows = [
        _goal("mean regret against the grid", average, MEAN_REGRET, count),
        _goal("worst regret against the grid", worst.regret, WORST_REGRET, _where(worst)),
        _goal(
            "most behind the defaults of 0.1", behind.behind_defaults, BEHIND_DEFAULTS,
            _where(behind),
        ),
    ]  # fmt: skip
    tuned = [each for each in found if TUNED in each.scores]
    if tuned:
        gain = mean(each.scores[TUNED].mean - each.scores["recipe"].mean for each in tuned)
        rows.append(
            ["tune=0.1 against the recipe, mean", "–", f"{gain:+.2f}", "–", f"{len(tuned)} cells"]
        )
    return markdown_table(["in points", "goal: at most", "reached", "met", "where"], rows)


def _goal(name: str, value: float, limit: float, where: str) -> list[str]:
    return [name, f"{limit:.1f}", f"{value:.2f}", "yes" if value <= limit else "**no**", where]


def _where(each: Cell) -> str:
    return f"{each.task.title}, ε = {each.epsilon:g}"


def draw(found: Sequence[Cell]) -> Figure:
    """Draw the scores of one task against ε, with 95 % intervals."""
    figure = Figure(figsize=(5.0, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, (color, marker) in _LOOKS.items():
        points = [(e.epsilon, e.scores[name]) for e in found if name in e.scores]
        if points:
            axes.errorbar(
                [e for e, _ in points], [s.mean for _, s in points], [s.half for _, s in points],
                color=color, marker=marker, markersize=4.0, capsize=3.0, label=TITLES[name],
            )  # fmt: skip
    task, epsilons = found[0].task, [each.epsilon for each in found]
    axes.set(title=task.title, xlabel="ε", ylabel=f"test {task.metric}, in points", xscale="log")
    axes.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return figure
