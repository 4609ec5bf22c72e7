"""The distribution of one released step, through the whole of a loop."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from tests.training.loops import noisy_plan
from torch import nn

import dither
from dither import Plan

WIDTH = 30_000
LEVEL = 1e-6


def released(plan: Plan, dataset: Any, seed: int | None = 3) -> NDArray[np.float64]:
    """Return the gradient that the optimizer sees in the first step of a wide linear model."""
    made = nn.Linear(WIDTH, 1, bias=False)
    run = dither.make_private(
        made, torch.optim.SGD(made.parameters(), lr=1.0), plan, dataset, seed=seed
    )
    seen: list[NDArray[np.float64]] = []
    run.optimizer.register_step_post_hook(
        lambda *_: seen.append(made.weight.grad.flatten().double().numpy().copy())
    )
    for inputs in run.batches():
        run.backward(run.model(inputs)[:, 0])
        run.optimizer.step()
        break
    return seen[0]


@pytest.fixture(scope="module")
def noise() -> NDArray[np.float64]:
    """Noise in units of the plan's: the gradient of all records is zero."""
    plan = noisy_plan(z=2.0, clip_norm=0.5)
    return released(plan, torch.zeros(120, WIDTH)) * plan.batch_size / (0.5 * 2.0)


def accepts(noise: NDArray[np.float64]) -> tuple[bool, bool]:
    """Return the verdicts of a Kolmogorov–Smirnov test and a test of the variance."""
    low, high = (float(stats.chi2.ppf(p, noise.size)) for p in (LEVEL / 2, 1 - LEVEL / 2))
    shape = float(stats.kstest(noise, "norm").pvalue) > LEVEL
    return shape, low < float(noise @ noise) < high


def test_noise_is_as_planned(noise: NDArray[np.float64]) -> None:
    assert accepts(noise) == (True, True)


@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_noise_that_is_three_percent_off_is_found(
    noise: NDArray[np.float64], factor: float
) -> None:
    assert not accepts(noise * factor)[1]
    many = np.concatenate([noise, -noise, np.roll(noise, 1)])
    assert stats.kstest(many * factor, "norm").pvalue < stats.kstest(many, "norm").pvalue


@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_the_shape_test_alone_finds_it_in_a_longer_sample(factor: float) -> None:
    plan = noisy_plan(z=2.0, clip_norm=0.5)
    parts = [released(plan, torch.zeros(120, WIDTH), seed) for seed in range(12)]
    sample = np.concatenate(parts) * plan.batch_size
    assert stats.kstest(sample, "norm").pvalue > LEVEL
    assert stats.kstest(sample * factor, "norm").pvalue < LEVEL


def test_the_divisor_is_the_expected_batch_size_whatever_was_drawn() -> None:
    inputs = torch.zeros(120, WIDTH)
    inputs[:, 0] = 1.0
    drawn = set()
    for seed in range(4):
        quiet = Plan.unsafe_without_noise(steps=1, dataset_size=120, batch_size=12)
        total = released(quiet, inputs, seed)[0] * 12
        assert total == pytest.approx(round(total), abs=1e-5)
        drawn.add(round(total))
    assert len(drawn) > 1


def test_unseeded_steps_never_repeat() -> None:
    plan = noisy_plan(z=1.0)
    zeros = torch.zeros(120, WIDTH)
    one, two = released(plan, zeros, None), released(plan, zeros, None)
    assert abs(float(np.corrcoef(one, two)[0, 1])) < stats.norm.ppf(1 - LEVEL) / WIDTH**0.5
    assert np.array_equal(released(plan, zeros, 3), released(plan, zeros, 3))
