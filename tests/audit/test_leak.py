"""The paper's literal rule leaks: step sizes that follow raw gradients tell what noise hides."""

from typing import Any

import numpy as np
import pytest
import torch
from experiments.adaptive_leak import EPSILON, Attack, gaussian_controls
from torch import nn

import dither
from dither.audit import independent_bound
from dither.schedules import AdaGradNorm, Reactive, UnsafeRawAdaGradNorm

WIDTH, TRIALS, STEPS = 400, 120, 3


def plan_of(kind: type[Any]) -> dither.planning.ReactivePlan:
    rule: Reactive = kind(b0_squared=0.01, nu=1e-4)
    return dither.plan(
        epsilon=1.0, delta=1e-5, dataset_size=2, batch_size=2, steps=STEPS, sampling="fixed",
        stepsizes=rule, noise="uniform",
    )  # fmt: skip


def size_of_steps(plan: dither.planning.ReactivePlan, is_in: bool, seed: int) -> float:
    """Return the mean log size of the steps in coordinates in which no record has a gradient."""
    records = torch.zeros(2, WIDTH)
    records[0, 0] = 1.0 if is_in else 0.0
    model = nn.Linear(WIDTH, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    run = dither.make_private(model, optimizer, plan, records, seed=seed)
    sizes, before = [], model.weight.detach().clone()
    for inputs in run.batches():
        run.backward(run.model(inputs)[:, 0])
        optimizer.step()
        moved = model.weight.detach() - before
        sizes.append(float(moved[0, 1:].norm().log()))
        before = model.weight.detach().clone()
    return float(np.mean(sizes))


def lower_bound(kind: type[Any]) -> float:
    """Return the lower bound on ε, with a threshold from a rehearsal."""
    plan, included = plan_of(kind), np.random.default_rng(1).random(TRIALS) < 0.5
    rehearsal = [
        np.mean([size_of_steps(plan, is_in, 1000 + i) for i in range(10)])
        for is_in in (True, False)
    ]
    threshold = float(np.mean(rehearsal))
    sizes = np.array([size_of_steps(plan, bool(is_in), i) for i, is_in in enumerate(included)])
    right = int(((sizes < threshold) == included).sum())
    return independent_bound(right, TRIALS, trials=TRIALS, delta=1e-5, confidence=0.95)


def test_the_librarys_unsafe_rule_gives_its_records_away() -> None:
    """By its noise alone it would be (1, 1e-5)-private; it claims nothing, and rightly so."""
    plan = plan_of(UnsafeRawAdaGradNorm)
    assert plan.noises is not None
    assert plan.noises.bound.epsilon <= 1.0
    assert plan.bound.epsilon == float("inf")
    assert lower_bound(UnsafeRawAdaGradNorm) > 3.0


def test_the_rule_that_follows_releases_does_not() -> None:
    assert lower_bound(AdaGradNorm) < 1.0


@pytest.mark.parametrize("b0_squared", [0.1, 20.0])
def test_the_theorem_is_refuted_for_raw_gradients(b0_squared: float) -> None:
    assert Attack("raw", b0_squared, 10_000).lower()[0] > 7.0 > EPSILON
    assert Attack("released", b0_squared, 10_000).lower()[0] < EPSILON


def test_the_same_attack_finds_what_there_is_to_find() -> None:
    """Of Gaussians with a known ε it proves a third or more."""
    for row in gaussian_controls():
        assert 0.3 * row["epsilon"] < row["lower"] < row["epsilon"]
