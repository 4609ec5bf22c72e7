"""The paper's CIFAR-10 runs: a linear head on fixed features, plain SGD from zero."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

import dither
from experiments.reproduction.features import FeatureSet, features
from experiments.reproduction.noises import Mechanism
from experiments.reproduction.run import Outcome
from experiments.reproduction.side_by_side import train_side_by_side

BATCH, DIMENSION = 256, 1000


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

    @property
    def group(self) -> Hashable:
        """Runs of one seed and length draw the same records and normals."""
        return self.setting, self.epochs, self.seed

    @classmethod
    def measure(cls, runs: Sequence["HeadRun"]) -> list[Outcome]:
        """Train, and measure every few steps."""
        plans = [run.mechanism.plan(run.clip_norm) for run in runs]
        return head_outcomes(runs[0].setting, plans, runs[0].seed)


def head_features(setting: HeadSetting) -> FeatureSet:
    """Return which features the head is trained on: so long that each is about 1 in size."""
    length = math.sqrt(setting.dimension)
    return FeatureSet("cifar10", images=setting.images, dimension=setting.dimension, length=length)


def head_outcomes(
    setting: HeadSetting, plans: Sequence[dither.Plan | dither.planning.ReactivePlan], seed: int
) -> list[Outcome]:
    """Train a head along each plan, and return what came out."""
    torch.set_num_threads(1)
    held = features(head_features(setting))
    trained = train_side_by_side(held, plans, every=setting.every, seed=seed)
    costs = [plan.bound.epsilon if plan.bound.is_upper_bound else None for plan in plans]
    return [
        Outcome(head.steps, head.accuracies, cost, {})
        for head, cost in zip(trained, costs, strict=True)
    ]
