"""Means over seeds, gaps between noises, and how they agree with the paper's."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from scipy.stats import spearmanr

from experiments.reproduction.run import Known, Run


@dataclass(frozen=True)
class Summary:
    """Accuracies over seeds, in percent."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Their mean."""
        return mean(self.values)

    @property
    def sd(self) -> float:
        """Their standard deviation; of a single one it is not known."""
        return stdev(self.values) if len(self.values) > 1 else math.nan

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self.sd / math.sqrt(len(self.values))

    def __str__(self) -> str:
        spread = "" if math.isnan(self.sd) else f" ± {self.sd:.2f}"
        return f"{self.mean:.2f}{spread}"


def summary(runs: Iterable[Run], known: Known, metric: str) -> Summary | None:
    """Return best or last accuracies of the runs that are finished; None if none is."""
    values = tuple(getattr(known[run], metric) for run in runs if run in known)
    return Summary(values) if values else None


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
        return f"{self.mean:+.2f}" + ("" if math.isnan(self.error) else f" ± {self.error:.2f}")


def gap(one: Summary | None, other: Summary | None) -> Gap | None:
    """Return by how much the first is ahead; both have the same seeds in the same order."""
    if one is None or other is None or len(one.values) != len(other.values):
        return None
    ahead = Summary(tuple(a - b for a, b in zip(one.values, other.values, strict=True)))
    return Gap(ahead.mean, ahead.error)


def written(value: object, spec: str = "") -> str:
    """Return a table's entry; what is missing is a dash."""
    return "–" if value is None else format(value, spec)


@dataclass(frozen=True)
class Agreement:
    """Our gaps beside the paper's, cell by cell."""

    ours: tuple[float, ...]
    paper: tuple[float, ...]

    @classmethod
    def of(cls, pairs: Sequence[tuple[Gap | None, float | None]]) -> "Agreement":
        """Return the cells that both have."""
        both = [(one.mean, two) for one, two in pairs if one is not None and two is not None]
        return cls(tuple(one for one, _ in both), tuple(two for _, two in both))

    @property
    def same_sign(self) -> int:
        """In how many cells both gaps have the same sign."""
        return sum((one > 0) == (two > 0) for one, two in zip(self.ours, self.paper, strict=True))

    @property
    def rank_correlation(self) -> float:
        """Spearman's, NaN for fewer than three cells or gaps that are all the same."""
        if len(self.ours) < 3 or len(set(self.ours)) == 1 or len(set(self.paper)) == 1:
            return math.nan
        return float(spearmanr(self.ours, self.paper).statistic)

    def __str__(self) -> str:
        count = len(self.ours)
        if count == 0:
            return "no cell is in both"
        text = f"the sign of the gap agrees with the paper's in {self.same_sign} of {count} cells"
        if math.isnan(self.rank_correlation):
            return text
        return f"{text}; rank correlation of the gaps {self.rank_correlation:.2f}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column is text and whose others are numbers."""
    rule = ["---"] + ["---:"] * (len(header) - 1)
    lines = [header, rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
