"""Figure 3 of the paper: accuracy and noise over the iterations, at ε̄ = 3.2 and three clip norms.

η_t = 1/√(20+t); a row for each number of epochs (120 and 200 in the paper). The gap between matched
and uniform noise is said to grow with C_G.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from matplotlib.figure import Figure

from experiments.reproduction.curves import draw_accuracy, draw_noise
from experiments.reproduction.decay_table import Place, seeds_of
from experiments.reproduction.experiment import Profile, Section
from experiments.reproduction.noises import NOISES
from experiments.reproduction.paper import Paper
from experiments.reproduction.run import Known, Run

_SCHEDULE, _EPS_BAR, _CLIP_NORMS = "inverse_sqrt", 3.2, (1.0, 2.5, 5.0)
_EPOCHS = {"smoke": (2,), "small": (120, 200), "full": (120, 200)}
_ACCOUNTINGS = {"theorem": "figure3-theorem.png", "real": "figure3-real.png"}


@dataclass(frozen=True)
class Figure3:
    """Curves over the iterations."""

    name: str = "figure3"
    title: str = "Accuracy and noise over the iterations, η_t = 1/√(20+t), ε̄ = 3.2"

    def runs(self, profile: Profile, seeds: Sequence[int], known: Known) -> list[Run]:
        """Return one run a panel, noise, accounting and seed."""
        return [
            run
            for accounting, epochs, clip_norm, noise in product(
                _ACCOUNTINGS, _EPOCHS[profile.name], _CLIP_NORMS, NOISES
            )
            for run in seeds_of(
                profile, _SCHEDULE, Place(_EPS_BAR, clip_norm, epochs), noise, accounting, seeds
            )
        ]

    def section(
        self, profile: Profile, seeds: Sequence[int], known: Known, paper: Paper | None
    ) -> Section:
        """Return a picture for each accounting."""
        text = (
            "With σ from the paper's theorem (equal ε̄, not equal ε):\n\n"
            "![Accuracy and noise](figure3-theorem.png)\n\n"
            "All calibrated to the ε that the uniform noise really costs:\n\n"
            "![Accuracy and noise](figure3-real.png)\n"
        )
        return Section(
            text,
            {name: draw(profile, a, seeds, known) for a, name in _ACCOUNTINGS.items()},
        )


def draw(profile: Profile, accounting: str, seeds: Sequence[int], known: Known) -> Figure:
    """Draw a row for each number of epochs, a column for each clip norm."""
    epochs = _EPOCHS[profile.name]
    figure = Figure(figsize=(13.0, 3.8 * len(epochs)), layout="constrained")
    panels = figure.subplots(len(epochs), len(_CLIP_NORMS), squeeze=False)
    for (row, own), (column, clip_norm) in product(enumerate(epochs), enumerate(_CLIP_NORMS)):
        axes, place = panels[row][column], Place(_EPS_BAR, clip_norm, own)
        draw_accuracy(axes, profile, _SCHEDULE, place, accounting, seeds, known)
        behind = axes.twinx()
        draw_noise(behind, profile, _SCHEDULE, place, accounting, width=0.6)
        axes.set_title(f"C_G = {clip_norm:g}, {own} epochs", fontsize=10)
        if column > 0:
            axes.set_ylabel("")
        behind.set_ylabel(
            "noise on a parameter (thin lines)" if column == len(_CLIP_NORMS) - 1 else ""
        )
    if panels[0][0].get_lines():
        panels[0][0].legend(fontsize=8, loc="center right")
    return figure


EXPERIMENT = Figure3()
