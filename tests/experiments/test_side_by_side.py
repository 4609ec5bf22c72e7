"""Heads that are trained together are what `train_linear` makes of each alone."""

from typing import Any

import numpy as np
import pytest
import torch
from experiments.reproduction.features import Features
from experiments.reproduction.side_by_side import train_side_by_side

import dither
from dither.schedules import AdaGradNorm, InverseSqrt, UnsafeRawAdaGradNorm
from dither.training import softmax_loss, train_linear

N, M, T, CLASSES = 400, 40, 60, 3
Plans = list[dither.Plan | dither.planning.ReactivePlan]
SIZES: dict[str, Any] = {"dataset_size": N, "batch_size": M, "delta": 1e-5}


@pytest.fixture(scope="module")
def features() -> Features:
    random = torch.Generator().manual_seed(0)
    targets = torch.arange(N + 100) % CLASSES
    means = torch.randn(CLASSES, 12, generator=random)
    rows = 2.0 * torch.randn(N + 100, 12, generator=random) + means[targets]
    return Features(rows[:N], targets[:N], rows[N:], targets[N:])


@pytest.fixture(scope="module")
def plans() -> Plans:
    fixed = [
        dither.Plan.from_noise_multipliers(
            np.linspace(z, 2.0 * z, T), clip_norm=clip_norm, stepsizes=InverseSqrt(), **SIZES
        )
        for z in (0.5, 2.0)
        for clip_norm in (0.5, 1.0, 5.0)
    ]
    rule = {"b0_squared": 20.0, "nu": 1e-5, "beta": 8.0}
    reacting = [
        dither.plan(epsilon=3.0, steps=T, stepsizes=kind(**rule), noise=noise, **SIZES)
        for kind, noise in (
            (AdaGradNorm, "uniform"),
            (AdaGradNorm, "filter"),
            (UnsafeRawAdaGradNorm, "uniform"),
        )
    ]
    return [*fixed, *reacting]


def test_together_they_are_what_each_is_alone(features: Features, plans: Plans) -> None:
    together = train_side_by_side(features, plans, every=25, seed=4, classes=CLASSES)
    public = dither.Public((features.test, features.test_targets))
    for plan, head in zip(plans, together, strict=True):
        alone = train_linear(
            features.train,
            softmax_loss(features.train_targets.numpy(), CLASSES),
            plan,
            outputs=CLASSES,
            constant=1.0,
            momentum=0.0,
            averaging=None,
            evaluate=public,
            every=25,
            seed=4,
        )
        weight, bias = (p.detach() for p in alone.model.parameters())
        expected = torch.cat([weight, bias[:, None]], dim=1)
        # Sixty steps in single precision, whose products are added up in another order.
        rounding = T * 2.0**-23 * float(expected.abs().max())
        assert torch.allclose(head.weight, expected, rtol=0.0, atol=rounding)
        assert head.steps == tuple(row.step for row in alone.history) == (25, 50, 60)
        found = [100.0 * row.metrics["accuracy"] for row in alone.history]
        assert head.accuracies == pytest.approx(found, abs=1e-9)


def test_neighbours_and_their_number_change_no_bit(features: Features, plans: Plans) -> None:
    many = plans
    given: dict[str, Any] = {"every": 60, "seed": 4, "classes": CLASSES}
    together = train_side_by_side(features, 2 * many, **given)
    for place in (0, 4, 8):
        alone = train_side_by_side(features, [many[place]], **given)[0]
        assert torch.equal(alone.weight, together[place].weight)
        assert torch.equal(alone.weight, together[place + len(many)].weight)
    other = train_side_by_side(features, [many[0]], **{**given, "seed": 5})[0]
    assert not torch.equal(other.weight, together[0].weight)


def test_plans_of_different_lengths_are_refused(features: Features, plans: Plans) -> None:
    longer = dither.Plan.from_noise_multipliers(np.ones(T + 1), **SIZES)
    with pytest.raises(ValueError, match="plans must have the same steps"):
        train_side_by_side(features, [plans[0], longer], every=60, seed=0)
