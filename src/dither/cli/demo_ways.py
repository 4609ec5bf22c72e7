"""The ways to train that ``dither demo`` compares, each with settings that somebody published.

Nothing was searched for this comparison. Opacus' example and the paper have one set of numbers per
ε: that of the nearest ε is taken, with its batch size, epochs, step sizes and clip norm. The number
of steps follows from the number of records, and the noise from ε and δ.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from sklearn.neural_network import MLPClassifier
from torch import nn

from dither import validate
from dither.data import Examples
from dither.estimators import PrivateLogisticRegression
from dither.planning import Plan, plan
from dither.schedules import Constant, InverseSqrt
from dither.training import MODELS, Public, TrainResult, recipe, train

OPACUS = {1.16: (15, 0.25, 1.5), 2.91: (60, 0.15, 1.0), 6.86: (45, 0.25, 1.5)}
"""By ε: epochs, learning rate and clip norm in examples/mnist_README.md, with batches of 240."""

PAPER = {0.29: (120, 0.5), 0.43: (60, 1.0), 0.57: (120, 1.0), 1.23: (120, 2.5), 3.24: (120, 5.0)}
"""By numerical ε: epochs and clip norm of the paper's best ADP-SGD with step sizes 1/√(20 + t)."""

_HIDDEN, _POINTS = 128, 20
_Settings = TypeVar("_Settings")


@dataclass(frozen=True)
class Trained:
    """What one training run gave.

    Attributes:
        accuracy: on the test records, in percent.
        epsilon: ε that was spent; inf without privacy.
        steps: T.
        curve: ε and accuracy along the run, where `dither.train` measured them.
        result: of `dither.train`, or None.
    """

    accuracy: float
    epsilon: float
    steps: int
    curve: tuple[tuple[float, float], ...] = ()
    result: TrainResult | None = None


@dataclass(frozen=True)
class Way:
    """A way to train.

    Attributes:
        name: in the table and in the picture.
        run: trains with a seed.
        work: about how long that takes, relative to the others.
    """

    name: str
    run: Callable[[int], Trained]
    work: int


def ways(records: Examples, test: Examples, epsilon: float) -> list[Way]:
    """Return the ways to train on records, with δ = 1/(10·n) where there is privacy."""
    n, data = len(records), (records, test)
    steps = recipe(_network(records, 0), dataset_size=n, epsilon=epsilon).steps
    epochs, rate, clip_norm = _nearest(OPACUS, epsilon)
    how: dict[str, Any] = {"stepsizes": Constant(rate), "noise": "uniform"}
    opacus = _plan(n, epsilon, 240, epochs, clip_norm=clip_norm, **how)
    epochs, clip_norm = _nearest(PAPER, epsilon)
    how = {"stepsizes": InverseSqrt(20), "noise": "matched"}
    paper = _plan(n, epsilon, 256, epochs, clip_norm=clip_norm, **how)
    return [
        Way("no privacy", partial(_fit_without_privacy, *data), steps // 4),
        Way("dither, a network", partial(_train, *data, epsilon, steps), steps),
        Way("dither, a linear model", partial(_fit_linear, *data, epsilon), 1),
        *(
            Way(name, partial(_train, *data, made, made.steps), made.steps)
            for name, made in (
                ("DP-SGD, Opacus' settings", opacus),
                ("ADP-SGD, the paper's settings", paper),
            )
        ),
    ]


def _nearest(settings: Mapping[float, _Settings], epsilon: float) -> _Settings:
    """Return the settings whose ε is nearest, as a ratio."""
    return settings[min(settings, key=lambda known: abs(math.log(known / epsilon)))]


def _plan(n: int, epsilon: float, batch_size: int, epochs: int, **how: Any) -> Plan:
    m = min(batch_size, n)
    steps = validate.steps_in(epochs, batch_size=m, dataset_size=n)
    made: Plan = plan(
        epsilon=epsilon, delta=0.1 / n, dataset_size=n, batch_size=m, steps=steps, **how
    )
    return made


def _network(records: Examples, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS["mlp"](tuple(records.inputs.shape[1:]), len(records.classes))


def _train(records: Examples, test: Examples, by: Plan | float, steps: int, seed: int) -> Trained:
    """Train by a plan, with SGD, or by ε alone, with what dither chooses."""
    model, every = _network(records, seed), -(-steps // _POINTS)
    fit = partial(train, evaluate=Public(test), every=every, progress=False, seed=seed)
    result = fit(model, records, by) if isinstance(by, Plan) else fit(model, records, epsilon=by)
    curve = tuple((row.epsilon, 100.0 * row.metrics["accuracy"]) for row in result.history)
    return Trained(curve[-1][1], result.bound.epsilon, result.steps, curve, result)


def _fit_without_privacy(records: Examples, test: Examples, seed: int) -> Trained:
    """Fit scikit-learn's network with its own settings, until it has converged."""
    network = MLPClassifier((_HIDDEN,), activation="tanh", max_iter=2000, random_state=seed)
    network.fit(*_arrays(records))
    steps = network.n_iter_ * -(-len(records) // min(200, len(records)))
    return Trained(100.0 * network.score(*_arrays(test)), math.inf, steps)


def _fit_linear(records: Examples, test: Examples, epsilon: float, seed: int) -> Trained:
    """Fit dither's estimator; the bounds of pixels and the set of digits are public."""
    fitted = PrivateLogisticRegression(
        epsilon=epsilon,
        feature_bounds=(0, 1),
        classes=list(range(len(records.classes))),
        random_state=seed,
    ).fit(*_arrays(records))
    accuracy = 100.0 * fitted.score(*_arrays(test))
    return Trained(accuracy, fitted.privacy_.epsilon, fitted.plan_.steps)


def _arrays(examples: Examples) -> tuple[Any, Any]:
    return examples.inputs.flatten(1).double().numpy(), examples.targets.numpy()
