"""Batches and steps of Opacus: one step per batch, microbatches, empty batches."""

import numpy as np
import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from tests.integrations.opacus_runs import (
    engine,
    limits,
    made_private,
    records,
    small_plan,
    step,
)
from torch.utils.data import TensorDataset

from dither.integrations.opacus import NoiseSchedule
from dither.training import StepError


def test_microbatches_are_one_step_with_one_noise() -> None:
    torch.manual_seed(5)
    plan, private_engine = small_plan(12), engine()
    data = TensorDataset(torch.zeros(60, 5000), torch.zeros(60, dtype=torch.int64))
    model, optimizer, loader = made_private(private_engine, data, batch_size=10, classes=2)
    schedule = NoiseSchedule(plan)
    schedule.drive(optimizer, loader)
    energies, calls = [], 0
    while schedule.remaining:
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=3, optimizer=optimizer
        ) as microbatches:
            for microbatch in microbatches:
                taken, calls = schedule.steps, calls + 1
                step(model, optimizer, microbatch)
                if schedule.steps > taken:
                    # All gradients are zero: what is there is noise.
                    energies.append(float((optimizer.params[0].grad * 10).square().sum()))
    assert calls > 2 * plan.steps
    assert [z for z, _, _ in private_engine.accountant.history] == [*plan.noise_multipliers]
    low, high = limits(10_000)
    scaled = np.array(energies) / plan.noise_multipliers**2
    assert ((low < scaled) & (scaled < high)).all()
    assert ((2 * scaled < low) | (2 * scaled > high)).all()


def test_a_batch_is_not_for_two_steps() -> None:
    torch.manual_seed(0)
    schedule = NoiseSchedule(small_plan())
    model, optimizer, loader = made_private(engine(), records(60), batch_size=10)
    schedule.drive(optimizer, loader)
    batch = next(iter(loader))
    step(model, optimizer, batch)
    with pytest.raises(StepError, match="a batch is for one step"):
        step(model, optimizer, batch)
    assert schedule.steps == 1


def test_kept_batches_are_used_once() -> None:
    torch.manual_seed(0)
    schedule = NoiseSchedule(small_plan(12))
    model, optimizer, loader = made_private(engine(), records(60), batch_size=10)
    schedule.drive(optimizer, loader)
    kept = list(loader)
    for batch in kept:
        step(model, optimizer, batch)
    with pytest.raises(StepError, match="a batch is for one step"):
        step(model, optimizer, kept[0])


def test_a_batch_that_is_left_in_the_middle_is_not_joined_with_the_next() -> None:
    torch.manual_seed(0)
    schedule = NoiseSchedule(small_plan(60, dataset_size=60, batch_size=20))
    model, optimizer, loader = made_private(engine(), records(60), batch_size=20)
    schedule.drive(optimizer, loader)
    settings = {"data_loader": loader, "max_physical_batch_size": 3, "optimizer": optimizer}
    with BatchMemoryManager(**settings) as microbatches:
        step(model, optimizer, next(iter(microbatches)))
    with (
        BatchMemoryManager(**settings) as microbatches,
        pytest.raises(StepError, match="microbatches of two batches would be in one step"),
    ):
        next(iter(microbatches))
    assert schedule.steps == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_microbatch_that_is_left_out_does_not_join_two_batches(num_workers: int) -> None:
    torch.manual_seed(0)
    schedule = NoiseSchedule(small_plan(4, dataset_size=200, batch_size=40))
    model, optimizer, loader = made_private(
        engine(), records(200), batch_size=40, num_workers=num_workers
    )
    schedule.drive(optimizer, loader)
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=10, optimizer=optimizer
    ) as manager:
        microbatches = iter(manager)
        if not num_workers:
            step(model, optimizer, next(microbatches))
        next(microbatches)
        with pytest.raises(StepError, match="for every microbatch"):
            step(model, optimizer, next(microbatches))
    assert schedule.steps == 0


def test_an_empty_draw_is_a_step_with_noise() -> None:
    torch.manual_seed(6)
    plan, private_engine = small_plan(40, dataset_size=20, batch_size=1), engine()
    model, optimizer, loader = made_private(private_engine, records(20), batch_size=1)
    schedule, empty = NoiseSchedule(plan), 0
    schedule.drive(optimizer, loader)
    while schedule.remaining:
        for batch in loader:
            before = optimizer.params[0].detach().clone()
            step(model, optimizer, batch)
            if not len(batch[0]):
                empty += 1
                assert not optimizer.params[0].summed_grad.any()
                assert (optimizer.params[0] != before).all()
    assert empty > 5
    assert len(private_engine.accountant) == 40
