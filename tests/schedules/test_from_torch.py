from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from transformers import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_cosine_with_hard_restarts_schedule_with_warmup,
    get_inverse_sqrt_schedule,
    get_linear_schedule_with_warmup,
    get_polynomial_decay_schedule_with_warmup,
)

import dither
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


def rates_of(make: Make, steps: int) -> list[float]:
    """Return the learning rates of a real loop, zeros and all."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=0.5)
    scheduler = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("make", "ends_at_zero"),
    [
        (lambda o: get_linear_schedule_with_warmup(o, 4, 20), True),
        (lambda o: get_cosine_schedule_with_warmup(o, 4, 20), True),
        (lambda o: get_cosine_with_hard_restarts_schedule_with_warmup(o, 4, 20, 2), True),
        (lambda o: get_polynomial_decay_schedule_with_warmup(o, 4, 20, lr_end=1e-3), False),
        (lambda o: get_constant_schedule_with_warmup(o, 4), False),
        (lambda o: get_inverse_sqrt_schedule(o, 4), False),
        (lambda o: lr_scheduler.LambdaLR(o, lambda step: min(step, 3) / 3), False),
    ],
)
def test_a_warm_up_from_zero_begins_one_step_later(make: Make, ends_at_zero: bool) -> None:
    rates = rates_of(make, 21)
    assert rates[0] == 0.0
    assert min(rates[1:20]) > 0.0
    assert (rates[20] == 0.0) is ends_at_zero
    expected = [*rates[1:20], rates[19] if ends_at_zero else rates[20]]
    np.testing.assert_array_equal(from_torch(make, stepsize=0.5).stepsizes(20), expected)


def test_a_warm_up_can_be_planned() -> None:
    schedule = from_torch(lambda o: get_cosine_schedule_with_warmup(o, 2, 10))
    plan = dither.plan(
        epsilon=1.0, delta=1e-5, dataset_size=1000, batch_size=100, steps=10, stepsizes=schedule
    )
    np.testing.assert_array_equal(plan.stepsizes, schedule.stepsizes(10))


def test_zero_at_the_last_step_alone_becomes_the_rate_before() -> None:
    def to_zero(optimizer: Optimizer) -> LRScheduler:
        return lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=4)

    np.testing.assert_allclose(from_torch(to_zero).stepsizes(4), [1.0, 0.75, 0.5, 0.25])
    np.testing.assert_allclose(from_torch(to_zero).stepsizes(5), [1.0, 0.75, 0.5, 0.25, 0.25])
    with pytest.raises(ValueError, match="got 0 at step 4 of 6: plan no more steps than it has"):
        from_torch(to_zero).stepsizes(6)


@pytest.mark.parametrize(
    ("factors", "step"), [([1, 0, 1, 1], 1), ([0, 1, 0, 1], 1), ([0] * 9, 0), ([1, 1, 0, 0], 2)]
)
def test_refuses_zeros_elsewhere(factors: list[float], step: int) -> None:
    def make(optimizer: Optimizer) -> LRScheduler:
        return lr_scheduler.LambdaLR(optimizer, lambda t: factors[min(t, len(factors) - 1)])

    with pytest.raises(ValueError, match=f"at its two ends only, got 0 at step {step} of 4"):
        from_torch(make).stepsizes(4)


def test_refuses_rates_that_are_no_step_sizes() -> None:
    def negative(optimizer: Optimizer) -> LRScheduler:
        return lr_scheduler.LambdaLR(optimizer, lambda t: 1.0 - t)

    with pytest.raises(ValueError, match="make_scheduler must return"):
        from_torch(negative).stepsizes(4)
    with pytest.raises(ValueError, match=r"stepsizes\[1\] must be positive and finite, got -0.5"):
        from_torch(lambda o: lr_scheduler.LambdaLR(o, lambda t: 1.0 - 1.5 * t)).stepsizes(4)
