"""Means over seeds, gaps between noises, and how they agree with the paper's."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from scipy.stats import spearmanr

from experiments.reproduction.run import Known, Run


@dataclass(frozen=True)
class Summary:
    """Accuracies over seeds, in percent.

    Attributes:
        by_seed: of the seeds that are finished.
        wanted: how many seeds there should be.
    """

    by_seed: dict[int, float]
    wanted: int

    @property
    def values(self) -> tuple[float, ...]:
        """The accuracies."""
        return tuple(self.by_seed.values())

    @property
    def mean(self) -> float:
        """Their mean."""
        return mean(self.values)

    @property
    def sd(self) -> float:
        """Their standard deviation; of a single one it is not known."""
        return stdev(self.values) if len(self.values) > 1 else math.nan

    def __str__(self) -> str:
        found = len(self.by_seed)
        missing = "" if found == self.wanted else f" ({found} of {self.wanted} seeds)"
        return format_with_spread(self.mean, self.sd) + missing


def summary(runs: Sequence[Run], known: Known, metric: str) -> Summary | None:
    """Return best or last accuracies of the runs that are finished; None if none is."""
    values = {run.seed: getattr(known[run], metric) for run in runs if run in known}
    return Summary(values, len(runs)) if values else None


@dataclass(frozen=True)
class Gap:
    """By how much one noise is ahead of another, in points.

    Attributes:
        mean: over the seeds.
        error: the standard error of that. Runs of one seed draw the same records and normals, so
            it is of the differences seed by seed, which vary less than either noise alone.
    """

    mean: float
    error: float

    def __str__(self) -> str:
        return format_with_spread(self.mean, self.error, "+.2f")


def gap(one: Summary | None, other: Summary | None) -> Gap | None:
    """Return by how much the first is ahead, over the seeds that both have."""
    if one is None or other is None:
        return None
    ahead = [value - other.by_seed[s] for s, value in one.by_seed.items() if s in other.by_seed]
    if not ahead:
        return None
    error = stdev(ahead) / math.sqrt(len(ahead)) if len(ahead) > 1 else math.nan
    return Gap(mean(ahead), error)


def format_with_spread(value: float, spread: float, spec: str = ".2f") -> str:
    """Return a value and its spread, if that is known."""
    return f"{value:{spec}}" + ("" if math.isnan(spread) else f" ± {spread:.2f}")


def format_entry(value: object, spec: str = "") -> str:
    """Return a table's entry; what is missing is a dash."""
    return "–" if value is None else format(value, spec)


@dataclass(frozen=True)
class Agreement:
    """Our gaps beside the paper's, cell by cell."""

    ours: tuple[Gap, ...]
    paper: tuple[float, ...]

    @classmethod
    def of(cls, pairs: Sequence[tuple[Gap | None, float | None]]) -> "Agreement":
        """Return the cells that both have."""
        both = [(one, two) for one, two in pairs if one is not None and two is not None]
        return cls(tuple(one for one, _ in both), tuple(two for _, two in both))

    @property
    def clear(self) -> "Agreement":
        """The cells in which our gap is beyond two standard errors."""
        cells = zip(self.ours, self.paper, strict=True)
        return Agreement.of([(a, b) for a, b in cells if abs(a.mean) > 2.0 * a.error])

    @property
    def same_sign(self) -> int:
        """In how many cells both gaps have the same sign."""
        cells = zip(self.ours, self.paper, strict=True)
        return sum(one.mean * two > 0.0 for one, two in cells)

    @property
    def rank_correlation(self) -> float:
        """Spearman's, NaN for fewer than three cells or gaps that are all the same."""
        ours = [one.mean for one in self.ours]
        if len(ours) < 3 or len(set(ours)) == 1 or len(set(self.paper)) == 1:
            return math.nan
        return float(spearmanr(ours, self.paper).statistic)

    def __str__(self) -> str:
        count, clear = len(self.ours), self.clear
        if count == 0:
            return "no cell is in both"
        text = (
            f"the sign of the gap agrees with the paper's in {self.same_sign} of {count} cells "
            f"({clear.same_sign} of the {len(clear.ours)} in which ours is beyond two standard "
            "errors)"
        )
        if math.isnan(self.rank_correlation):
            return text
        return f"{text}; rank correlation of the gaps {self.rank_correlation:.2f}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column is text and whose others are numbers."""
    rule = ["---"] + ["---:"] * (len(header) - 1)
    lines = [header, rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
