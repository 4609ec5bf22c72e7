"""All tables and figures, by name."""

from typing import Any

from experiments import (
    figure1,
    figure2,
    figure3,
    figure_constant_vs_decay,
    state_of_the_art,
    table_adaptive,
    table_decay_to_zero,
    table_inverse_sqrt,
)
from experiments.reproduction.adaptive import AdaptiveRun
from experiments.reproduction.experiment import Experiment
from experiments.reproduction.head import HeadRun
from experiments.reproduction.network import NetworkRun
from experiments.reproduction.state import StateRun

_ALL: tuple[Experiment, ...] = (
    figure1.EXPERIMENT,
    figure2.EXPERIMENT,
    table_decay_to_zero.EXPERIMENT,
    table_inverse_sqrt.EXPERIMENT,
    figure3.EXPERIMENT,
    table_adaptive.EXPERIMENT,
    figure_constant_vs_decay.EXPERIMENT,
    state_of_the_art.EXPERIMENT,
)
EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _ALL}
KINDS: dict[str, type[Any]] = {
    kind.kind: kind for kind in (HeadRun, AdaptiveRun, NetworkRun, StateRun)
}
