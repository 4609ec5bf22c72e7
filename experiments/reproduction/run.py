"""One training run of the grid: its settings, and its outcome."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

from experiments.reproduction.features import FeatureSet


class Run(Protocol):
    """A frozen dataclass of plain values: equal runs give equal numbers."""

    kind: ClassVar[str]

    @property
    def seed(self) -> int:
        """Of its sampling and its noise."""
        ...

    @property
    def work(self) -> float:
        """How long it takes, in steps of the linear head, for the time that is left."""
        ...

    @property
    def features(self) -> FeatureSet | None:
        """Features that must be there before it starts."""
        ...

    @property
    def group(self) -> Hashable:
        """What it shares with runs that can be trained beside it."""
        ...

    @classmethod
    def measure(cls, runs: Sequence[Self]) -> "list[Outcome]":
        """Train runs of one group, and return what was measured on the test images."""
        ...


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        steps: after which steps the accuracy was measured.
        accuracies: at each of them, in percent.
        epsilon: ε of the run, None if nothing is claimed.
        more: further figures by their names.
    """

    steps: tuple[int, ...]
    accuracies: tuple[float, ...]
    epsilon: float | None
    more: dict[str, Any]

    @property
    def best(self) -> float:
        """The best accuracy on the way."""
        return max(self.accuracies)

    @property
    def last(self) -> float:
        """The accuracy at the end."""
        return self.accuracies[-1]


Known = dict[Run, Outcome]
"""Finished runs."""
