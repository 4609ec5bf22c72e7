"""A linear model on scattering features or cosines of them, trained as well as dither can."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

import dither
from dither.schedules import Linear, PiecewiseConstant
from dither.training import softmax_loss, train_linear
from experiments.reproduction.features import Features, FeatureSet, features
from experiments.reproduction.noises import DELTA
from experiments.reproduction.run import Outcome

BATCH, CLIP_NORM, MOMENTUM, LEVELS = 8192, 0.1, 0.9, 20
HELD_OUT = 0.1
"""The share of the training images on which settings are chosen."""
_STANDARDIZING = 0.04
"""The share of the steps that release means and not gradients."""
_WORK = 0.004
"""Of one column of one step, in steps of the linear head."""


@dataclass(frozen=True)
class StateSetting:
    """What all runs on one set have in common.

    Attributes:
        dataset: its name.
        mirrored: whether features are those of an image and of its mirror image, added up.
        images: how many training images, None for all.
        batch_size: m.
        dimension: how many cosines of the features; None for the features themselves.
        frequency: of the cosines, if any.
    """

    dataset: str
    mirrored: bool
    images: int | None = None
    batch_size: int = BATCH
    dimension: int | None = None
    frequency: float | None = None


@dataclass(frozen=True)
class StateRun:
    """One training; ε None is without noise or clipping.

    Attributes:
        setting: set and features.
        epsilon: ε at δ = 1e-5.
        steps: T.
        rate: the first step's size times the clip norm.
        is_trial: trained on nine tenths of the training images and measured on the rest.
        seed: of sampling and noise.
    """

    kind: ClassVar[str] = "state"
    setting: StateSetting
    epsilon: float | None
    steps: int
    rate: float
    is_trial: bool
    seed: int

    @property
    def work(self) -> float:
        """Its steps, by their size."""
        return self.steps * (self.setting.dimension or 3_969) * _WORK

    @property
    def features(self) -> FeatureSet:
        """The set's, in a random order."""
        own = self.setting
        return FeatureSet(
            own.dataset,
            images=own.images,
            dimension=own.dimension,
            frequency=own.frequency,
            mirrored=own.mirrored,
            shuffled=True,
        )

    @property
    def group(self) -> Hashable:
        """None can be trained beside it."""
        return self

    @classmethod
    def measure(cls, runs: Sequence["StateRun"]) -> list[Outcome]:
        """Train, and measure at the quarters of the way."""
        return [run._measure() for run in runs]

    def plan(self, dataset_size: int) -> dither.Plan:
        """Return the plan: step sizes that fall linearly, optimal noise."""
        first = self.rate / CLIP_NORM
        sizes: dict[str, Any] = {
            "steps": self.steps,
            "dataset_size": dataset_size,
            "batch_size": min(self.setting.batch_size, dataset_size),
            "stepsizes": PiecewiseConstant(Linear(first, first / 20.0), LEVELS),
        }
        if self.epsilon is None:
            return dither.Plan.unsafe_without_noise(**sizes)
        planned: dither.Plan = dither.plan(
            epsilon=self.epsilon, delta=DELTA, clip_norm=CLIP_NORM, **sizes
        )
        return planned

    def _measure(self) -> Outcome:
        torch.set_num_threads(1)
        rows, targets, test, test_targets = self._parts(features(self.features))
        result = train_linear(
            rows,
            softmax_loss(targets.numpy(), 10),
            self.plan(len(rows)),
            outputs=10,
            constant=0.1,
            momentum=MOMENTUM,
            standardizing=max(1, round(_STANDARDIZING * self.steps)),
            averaging="tail",
            evaluate=dither.Public((test, test_targets)),
            every=max(1, self.steps // 4),
            seed=self.seed,
        )
        accuracies = tuple(round(100.0 * row.metrics["accuracy"], 2) for row in result.history)
        cost = result.bound.epsilon if result.bound.is_upper_bound else None
        return Outcome(tuple(row.step for row in result.history), accuracies, cost, {})

    def _parts(self, held: Features) -> tuple[torch.Tensor, ...]:
        if not self.is_trial:
            return held.train, held.train_targets, held.test, held.test_targets
        kept = len(held.train) - round(HELD_OUT * len(held.train))
        return (
            held.train[:kept],
            held.train_targets[:kept],
            held.train[kept:].clone(),
            held.train_targets[kept:],
        )
