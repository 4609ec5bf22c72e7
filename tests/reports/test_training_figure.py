"""The figure of training runs."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tests.training.loops import noisy_plan, quiet_plan
from torch import nn

from dither import Plan
from dither.reports import save_figure, training_figure
from dither.training import TrainResult
from dither.training.history import Row

ACCURACY = {"accuracy": 0.5, "loss": 2.0}
STEPS = (2, 4, 6)


def run(plan: Plan, metrics: dict[str, float]) -> TrainResult:
    """Return a run with three rows of history, whose metrics grow by a half each."""
    history = tuple(
        Row(
            step,
            plan.spent(step),
            1.0,
            float(plan.noise_multipliers[step - 1]),
            {name: value * (1 + place / 2) for name, value in metrics.items()},
        )
        for place, step in enumerate(STEPS)
    )
    return TrainResult(nn.Linear(1, 1), plan, plan.bound, plan.steps, history, None)


def labels(axes: Axes) -> list[str]:
    return [str(line.get_label()) for line in axes.get_lines()]


def ydata(axes: Axes, line: int = 0) -> list[float]:
    return [float(value) for value in np.asarray(axes.get_lines()[line].get_ydata())]


def xdata(axes: Axes) -> list[float]:
    return [float(value) for value in np.asarray(axes.get_lines()[0].get_xdata())]


def three(figure: Figure) -> tuple[Axes, Axes, Axes]:
    quality, noise, privacy = figure.axes
    return quality, noise, privacy


def test_runs_with_noise_have_three_curves_and_those_without_one() -> None:
    plan = noisy_plan()
    runs = {"mine": run(plan, ACCURACY), "none": run(quiet_plan(), ACCURACY)}
    quality, noise, privacy = three(training_figure(runs))
    assert labels(quality) == ["mine", "none"]
    assert labels(noise) == labels(privacy) == ["mine"]
    assert quality.get_ylabel() == "accuracy"
    assert xdata(quality) == xdata(noise) == [2.0, 4.0, 6.0]
    assert ydata(quality) == [0.5, 0.75, 1.0]
    assert ydata(noise) == [1.0, 1.0, 1.0]
    assert xdata(privacy) == [0.0, 2.0, 4.0, 6.0]
    assert ydata(privacy) == [0.0, *(plan.spent(step) for step in STEPS)]
    assert ydata(privacy)[-1] == plan.bound.epsilon
    assert privacy.get_ylim()[0] == 0.0
    for axes in (quality, noise, privacy):
        assert axes.get_xlabel() == "step t"
        assert axes.get_title()
        assert axes.get_legend() is not None


def test_a_run_that_was_not_measured_has_no_curve_of_quality() -> None:
    quality, noise, privacy = three(training_figure({"mine": run(noisy_plan(), {})}))
    assert labels(quality) == []
    assert quality.get_legend() is None
    assert labels(noise) == labels(privacy) == ["mine"]


def test_neither_noise_nor_metrics_is_an_empty_figure_of_three_axes(tmp_path: Path) -> None:
    figure = training_figure({"none": run(quiet_plan(), {})})
    assert [labels(axes) for axes in three(figure)] == [[], [], []]
    assert save_figure(figure, tmp_path / "empty.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("metrics", "name", "first"),
    [
        ([ACCURACY, ACCURACY], "accuracy", 0.5),
        ([{"loss": 2.0}, {"loss": 2.0}], "loss", 2.0),
        ([{}, ACCURACY], "accuracy", 0.5),
        ([ACCURACY, {"loss": 2.0}], "loss", 2.0),
    ],
)
def test_all_curves_of_quality_show_what_all_that_were_measured_have(
    metrics: list[dict[str, float]], name: str, first: float
) -> None:
    runs = {str(place): run(noisy_plan(), each) for place, each in enumerate(metrics)}
    quality, *_ = three(training_figure(runs))
    assert quality.get_ylabel() == name
    assert len(labels(quality)) == sum(bool(each) for each in metrics)
    assert all(ydata(quality, line)[0] == first for line in range(len(labels(quality))))


def test_no_run_is_left_out_and_neighbours_can_be_told_apart() -> None:
    runs = {f"run {k}": run(noisy_plan(), ACCURACY) for k in range(6)}
    quality, noise, privacy = three(training_figure(runs))
    for axes in (quality, noise, privacy):
        assert labels(axes) == list(runs)
    styles = [(line.get_color(), line.get_linestyle()) for line in quality.get_lines()]
    assert len(set(styles)) == 4
    assert all(one != two for one, two in pairwise(styles))


def test_curves_of_diverged_runs_are_drawn_and_saved(tmp_path: Path) -> None:
    diverged = run(noisy_plan(), {"accuracy": 0.1, "loss": math.nan})
    lost = run(noisy_plan(), {"loss": math.inf})
    figure = training_figure({"one": diverged, "two": lost})
    for suffix in ("png", "pdf", "svg"):
        assert save_figure(figure, tmp_path / f"figure.{suffix}").stat().st_size > 0
    assert len(list(tmp_path.iterdir())) == 3
