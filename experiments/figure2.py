"""Figure 2 of the paper: its two schedules of decaying step sizes, for each number of epochs.

η_t = 1/√(20+t) does not know T; η_t = 0.1 − α_T·√t falls to 1e-10 at T. Nothing is trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from experiments.reproduction.experiment import Profile, Section
from experiments.reproduction.head import HeadSetting
from experiments.reproduction.noises import SCHEDULES
from experiments.reproduction.paper import Paper
from experiments.reproduction.run import Known, Run

_EPOCHS = (60, 120, 200)
_LOOKS = {
    "inverse_sqrt": ("#0072B2", "-", "1/√(20+t)"),
    "sqrt_to_zero": ("#E69F00", "--", "0.1 − α_T·√t"),
}


@dataclass(frozen=True)
class Figure2:
    """Step sizes over the iterations."""

    name: str = "figure2"
    title: str = "Two schedules of decaying step sizes"

    def runs(self, profile: Profile, seeds: Sequence[int], known: Known) -> list[Run]:
        """Return none: nothing is trained."""
        return []

    def section(
        self, profile: Profile, seeds: Sequence[int], known: Known, paper: Paper | None
    ) -> Section:
        """Return the picture."""
        return Section("![Step sizes over the iterations](figure2.png)\n", {"figure2.png": draw()})


def draw() -> Figure:
    """Draw a panel for each number of epochs."""
    figure = Figure(figsize=(11.0, 3.4), layout="constrained")
    panels = figure.subplots(1, len(_EPOCHS), sharey=True)
    for axes, epochs in zip(panels, _EPOCHS, strict=True):
        T = HeadSetting().steps(epochs)
        for schedule, (colour, line, label) in _LOOKS.items():
            eta = SCHEDULES[schedule].stepsizes(T)
            axes.plot(range(1, T + 1), eta, color=colour, linestyle=line, label=f"η_t = {label}")
        axes.set(title=f"{epochs} epochs, T = {T:,}", xlabel="iteration t", ylim=(0.0, 0.15))
    panels[0].set_ylabel("step size η_t")
    panels[0].legend()
    return figure


EXPERIMENT = Figure2()
