"""200 steps of Opacus on a plan: the noise that it draws, and what it costs."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from opacus.schedulers import ExponentialNoise
from tests.integrations.opacus_runs import DELTA, engine, limits, made_private, records, step

import dither
from dither.integrations.opacus import DitherAccountant, NoiseSchedule
from dither.types import FloatArray

TARGET, STEPS, RECORDS, BATCH, RATE = 2.0, 200, 2000, 100, 0.5
FEATURES, CLASSES, GROUP = 128, 40, 20
DIMENSION = FEATURES * CLASSES


@dataclass
class Driven:
    """What was seen of a run."""

    plan: dither.Plan
    engine: Any
    schedule: NoiseSchedule
    energies: list[float] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


@pytest.fixture(scope="module")
def driven() -> Driven:
    torch.manual_seed(1)
    plan = dither.plan(
        epsilon=TARGET,
        delta=DELTA,
        dataset_size=RECORDS,
        batch_size=BATCH,
        steps=STEPS,
        stepsizes=dither.schedules.Linear(1.0, 0.05),
    )
    data = records(RECORDS, FEATURES, CLASSES)
    seen = Driven(plan, engine(), NoiseSchedule(plan))
    model, optimizer, loader = made_private(seen.engine, data, batch_size=BATCH, classes=CLASSES)
    seen.schedule.drive(optimizer, loader)
    (weight,) = optimizer.params
    while seen.schedule.remaining:
        for batch in loader:
            before = weight.detach().clone()
            step(model, optimizer, batch)
            noise = weight.grad.double() * BATCH - weight.summed_grad.double()
            seen.energies.append(float((noise**2).sum()))
            moved = (before - weight.detach()).double()
            seen.factors.append(float((moved * weight.grad).sum() / (weight.grad**2).sum()))
            seen.rates.append(optimizer.param_groups[0]["lr"])
            if not seen.schedule.remaining:
                break
    return seen


def is_of_scale(energies: FloatArray, scales: FloatArray, *, steps: int) -> NDArray[np.bool_]:
    """Return for each so many steps together whether Σ‖noise/scale‖² can be what it should be.

    That is χ² with d degrees of freedom per step; it is judged wrongly once in 1e9 times. The
    limits are 6.1 standard deviations away, each of which is 1/√(2·d·steps) of the scale: ±6 % for
    a step by itself, with d = 5,120; ±1.4 % for twenty, where 3 % off is seven standard deviations
    beyond.
    """
    low, high = limits(DIMENSION * steps)
    together = (energies / scales**2).reshape(-1, steps).sum(1)
    return np.asarray((low <= together) & (together <= high))


def test_opacus_draws_the_planned_noise_in_every_step(driven: Driven) -> None:
    planned, energies = driven.plan.noise_multipliers, np.array(driven.energies)
    assert planned.max() > 3.0 * planned.min()
    assert is_of_scale(energies, planned, steps=1).all()
    assert is_of_scale(energies, planned, steps=GROUP).all()


@pytest.mark.parametrize("wrong", [0.97, 1.03])
def test_noise_of_another_scale_would_be_noticed(driven: Driven, wrong: float) -> None:
    planned, energies = driven.plan.noise_multipliers, np.array(driven.energies)
    assert not is_of_scale(energies, wrong * planned, steps=GROUP).any()


@pytest.mark.parametrize("wrong", [0.88, 1.12])
def test_noise_of_another_scale_would_be_noticed_in_each_step(driven: Driven, wrong: float) -> None:
    planned, energies = driven.plan.noise_multipliers, np.array(driven.energies)
    assert not is_of_scale(energies, wrong * planned, steps=1).any()


def test_the_learning_rate_is_the_groups_own_times_the_plans(driven: Driven) -> None:
    assert driven.factors == pytest.approx(RATE * driven.plan.stepsizes, rel=1e-4)
    assert driven.rates == [RATE] * STEPS


def test_what_ran_costs_what_was_planned(driven: Driven) -> None:
    history = driven.engine.accountant.history
    assert [z for z, _, times in history for _ in range(times)] == [*driven.plan.noise_multipliers]
    assert {q for _, q, _ in history} == {BATCH / RECORDS}
    assert len(driven.engine.accountant) == STEPS
    priced, bound = driven.engine.get_epsilon(DELTA), driven.plan.bound
    assert bound.lower is not None
    assert bound.lower <= priced <= bound.epsilon <= TARGET
    assert priced == pytest.approx(bound.epsilon, rel=1e-9)
    assert driven.schedule.bound() == bound


@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha")
def test_opacus_own_calibration_with_its_own_scheduler_misses_the_target() -> None:
    torch.manual_seed(2)
    own = engine("prv")
    model, optimizer, loader = made_private(
        own,
        records(RECORDS),
        batch_size=BATCH,
        how="make_private_with_epsilon",
        target_epsilon=TARGET,
        target_delta=DELTA,
        epochs=STEPS * BATCH // RECORDS,
    )
    calibrated, ours = DitherAccountant(), DitherAccountant()
    calibrated.history = [(optimizer.noise_multiplier, BATCH / RECORDS, STEPS)]
    assert 0.98 * TARGET < calibrated.get_epsilon(DELTA) <= TARGET

    scheduler = ExponentialNoise(optimizer, gamma=0.95)
    for _ in range(STEPS * BATCH // RECORDS):
        for batch in loader:
            step(model, optimizer, batch)
        scheduler.step()

    assert sum(times for *_, times in own.accountant.history) == STEPS
    assert own.get_epsilon(DELTA) > 1.5 * TARGET
    ours.history = [*own.accountant.history]
    bound = ours.bound(DELTA)
    assert bound.lower is not None
    assert bound.lower > 1.5 * TARGET
    assert bound.epsilon <= own.get_epsilon(DELTA)
