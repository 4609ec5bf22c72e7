"""The paper's CIFAR-10 runs: a linear head on fixed features, plain SGD from zero."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

import dither
from dither.training import TrainResult, softmax_residuals, train_linear
from experiments.reproduction.features import FeatureSet, features
from experiments.reproduction.noises import Mechanism
from experiments.reproduction.run import Outcome

BATCH, DIMENSION, LENGTH = 256, 500, 10.0
"""The paper's batches; the projection's columns; and the length of a row of features, for which the
first gradients are about as long as the larger of the paper's clip norms."""


@dataclass(frozen=True)
class HeadSetting:
    """What all runs of a profile have in common.

    Attributes:
        images: how many training images, None for all 50,000.
        batch_size: m.
        dimension: the number of features.
        every: measure after so many steps.
    """

    images: int | None = None
    batch_size: int = BATCH
    dimension: int = DIMENSION
    every: int = 200

    @property
    def dataset_size(self) -> int:
        """The number of training images."""
        return 50_000 if self.images is None else self.images

    def steps(self, epochs: int) -> int:
        """Return T; an epoch has ⌈n/m⌉ steps, 196 for the paper's n and m."""
        return epochs * math.ceil(self.dataset_size / self.batch_size)


@dataclass(frozen=True)
class HeadRun:
    """A run with a step size that is known in advance."""

    kind: ClassVar[str] = "head"
    setting: HeadSetting
    schedule: str
    epochs: int
    eps_bar: float
    clip_norm: float
    noise: str
    accounting: str
    seed: int

    @property
    def mechanism(self) -> Mechanism:
        """Its noise."""
        own = self.setting
        return Mechanism(
            self.schedule, own.steps(self.epochs), own.dataset_size, own.batch_size, self.eps_bar,
            self.noise, self.accounting,
        )  # fmt: skip

    @property
    def work(self) -> float:
        """Its steps."""
        return self.setting.steps(self.epochs)

    @property
    def features(self) -> FeatureSet:
        """The projected features of CIFAR-10."""
        return head_features(self.setting)

    def measure(self) -> Outcome:
        """Train, and measure every few steps."""
        plan = self.mechanism.plan(self.clip_norm)
        return head_outcome(head_trained(self.setting, plan, self.seed))


def head_features(setting: HeadSetting) -> FeatureSet:
    """Return which features the head is trained on."""
    return FeatureSet("cifar10", setting.images, setting.dimension, LENGTH)


def head_trained(
    setting: HeadSetting, plan: dither.Plan | dither.ReactivePlan, seed: int
) -> TrainResult:
    """Train the head along a plan."""
    torch.set_num_threads(1)
    held = features(head_features(setting))
    return train_linear(
        held.train,
        softmax_residuals(held.train_targets.numpy()),
        plan,
        outputs=10,
        constant=1.0,
        momentum=0.0,
        averaging=None,
        evaluate=dither.Public((held.test, held.test_targets)),
        every=setting.every,
        seed=seed,
    )


def head_outcome(result: TrainResult) -> Outcome:
    """Return what a training gave, in percent."""
    epsilon = result.bound.epsilon
    return Outcome(
        steps=tuple(row.step for row in result.history),
        accuracies=tuple(round(100.0 * row.metrics["accuracy"], 2) for row in result.history),
        epsilon=epsilon if math.isfinite(epsilon) else None,
        more={},
    )
