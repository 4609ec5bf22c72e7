"""Many linear heads at once, each along a plan of its own, by the same draws.

Runs of one seed draw the same records and the same normals at a step, whatever their noise scale:
so they can share a batch and its normals, and the products of all heads are one product. What comes
out is what `dither.training.train_linear` gives for each alone, several times faster. It is for
comparisons only: heads that share their noise protect nobody, and nothing here is to be released.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dither import Plan
from dither.clipping import ClippedSum
from dither.planning import ReactivePlan
from dither.randomness import Source
from dither.release import margin, release
from dither.sampling import sampler_for
from experiments.reproduction.features import Features

_BLOCK = 16
"""Heads in one product. Blocks are always full, with idle heads if need be: so what a head becomes
does not depend, by any rounding, on which others are beside it."""

AnyPlan = Plan | ReactivePlan


@dataclass(frozen=True)
class Trained:
    """One head.

    Attributes:
        steps: after which steps the accuracy was measured.
        accuracies: at each of them, in percent.
        weight: classes × (features and a constant 1), at the end.
    """

    steps: tuple[int, ...]
    accuracies: tuple[float, ...]
    weight: Tensor


def train_side_by_side(
    features: Features, plans: Sequence[AnyPlan], *, every: int, seed: int, classes: int = 10
) -> list[Trained]:
    """Train a head from zero along each plan: plain SGD, cross-entropy, a constant feature 1.

    Args:
        features: rows and classes, for training and for testing.
        plans: of the same numbers of steps and of records, and the same sampling.
        every: measure after so many steps, and after the last.
        seed: of the draws.
        classes: how many there are.
    """
    first = plans[0]
    shapes = {(p.steps, p.dataset_size, p.batch_size, p.sampling) for p in plans}
    if len(shapes) != 1:
        raise ValueError(f"plans must have the same steps, records and sampling, got {shapes}")
    rows, source = _with_constant(features.train), Source(seed)
    norms = torch.linalg.vector_norm(rows, dim=1)
    sampler = sampler_for(first, length=len(rows))
    blocks = [
        _Block(plans[start : start + _BLOCK], rows.shape[1], classes)
        for start in range(0, len(plans), _BLOCK)
    ]
    test, measured = _with_constant(features.test), list[int]()
    for t in range(first.steps):
        records = torch.from_numpy(sampler.draw(len(rows), source.stream("sampling", t)))
        batch, targets = rows.index_select(0, records), features.train_targets[records]
        normals = _normals((rows.shape[1], classes), source.stream("noise", t))
        for block in blocks:
            block.step(batch, norms[records], targets, normals)
        if (t + 1) % every == 0 or t + 1 == first.steps:
            measured.append(t + 1)
            for block in blocks:
                block.measure(test, features.test_targets)
    return [
        Trained(tuple(measured), tuple(accuracies), weight)
        for block in blocks
        for accuracies, weight in zip(block.accuracies, block.weights, strict=False)
    ]


class _Block:
    """Heads that are computed together; those without a plan idle."""

    def __init__(self, plans: Sequence[AnyPlan], columns: int, classes: int) -> None:
        self._courses = [plan.new_state() for plan in plans]
        self._m = plans[0].batch_size
        self._margin = (1.0 + margin(self._m)) / (1.0 + margin(1))
        self._clip_norms = torch.ones(_BLOCK)
        self._clip_norms[: len(plans)] = torch.tensor([plan.clip_norm for plan in plans])
        self._reacts = any(isinstance(plan, ReactivePlan) for plan in plans)
        self.weights = torch.zeros(_BLOCK, classes, columns)
        self.accuracies: list[list[float]] = [[] for _ in plans]

    def step(self, batch: Tensor, norms: Tensor, targets: Tensor, normals: Tensor) -> None:
        """Take the next step of every head that has one."""
        noises = [self._spend(state) for state in self._courses]
        gradients = self._clipped_mean(batch, norms, targets)
        raw = gradients.square().sum(dim=(1, 2)).tolist() if self._reacts else [0.0] * _BLOCK
        scales = torch.zeros(_BLOCK)
        scales[: len(noises)] = torch.tensor([z or 0.0 for z in noises])
        scales *= self._clip_norms * (self._margin / self._m)
        gradients.addcmul_(scales[:, None, None], normals)
        seen = gradients.double().square().sum(dim=(1, 2)).tolist() if self._reacts else raw
        stepsizes = torch.zeros(_BLOCK)
        for k, (state, z) in enumerate(zip(self._courses, noises, strict=True)):
            if z is not None:
                spread = float(scales[k]) * (1.0 + margin(1)) if self._reacts else 0.0
                release_ = _Seen(seen[k], spread, normals.numel())
                stepsizes[k] = state.stepsize(release_, lambda k=k: raw[k])  # type: ignore[misc]
        self.weights.addcmul_(stepsizes[:, None, None], gradients, value=-1.0)

    def measure(self, rows: Tensor, targets: Tensor) -> None:
        """Add the accuracies on these rows."""
        flat = self.weights.flatten(0, 1)
        right = torch.zeros(_BLOCK, dtype=torch.int64)
        for piece, wanted in zip(rows.split(2000), targets.split(2000), strict=True):
            guesses = (piece @ flat.T).view(len(piece), _BLOCK, -1).argmax(2)
            right += (guesses == wanted[:, None]).sum(0)
        for accuracies, count in zip(self.accuracies, right.tolist(), strict=False):
            accuracies.append(round(100.0 * count / len(rows), 2))

    def _clipped_mean(self, batch: Tensor, norms: Tensor, targets: Tensor) -> Tensor:
        scores = (batch @ self.weights.flatten(0, 1).T).view(len(batch), _BLOCK, -1)
        r = torch.softmax(scores, dim=2)
        r[torch.arange(len(r)), :, targets] -= 1.0
        lengths = torch.linalg.vector_norm(r, dim=2) * norms[:, None]
        r *= (self._clip_norms / lengths).clamp_(max=1.0)[:, :, None]
        return ((r.flatten(1).T @ batch) / self._m).view_as(self.weights)

    @staticmethod
    def _spend(state: Any) -> float | None:
        z: float | None = state.noise_multiplier
        if z is not None:
            state.spend()
        return z


@dataclass(frozen=True)
class _Seen:
    """What a rule may know of a release."""

    square: float
    noise: float
    dimension: int

    def squared_norm(self) -> float:
        return self.square


def _with_constant(rows: Tensor) -> Tensor:
    return torch.cat([rows, torch.ones(len(rows), 1)], dim=1)


def _normals(shape: tuple[int, int], stream: Any) -> Tensor:
    """Return the normals of a step, classes × features, in units of their standard deviation."""
    nothing = ClippedSum({"weight": torch.zeros(shape, dtype=torch.float64)}, torch.zeros(0))
    released = release(nothing, clip_norm=1.0, noise_multiplier=1.0, batch_size=1, stream=stream)
    return released.gradients["weight"].T.float().contiguous()
