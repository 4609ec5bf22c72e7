"""How strong an ε is: the words for it, and a scale with published deployments as marks."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, final

from dither.reports.charts import INK, embedded_svg
from dither.reports.figures import BLUE, VERMILION
from dither.reports.odds import best_guess, percent
from dither.types import rounded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KEY = "scale"
_TICKS = (0.1, 0.3, 1.0, 3.0, 10.0)
_LOWEST, _HIGHEST = 0.1, 20.0
_STRONG, _REASONABLE = 1.0, 10.0
_SIZE = (5.0, 3.1)  # inches


@final
@dataclass(frozen=True)
class Deployment:
    """A published deployment: its ε, or the smallest and the largest, and the unit of privacy."""

    name: str
    unit: str
    low: float
    high: float


DEPLOYMENTS = (
    Deployment("Wikipedia page views, 2017–23", "30 views on a day", 1.0, 1.0),
    Deployment("Google VaultGemma, 2025", "1,024 tokens", 2.0, 2.0),
    Deployment("Google Gboard models, 2024", "one user", 0.994, 13.69),
    Deployment("Apple statistics, 2017", "one user, each day", 2.0, 16.0),
    Deployment("Israel, births of 2014", "mother and child", 9.98, 9.98),
    Deployment("US Census 2020, persons file", "one person", 17.14, 17.14),
)
"""Only figures that their publishers have stated."""


def strength(epsilon: float) -> str:
    """Return what the field calls an ε: "strong", "reasonable" or "weak".

    The limits are those of Ponomareva et al., "How to DP-fy ML", 2023.

    >>> strength(0.5), strength(2.0), strength(30.0)
    ('strong', 'reasonable', 'weak')
    """
    return "strong" if epsilon <= _STRONG else "reasonable" if epsilon <= _REASONABLE else "weak"


def scale_svg(epsilon: float, label: str, unit: str) -> str:
    """Return the scale as an ``<svg>`` element.

    Args:
        epsilon: of this run.
        label: its name on the scale.
        unit: its unit of privacy.
    """
    return embedded_svg(KEY, lambda axes: _draw(axes, epsilon, label, unit), _SIZE)


def _draw(axes: "Axes", epsilon: float, label: str, unit: str) -> None:
    low, high = min(_LOWEST, epsilon / 1.5), max(_HIGHEST, epsilon * 1.5)
    for place, each in enumerate(DEPLOYMENTS, start=1):
        axes.plot((each.low, each.high), (place, place), color=BLUE, linewidth=3.0)
        axes.plot((each.low, each.high), (place, place), "o", color=BLUE, markersize=5.0)
    bottom = len(DEPLOYMENTS) + 0.6
    axes.vlines(epsilon, 0, bottom, color=VERMILION, linestyle=(0, (4, 2)), linewidth=1.2)
    axes.plot(epsilon, 0, "D", color=VERMILION, markersize=8.0)
    side, shift = ("right", -9) if epsilon > 2.0 else ("left", 9)
    axes.annotate(
        f"ε = {rounded(epsilon, 4)}", (epsilon, 0), (shift, 0), textcoords="offset points",
        ha=side, va="center", weight="bold",
    )  # fmt: skip
    names = [f"{label}\n{unit}", *(f"{each.name}\n{each.unit}" for each in DEPLOYMENTS)]
    axes.set_yticks(range(len(names)), names, fontsize=8.0)
    axes.get_yticklabels()[0].set_fontweight("bold")
    axes.set(xscale="log", xlim=(low, high), ylim=(bottom, -1.3))
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    guesses = [f"{tick:g}\n{percent(best_guess(tick, 0.0))}" for tick in ticks]
    axes.set_xticks(ticks, guesses, fontsize=9.0)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("ε, and the best guess that it allows (chance: 50 %)", fontsize=9.0)
    axes.tick_params(axis="y", length=0.0)
    _draw_bands(axes, (low, _STRONG, _REASONABLE, high))


def _draw_bands(axes: "Axes", limits: Sequence[float]) -> None:
    for left, right in pairwise(limits):
        middle = (left * right) ** 0.5
        axes.text(middle, -1.0, strength(middle), ha="center", va="center", fontsize=9.0)
        axes.axvline(left, color=INK, alpha=0.3, linewidth=0.8)
