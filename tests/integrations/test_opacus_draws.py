"""A batch is for one step: batches that are kept, or left in the middle, are noticed."""

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from tests.integrations.opacus_runs import engine, made_private, records, small_plan, step

from dither.integrations.opacus import NoiseSchedule
from dither.training import StepError


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
    with BatchMemoryManager(**settings) as microbatches:
        first = next(iter(microbatches))
        with pytest.raises(StepError, match="microbatches of two batches would be in one step"):
            step(model, optimizer, first)
    assert schedule.steps == 0


def test_a_sampler_that_is_let_go_is_opacus_own_again() -> None:
    schedule = NoiseSchedule(small_plan())
    _, optimizer, loader = made_private(engine(), records(60), batch_size=10)
    schedule.drive(optimizer, loader)
    assert type(loader.batch_sampler) is not UniformWithReplacementSampler
    schedule.close()
    assert type(loader.batch_sampler) is UniformWithReplacementSampler
