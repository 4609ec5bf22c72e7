from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from dither.schedules import Cosine, Exponential, Step, from_torch

Make = Callable[[Optimizer], LRScheduler]


def exponential(optimizer: Optimizer) -> LRScheduler:
    return lr_scheduler.ExponentialLR(optimizer, gamma=0.9)


def test_reads_what_the_scheduler_would_do() -> None:
    eta = from_torch(exponential, stepsize=0.5).stepsizes(20)
    np.testing.assert_allclose(eta, Exponential(0.5, 0.9).stepsizes(20), rtol=1e-12)


def test_agrees_with_closed_forms() -> None:
    def cosine(optimizer: Optimizer) -> LRScheduler:
        return lr_scheduler.CosineAnnealingLR(optimizer, T_max=99, eta_min=0.01)

    def staircase(optimizer: Optimizer) -> LRScheduler:
        return lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.5)

    np.testing.assert_allclose(
        from_torch(cosine).stepsizes(100), Cosine(1.0, 0.01).stepsizes(100), rtol=1e-9
    )
    np.testing.assert_allclose(
        from_torch(staircase).stepsizes(100), Step(1.0, 0.5, 7).stepsizes(100), rtol=1e-12
    )


def test_one_cycle_matches_a_real_training_loop() -> None:
    def one_cycle(optimizer: Optimizer) -> LRScheduler:
        return lr_scheduler.OneCycleLR(optimizer, max_lr=0.3, total_steps=51)

    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
    scheduler = one_cycle(optimizer)
    seen = []
    for _ in range(50):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    np.testing.assert_array_equal(from_torch(one_cycle).stepsizes(50), seen)


def test_is_a_value_and_reads_afresh() -> None:
    schedule = from_torch(exponential)
    assert schedule == from_torch(exponential)
    assert schedule != from_torch(exponential, stepsize=2.0)
    np.testing.assert_array_equal(schedule.stepsizes(5), schedule.stepsizes(5))


def test_refuses_what_is_not_known_in_advance() -> None:
    plateau: Make = lr_scheduler.ReduceLROnPlateau
    with pytest.raises(TypeError, match="known in advance, got ReduceLROnPlateau"):
        from_torch(plateau).stepsizes(3)
    with pytest.raises(TypeError, match="make_scheduler must return .* got NoneType"):
        from_torch(lambda optimizer: None).stepsizes(3)  # type: ignore[arg-type, return-value]
    elsewhere = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)
    with pytest.raises(ValueError, match="attach its scheduler to the optimizer that it is given"):
        from_torch(lambda optimizer: exponential(elsewhere)).stepsizes(3)
    with pytest.raises(TypeError, match="make_scheduler must be a function"):
        from_torch(0.1)  # type: ignore[arg-type]


def test_refuses_a_scheduler_that_reaches_zero() -> None:
    def to_zero(optimizer: Optimizer) -> LRScheduler:
        return lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=4)

    with pytest.raises(ValueError, match=r"stepsizes\[4\] must be positive and finite, got 0.0"):
        from_torch(to_zero).stepsizes(5)
