"""A small convolutional network from random initialisation, with uniform noise."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dither
from dither.data import load
from dither.schedules import InverseSqrt
from experiments.reproduction.features import FeatureSet
from experiments.reproduction.noises import DELTA
from experiments.reproduction.run import Outcome

CLIP_NORM, _WORK_OF_A_STEP = 1.0, 20.0


@dataclass(frozen=True)
class NetworkSetting:
    """What all runs of a profile have in common.

    Attributes:
        images: how many training images; the test images are a sixth as many.
        batch_size: m.
        epochs: of ⌈n/m⌉ steps each.
    """

    images: int = 60_000
    batch_size: int = 256
    epochs: int = 50

    @property
    def steps_per_epoch(self) -> int:
        """⌈n/m⌉."""
        return math.ceil(self.images / self.batch_size)

    @property
    def steps(self) -> int:
        """T."""
        return self.epochs * self.steps_per_epoch


@dataclass(frozen=True)
class NetworkRun:
    """A run with η_t = 1/√(2+ct) and the same noise multiplier σ in every step."""

    kind: ClassVar[str] = "network"
    setting: NetworkSetting
    dataset: str
    sigma: float
    c: float
    seed: int

    @property
    def work(self) -> float:
        """Its steps, which take longer than the linear head's."""
        return _WORK_OF_A_STEP * self.setting.steps

    @property
    def features(self) -> FeatureSet | None:
        """None: it sees the images."""
        return None

    def plan(self) -> dither.Plan:
        """Return the plan."""
        own = self.setting
        return dither.Plan.from_noise_multipliers(
            np.full(own.steps, self.sigma),
            delta=DELTA,
            dataset_size=own.images,
            batch_size=own.batch_size,
            clip_norm=CLIP_NORM,
            stepsizes=InverseSqrt(a=2.0, c=self.c),
        )

    @property
    def group(self) -> Hashable:
        """None can be trained beside it."""
        return self

    @classmethod
    def measure(cls, runs: Sequence["NetworkRun"]) -> list[Outcome]:
        """Train, and measure after every epoch."""
        return [run._measure() for run in runs]

    def _measure(self) -> Outcome:
        torch.set_num_threads(1)
        torch.manual_seed(self.seed)
        train, test = _images(self.dataset, self.setting.images)
        result = dither.train(
            cnn(),
            train,
            self.plan(),
            evaluate=dither.Public(test),
            every=self.setting.steps_per_epoch,
            progress=False,
            seed=self.seed,
        )
        rows = result.history
        accuracies = tuple(round(100.0 * row.metrics["accuracy"], 2) for row in rows)
        return Outcome(tuple(row.step for row in rows), accuracies, result.bound.epsilon, {})


def cnn() -> nn.Module:
    """Return two convolutions and a hidden layer, with tanh, for images of 28 × 28."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=4), nn.Tanh(), nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.AdaptiveAvgPool2d(4),
        nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip


@lru_cache(maxsize=1)
def _images(dataset: str, count: int) -> tuple[TensorDataset, TensorDataset]:
    split = load(dataset)
    parts = []
    for examples, kept in ((split.train, count), (split.test, count // 6)):
        parts.append(TensorDataset(examples.inputs[:kept], examples.targets[:kept]))  # type: ignore[union-attr]
    return parts[0], parts[1]
