"""The noise that `train_linear` gives for its weights, against runs without any loss."""

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

import dither
from dither.schedules import Linear
from dither.training import LinearLoss, train_linear
from dither.training.averaging import find_averaging
from dither.training.linear import _weight_noise

COLUMNS = 4000
NOTHING = LinearLoss(lambda scores, _: torch.zeros_like(scores))


@lru_cache
def plan_of(steps: int) -> dither.Plan:
    plan = dither.plan(
        epsilon=1.0, delta=1e-4, dataset_size=40, batch_size=20, steps=steps,
        stepsizes=Linear(3.0, 0.5), clip_norm=0.7, noise="optimal",
    )  # fmt: skip
    assert isinstance(plan, dither.Plan)
    return plan


@pytest.mark.parametrize("averaging", ["tail", "ema", None])
@pytest.mark.parametrize(("momentum", "standardizing"), [(0.0, 0), (0.9, 0), (0.9, 6)])
def test_weights_without_a_loss_have_the_noise(
    averaging: str | None, momentum: float, standardizing: int
) -> None:
    settings: dict[str, Any] = {"averaging": averaging, "momentum": momentum, "seed": 0}
    result = train_linear(
        torch.zeros(40, COLUMNS), NOTHING, plan_of(24), outputs=1, standardizing=standardizing,
        **settings,
    )  # fmt: skip
    found = float(result.model.weight.detach().std())
    assert result.weight_noise is not None
    # 4,000 weights: the ratio is known to 1/√8000 = 1.1 %.
    assert found / result.weight_noise == pytest.approx(1.0, abs=0.045)
    wrong = _weight_noise(plan_of(24), standardizing, 0.5, find_averaging(averaging))
    if standardizing == 0:
        assert abs(found / wrong - 1.0) > 0.045


def test_the_recursion_without_a_loss_has_the_noise() -> None:
    plan, rng = plan_of(24), np.random.default_rng(0)
    weighting = find_averaging("tail")
    weight, velocity, average = np.zeros((3, COLUMNS))
    for step in range(3, 24):
        noise = plan.clip_norm * plan.noise_multipliers[step] / plan.batch_size
        velocity = 0.8 * velocity + 0.2 * noise * rng.normal(size=COLUMNS)
        weight = weight - plan.stepsizes[step] * velocity
        average = average + weighting(step + 1, 24) * (weight - average)
    expected = _weight_noise(plan, 3, 0.8, weighting)
    assert average.std() == pytest.approx(expected, rel=0.045)
    assert weight.std() != pytest.approx(expected, rel=0.045)
    assert average.std() != pytest.approx(_weight_noise(plan, 0, 0.8, weighting), rel=0.045)
