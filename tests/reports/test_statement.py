"""The privacy statement."""

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.training.loops import RECORDS, data, model, noisy_plan, quiet_plan
from torch import nn

import dither
from dither import Plan
from dither.planning import ReactivePlan
from dither.reports import statement
from dither.schedules import AdaGradNorm, Reactive, UnsafeRawAdaGradNorm
from dither.training import TrainResult

BOUND = noisy_plan().bound


def run(plan: Plan | ReactivePlan, *, seed: int | None = None) -> TrainResult:
    """Return what training along the plan gives, without training."""
    return TrainResult(nn.Linear(1, 1), plan, plan.bound, plan.steps, (), seed)


def said(result: TrainResult) -> str:
    """Return the statement on one line."""
    text = statement(result)
    assert all(0 < len(line) <= 80 for line in text.splitlines())
    return " ".join(text.split())


def test_of_a_poisson_plan_it_says_what_was_done_and_to_whom_it_applies() -> None:
    plan = noisy_plan(clip_norm=0.5)
    text = said(run(plan))
    assert text.startswith("The released model is (ε = ")
    assert "δ = 0.001)-differentially private" in text
    assert "with respect to adding or removing one record of the training data" in text
    assert "(pld accounting)" in text
    assert "every model on the way" in text
    assert "6 steps, each of which draws every record by its own coin with probability q = 0.1" in (
        text
    )
    assert "clips every record's gradient to the norm 0.5, adds Gaussian noise to their sum" in text
    assert "divides by 12." in text
    assert f"n = {RECORDS}," in text
    assert f"fingerprint is {plan.fingerprint[:16]}." in text
    assert "its keys were not kept" in text
    assert "SEEDED" not in text


def test_of_a_fixed_plan_it_speaks_of_replacing_and_of_distinct_records() -> None:
    text = said(run(noisy_plan(sampling="fixed")))
    assert "with respect to replacing one record by another" in text
    assert "draws 12 distinct records at random, clips" in text
    assert "adding or removing" not in text
    assert "coin" not in text


@pytest.mark.parametrize(
    ("sampling", "neighbours"), [("poisson", "adding or removing"), ("fixed", "replacing one")]
)
def test_without_sampling_all_records_are_drawn(sampling: str, neighbours: str) -> None:
    text = said(run(noisy_plan(batch_size=RECORDS, sampling=sampling)))
    assert "draws all records, clips" in text
    assert neighbours in text
    assert "q =" not in text
    assert "distinct" not in text


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_without_noise_nothing_is_claimed_and_no_noise_spoken_of(
    sampling: str, seed: int | None
) -> None:
    text = said(run(quiet_plan(sampling=sampling), seed=seed))
    assert text.startswith("This run claims NO privacy (ε = ∞): no noise was added.")
    assert "differentially private" not in text
    assert "Gaussian" not in text
    assert "double precision" not in text
    assert "inf" not in text
    assert "clip" not in text
    assert ("SEEDED with 3" in text) == (seed == 3)
    clipped = said(run(quiet_plan(sampling=sampling, clip_norm=2.0)))
    assert "clips every record's gradient to the norm 2, sums the gradients and divides" in clipped


def reactive(stepsizes: Reactive) -> ReactivePlan:
    return dither.plan(
        epsilon=3.0,
        delta=1e-3,
        dataset_size=RECORDS,
        batch_size=12,
        steps=3,
        stepsizes=stepsizes,
        noise="uniform",
    )


def test_raw_step_sizes_void_the_claim_though_there_is_noise() -> None:
    text = said(run(reactive(UnsafeRawAdaGradNorm(b0_squared=4.0, nu=0.01))))
    assert text.startswith(
        "This run claims NO privacy (ε = ∞): its step sizes follow the raw gradients, which no "
        "noise protects."
    )
    assert "no noise was added" not in text
    assert "adds Gaussian noise" in text
    assert "differentially private" not in text
    safe = said(run(reactive(AdaGradNorm(b0_squared=4.0, nu=0.01))))
    assert safe.startswith("The released model is (ε = ")


def test_a_run_that_stopped_early_tells_its_own_steps() -> None:
    result = replace(run(noisy_plan(steps=2_000)), steps=1_234)
    assert "made by 1,234 steps," in said(result)


@pytest.mark.parametrize("seed", [0, 42, -1])
def test_a_seeded_run_says_so(seed: int) -> None:
    text = said(run(noisy_plan(), seed=seed))
    assert f"SEEDED with {seed}: the noise can be computed and subtracted" in text
    assert "cryptographic" not in text


def test_of_a_real_run_it_states_the_bound_of_the_run() -> None:
    torch.manual_seed(1)
    trained = dither.train(model(), data(), noisy_plan(), progress=False)
    assert statement(trained) == statement(run(noisy_plan()))


@given(st.floats(1e-6, 1e6), st.floats(1e-12, 0.999))
def test_what_is_printed_is_never_below_the_bound_and_hardly_above(
    epsilon: float, delta: float
) -> None:
    bound = replace(BOUND, epsilon=epsilon, delta=delta)
    text = said(replace(run(quiet_plan()), bound=bound))
    found = re.search(r"\(ε = (\S+), δ = (\S+)\)-differentially", text)
    assert found is not None
    assert epsilon <= float(found[1]) <= epsilon * 1.0011
    assert delta <= float(found[2]) <= delta * 1.011


def test_a_part_of_a_run_says_that_it_is_one() -> None:
    made = torch.nn.Linear(3, 2)
    records = torch.randn(60, 3), torch.randint(2, (60,))
    plan = dither.plan(epsilon=3.0, delta=1e-3, dataset_size=60, batch_size=20, steps=4)
    private = dither.make_private(made, torch.optim.SGD(made.parameters(), lr=0.1), plan, records)
    for inputs, targets in private.batches():
        outputs = private.model(inputs)
        private.backward(torch.nn.functional.cross_entropy(outputs, targets, reduction="none"))
        private.optimizer.step()
        if private.step in (2, 4):
            text = " ".join(statement(private).split())
            is_part = "stopping early because of the data" in str(private.spent())
            assert is_part == ("as if it had been fixed beforehand" in text) == (private.step == 2)
            assert ("needs the odometer; the whole plan's ε = 3" in text) == is_part


def test_what_was_read_off_the_data_goes_with_the_result() -> None:
    result = replace(
        run(noisy_plan()), derived_from_private_data=("the number of records", "the set of classes")
    )
    assert said(result).startswith(
        "NOT PROVEN: the number of records was read off the private data; the set of classes was "
        "read off the private data, which no noise protects."
    )
