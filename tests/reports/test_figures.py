"""Figures show what they are given, and are saved atomically."""

import math
import os
import stat
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tests.training.loops import noisy_plan, quiet_plan
from torch import nn

from dither import Plan
from dither.reports import (
    audit_figure,
    demo_figure,
    plan_figure,
    save_figure,
    theory_figure,
    training_figure,
)
from dither.training import TrainResult
from dither.training.history import Row

ACCURACY = {"accuracy": 0.5, "loss": 2.0}
STEPS = (2, 4, 6)


def test_theory_figure_shows_what_it_is_given() -> None:
    curves = {"uniform": np.array([3.0, 2.0]), "matched": np.array([2.0, 2.5])}
    spent = {"uniform": np.array([1.0, 4.0]), "matched": np.array([2.0, 4.0])}
    figure = theory_figure(parameter_noise=curves, spent=spent, schedule="mine")
    noise, schedules, privacy = figure.axes
    assert [line.get_ydata() for line in noise.get_lines()] == [
        pytest.approx(curves["matched"]),
        pytest.approx(curves["uniform"]),
    ]
    assert [line.get_ydata() for line in privacy.get_lines()] == [
        pytest.approx(spent["matched"]),
        pytest.approx(spent["uniform"]),
    ]
    assert [len(np.asarray(line.get_ydata())) for line in schedules.get_lines()] == [
        39_200,
        11_760,
        23_520,
        39_200,
    ]
    for axes in figure.axes:
        assert axes.get_ylabel()
    assert noise.get_xlabel()
    assert schedules.get_xlabel()


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_saved_files_have_the_usual_mode(tmp_path: Path, suffix: str) -> None:
    path = save_figure(Figure(), tmp_path / f"figure.{suffix}")
    assert path.stat().st_size > 0
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "figure.png"
    target.write_bytes(b"old")

    def fail(self: Figure, file: BytesIO, **_: object) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="No space left"):
        save_figure(Figure(), target)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_audit_figure_shows_the_attack_and_what_is_allowed() -> None:
    roc = np.array([[0.0, 0.5, 1.0], [0.0, 0.6, 1.0]])
    figure = audit_figure(roc, lambda alpha: np.minimum(2.0 * alpha, 1.0), "fine")
    for axes in figure.axes:
        guessing, allowed, attack = axes.get_lines()
        assert np.array_equal(np.asarray(guessing.get_xdata()), np.asarray(guessing.get_ydata()))
        x = np.asarray(allowed.get_xdata())
        np.testing.assert_allclose(np.asarray(allowed.get_ydata()), np.minimum(2.0 * x, 1.0))
        assert np.array_equal(np.asarray(attack.get_ydata()), roc[1])
    assert len(audit_figure(roc, None, "nothing is claimed").axes[0].get_lines()) == 2


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


def test_runs_without_noise_appear_in_the_first_panel_only() -> None:
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


def test_a_run_without_metrics_has_no_curve_of_metrics() -> None:
    quality, noise, privacy = three(training_figure({"mine": run(noisy_plan(), {})}))
    assert labels(quality) == []
    assert quality.get_legend() is None
    assert labels(noise) == labels(privacy) == ["mine"]


def test_without_noise_and_metrics_the_figure_is_empty(tmp_path: Path) -> None:
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
def test_the_metric_is_one_that_all_measured_runs_have(
    metrics: list[dict[str, float]], name: str, first: float
) -> None:
    runs = {str(place): run(noisy_plan(), each) for place, each in enumerate(metrics)}
    quality, *_ = three(training_figure(runs))
    assert quality.get_ylabel() == name
    assert len(labels(quality)) == sum(bool(each) for each in metrics)
    assert all(ydata(quality, line)[0] == first for line in range(len(labels(quality))))


def test_every_run_is_drawn_and_consecutive_styles_differ() -> None:
    runs = {f"run {k}": run(noisy_plan(), ACCURACY) for k in range(6)}
    quality, noise, privacy = three(training_figure(runs))
    for axes in (quality, noise, privacy):
        assert labels(axes) == list(runs)
    styles = [(line.get_color(), line.get_linestyle()) for line in quality.get_lines()]
    assert len(set(styles)) == 4
    assert all(one != two for one, two in pairwise(styles))


def test_diverged_runs_can_be_drawn_and_saved(tmp_path: Path) -> None:
    diverged = run(noisy_plan(), {"accuracy": 0.1, "loss": math.nan})
    lost = run(noisy_plan(), {"loss": math.inf})
    figure = training_figure({"one": diverged, "two": lost})
    for suffix in ("png", "pdf", "svg"):
        assert save_figure(figure, tmp_path / f"figure.{suffix}").stat().st_size > 0
    assert len(list(tmp_path.iterdir())) == 3


def test_plans_may_have_any_name() -> None:
    names = ["optimal", "fewer steps", "uniform", "more steps"]
    axes = plan_figure(dict.fromkeys(names, noisy_plan())).axes[0]
    assert [line.get_label() for line in axes.lines] == names
    assert len({line.get_color() for line in axes.lines}) == 4
    assert len(plan_figure({f"plan {k}": noisy_plan() for k in range(6)}).axes[0].lines) == 6


def test_demo_figure_has_a_curve_or_a_line_for_every_way() -> None:
    curves = [[(0.5, 50.0), (1.0, 80.0)], [(0.5, 70.0), (1.0, 90.0)]]
    figure = demo_figure({"plain": [99.0, 97.0], "mine": [80.0, 90.0]}, {"mine": curves}, epsilon=1)
    ends, growth = figure.axes
    assert [text.get_text() for text in ends.texts] == ["98.0 ± 1.4", "85.0 ± 7.1"]
    assert [label.get_text() for label in ends.get_yticklabels()] == ["plain", "mine"]
    plain, mine = growth.lines
    np.testing.assert_allclose(np.asarray(plain.get_ydata()), 98.0)
    np.testing.assert_allclose(np.asarray(mine.get_xydata()), [(0.5, 60.0), (1.0, 85.0)])
