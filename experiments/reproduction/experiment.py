"""The interface of an experiment, and the profiles that set its size."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from matplotlib.figure import Figure

from experiments.reproduction.head import HeadSetting
from experiments.reproduction.paper import Paper
from experiments.reproduction.run import Known, Run


@dataclass(frozen=True)
class Profile:
    """The size of the experiments.

    Attributes:
        name: "smoke" for a test, "small" for an evening of two cores, "full" for the paper's grid.
        seeds: default number of seeds.
        head: the setting of the CIFAR-10 head.
    """

    name: str
    seeds: int
    head: HeadSetting


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("smoke", 1, HeadSetting(images=200, batch_size=20, dimension=40, every=10)),
        Profile("small", 3, HeadSetting()),
        Profile("full", 5, HeadSetting(every=20)),
    )
}


@dataclass(frozen=True)
class Section:
    """A part of the report.

    Attributes:
        text: markdown.
        figures: pictures by their file names.
    """

    text: str
    figures: dict[str, Figure] = field(default_factory=dict)


class Experiment(Protocol):
    """A table or figure of the paper, or beyond it."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        ...

    @property
    def title(self) -> str:
        """Its heading."""
        ...

    def runs(self, profile: Profile, seeds: Sequence[int], known: Known) -> list[Run]:
        """Return the runs that it needs, given the finished runs."""
        ...

    def section(
        self, profile: Profile, seeds: Sequence[int], known: Known, paper: Paper | None
    ) -> Section:
        """Return its part of the report."""
        ...
