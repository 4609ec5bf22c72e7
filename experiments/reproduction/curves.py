"""Accuracy over the iterations, with the noise that reaches the parameters behind it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from experiments.reproduction.decay_table import Place, seeds_of
from experiments.reproduction.experiment import Profile
from experiments.reproduction.head import HeadRun
from experiments.reproduction.looks import CIFAR, NOISE_NAMES, line_of
from experiments.reproduction.noises import NOISES, noise_multipliers
from experiments.reproduction.run import Known, Run


@dataclass(frozen=True)
class Curve:
    """Mean and standard deviation of the accuracy over seeds, step by step."""

    steps: NDArray[np.int64]
    mean: NDArray[np.float64]
    sd: NDArray[np.float64]


def curve(runs: Sequence[Run], known: Known) -> Curve | None:
    """Return the curve of the runs that are finished; None if none is."""
    found = [known[run] for run in runs if run in known]
    if not found:
        return None
    values = np.array([outcome.accuracies for outcome in found])
    sd = values.std(axis=0, ddof=1) if len(found) > 1 else np.zeros(values.shape[1])
    return Curve(np.array(found[0].steps), values.mean(axis=0), sd)


def noise_on_parameters(run: HeadRun) -> NDArray[np.float64]:
    """Return η_t·C_G·z_t/m, the noise that a step adds to each parameter."""
    eta, z = run.mechanism.stepsizes(), noise_multipliers(run.mechanism)
    return np.asarray(eta * z * run.clip_norm / run.setting.batch_size)


def draw_noise(
    axes: Axes, profile: Profile, schedule: str, place: Place, accounting: str, width: float = 1.5
) -> None:
    """Draw the noise that reaches the parameters, one line per noise."""
    for noise in NOISES:
        values = noise_on_parameters(seeds_of(profile, schedule, place, noise, accounting, [0])[0])
        steps = range(1, values.size + 1)
        axes.plot(steps, values, linewidth=width, label=NOISE_NAMES[noise], **line_of(noise))
    axes.set(xlabel="iteration t", ylabel="noise on a parameter, η_t·C_G·z_t/m", yscale="log")


def draw_accuracy(
    axes: Axes, profile: Profile, schedule: str, place: Place, accounting: str,
    seeds: Sequence[int], known: Known,
) -> None:  # fmt: skip
    """Draw the accuracy of every noise, with one standard deviation around it."""
    for noise in NOISES:
        runs = seeds_of(profile, schedule, place, noise, accounting, seeds)
        found = curve(runs, known)
        if found is None:
            continue
        look = line_of(noise)
        axes.plot(found.steps, found.mean, label=NOISE_NAMES[noise], **look)
        band = found.mean - found.sd, found.mean + found.sd
        axes.fill_between(found.steps, *band, color=look["color"], alpha=0.2, linewidth=0)
    axes.set(xlabel="iteration t", ylabel=f"{CIFAR}: test accuracy, %")
