"""Shapes of additive models: the effect of each column on the score, and their figure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from dither.estimators.splines import blocks_of
from dither.schema import Category, Column, Number, Schema, YesNo
from dither.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 64
_ACROSS = 3
_WIDTH, _HEIGHT, _LINE, _FRAME = 3.8, 2.5, 0.16, 0.8
"""Sizes of one plot, of a line of text, and of title and labels, in inches."""


@final
@dataclass(frozen=True, eq=False)
class Shape:
    """The effect of one column, as the model has learned it.

    Attributes:
        column: its name.
        values: points of a number's range, and NaN for missing cells if the model knows them; or
            the values of a category, with "(other)" and "(missing)"; or "no" and "yes".
        effects: on the score, values × outputs, with mean 0 over the values, and over the classes
            if there are more than two.
        noise: about the standard deviation of the noise in each effect: what it would be if the
            loss did not draw weights back, so most are smaller. NaN for reactive step sizes.
        scale: of a number, as `dither.schema.Number` has it.

    Example:
        >>> shape = Shape("sex", np.array(["f", "m"]), np.array([[-0.5], [0.5]]), np.full(2, 0.1))
        >>> shape.is_number
        False
    """

    column: str
    values: NDArray[Any]
    effects: FloatArray
    noise: FloatArray
    scale: str = "linear"

    @property
    def is_number(self) -> bool:
        """Whether the column is a number."""
        return self.values.dtype.kind == "f"


def points_of(kind: Column, bins: int) -> tuple[NDArray[Any], FloatArray] | None:
    """Return values of a column and their features; None for text and ignored columns.

    Example:
        >>> values, features = points_of(YesNo(), 16)
        >>> values.tolist(), features.tolist()
        (['no', 'yes'], [[-1.0], [1.0]])
    """
    if isinstance(kind, Number):
        if kind.knots is None:
            values = kind.grid(bins * math.ceil(_POINTS / bins))
        else:
            values = np.union1d(kind.knots, replace(kind, knots=None).grid(_POINTS))
        if kind.missing is not None:
            values = np.append(values, np.nan)
        blocks = blocks_of(Schema({"x": kind}), bins)
        return values, np.hstack([block.encode({"x": values}) for block in blocks]).astype(float)
    if isinstance(kind, Category):
        values = np.array([*kind.values, "(other)", "(missing)"])
        return values, np.eye(len(values))
    if isinstance(kind, YesNo):
        return np.array(["no", "yes"]), np.array([[-1.0], [1.0]])
    return None


def draw(shapes: Sequence[Shape], outputs: Sequence[str], label: str) -> "Figure":
    """Return a figure of shapes with bands of two standard deviations, numbers first.

    Args:
        shapes: at least one.
        outputs: names of the outputs of the model.
        label: of the axis of effects.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    chosen = sorted(shapes, key=lambda shape: 0 if shape.is_number else len(shape.values))
    rows = [chosen[start : start + _ACROSS] for start in range(0, len(chosen), _ACROSS)]
    heights = [max(map(_height, row)) for row in rows]
    width = min(len(chosen), _ACROSS)
    with mpl.rc_context({"font.size": 8, "axes.titlesize": 9}):
        figure = Figure(figsize=(_WIDTH * width, sum(heights)), layout="constrained")
        axes = figure.subplots(
            len(rows), width, squeeze=False, gridspec_kw={"height_ratios": heights}
        ).ravel()
        for shape, axis in zip(chosen, axes, strict=False):
            (_draw_number if shape.is_number else _draw_category)(shape, axis, outputs, label)
            axis.set_title(shape.column)
        for axis in axes[len(chosen) :]:
            axis.remove()
        if len(outputs) > 1:
            handles, labels = axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside upper center", ncols=min(len(outputs), 6))
    return figure


def _height(shape: Shape) -> float:
    return _HEIGHT if shape.is_number else max(_HEIGHT, _FRAME + _LINE * len(shape.values))


def _draw_number(shape: Shape, axis: Any, outputs: Sequence[str], label: str) -> None:
    is_missing = np.isnan(shape.values)
    values = shape.values[~is_missing]
    if shape.scale == "log":
        axis.set_xscale("symlog", linthresh=1.0)
    axis.axhline(0.0, color="0.7", linewidth=0.8, zorder=0)
    for output, name in enumerate(outputs):
        color, effects = f"C{output}", shape.effects[:, output]
        low, high = effects - 2.0 * shape.noise, effects + 2.0 * shape.noise
        axis.plot(values, effects[~is_missing], color=color, label=name)
        axis.fill_between(
            values, low[~is_missing], high[~is_missing], color=color, alpha=0.2, linewidth=0
        )
        if is_missing.any():
            place = values[-1] + 0.04 * (1 + output) * (values[-1] - values[0])
            effect, band = effects[is_missing], 2.0 * shape.noise[is_missing]
            axis.errorbar([place], effect, yerr=band, fmt="o", color=color, markersize=3)
    if is_missing.any():
        axis.text(
            place, 0.02, " missing", transform=axis.get_xaxis_transform(), rotation=90, ha="left"
        )
    axis.set_ylabel(label)


def _draw_category(shape: Shape, axis: Any, outputs: Sequence[str], label: str) -> None:
    places, thickness = np.arange(len(shape.values)), 0.8 / len(outputs)
    for output, name in enumerate(outputs):
        axis.barh(
            places + thickness * (output - 0.5 * (len(outputs) - 1)), shape.effects[:, output],
            thickness, xerr=2.0 * shape.noise, color=f"C{output}", alpha=0.7, label=name,
            error_kw={"ecolor": "0.35", "elinewidth": 0.8},
        )  # fmt: skip
    axis.axvline(0.0, color="0.7", linewidth=0.8, zorder=0)
    axis.set_yticks(places, shape.values)
    axis.set_ylim(len(places) - 0.5, -0.5)
    axis.set_xlabel(label)
