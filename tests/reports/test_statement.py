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
from dither.types import SpentSoFar, rounded

BOUND = noisy_plan().bound


def run(plan: Plan | ReactivePlan, *, seed: int | None = None) -> TrainResult:
    """Return what training along the plan gives, without training."""
    return TrainResult(nn.Linear(1, 1), plan, plan.bound, plan.steps, (), seed)


def statement_of(result: TrainResult) -> str:
    """Return the statement on one line."""
    text = statement(result)
    assert all(0 < len(line) <= 80 for line in text.splitlines())
    return " ".join(text.split())


def test_poisson_sampling() -> None:
    plan = noisy_plan(clip_norm=0.5)
    text = statement_of(run(plan))
    assert text.startswith("The model is (ε = ")
    for words in (
        "δ = 0.001)-differentially private",
        "adjacency: add or remove one record; pld accountant",
        "every intermediate model",
        "Training: 6 steps. Poisson sampling: in each step every record is drawn independently "
        "with probability q = 0.1.",
        "clips per-record gradients to l2 norm 0.5, adds Gaussian noise to their sum and divides "
        "by 12.",
        f"n = {RECORDS};",
        f"Plan fingerprint: {plan.fingerprint[:16]}.",
        "the keys were not stored",
    ):
        assert words in text
    assert "SEEDED" not in text


def test_automatic_clipping() -> None:
    text = statement_of(run(replace(noisy_plan(clip_norm=0.5), clipping="automatic")))
    assert (
        "scales per-record gradients g by 0.5/(‖g‖ + 0.01), to an l2 norm below 0.5 (automatic "
        "clipping), adds Gaussian noise to their sum and divides by 12."
    ) in text


def test_fixed_size_sampling() -> None:
    text = statement_of(run(noisy_plan(sampling="fixed")))
    assert "adjacency: replace one record" in text
    assert "each step draws 12 distinct records uniformly at random" in text
    assert "add or remove" not in text
    assert "Poisson" not in text


@pytest.mark.parametrize(
    ("sampling", "adjacency"), [("poisson", "add or remove one"), ("fixed", "replace one")]
)
def test_full_batch(sampling: str, adjacency: str) -> None:
    text = statement_of(run(noisy_plan(batch_size=RECORDS, sampling=sampling)))
    assert "Full batch: each step uses all records." in text
    assert adjacency in text
    assert "q =" not in text
    assert "distinct" not in text


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_without_noise_there_is_no_guarantee(sampling: str, seed: int | None) -> None:
    text = statement_of(run(quiet_plan(sampling=sampling), seed=seed))
    assert text.startswith("NO privacy guarantee (ε = ∞): no noise was added.")
    for words in ("differentially private", "Gaussian", "double precision", "inf", "clip"):
        assert words not in text
    assert ("SEEDED with 3" in text) == (seed == 3)
    clipped = statement_of(run(quiet_plan(sampling=sampling, clip_norm=2.0)))
    assert "clips per-record gradients to l2 norm 2, sums the gradients and divides" in clipped


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


def test_raw_step_sizes_have_no_guarantee_in_spite_of_noise() -> None:
    text = statement_of(run(reactive(UnsafeRawAdaGradNorm(b0_squared=4.0, nu=0.01))))
    assert text.startswith("NO privacy guarantee (ε = ∞): the step sizes depend on gradients")
    assert "no noise was added" not in text
    assert "adds Gaussian noise" in text
    assert "differentially private" not in text
    safe = statement_of(run(reactive(AdaGradNorm(b0_squared=4.0, nu=0.01))))
    assert safe.startswith("The model is (ε = ")


def test_a_run_that_stopped_early_has_its_own_steps() -> None:
    result = replace(run(noisy_plan(steps=2_000)), steps=1_234)
    assert "Training: 1,234 steps." in statement_of(result)


@pytest.mark.parametrize("seed", [0, 42, -1])
def test_a_seeded_run(seed: int) -> None:
    text = statement_of(run(noisy_plan(), seed=seed))
    assert f"SEEDED with {seed}: anyone who knows or guesses the seed" in text
    assert "cryptographic" not in text


def test_a_real_run_has_the_bound_of_its_plan() -> None:
    torch.manual_seed(1)
    trained = dither.train(model(), data(), noisy_plan(), progress=False)
    assert statement(trained) == statement(run(noisy_plan()))


@given(st.floats(1e-6, 1e6), st.floats(1e-12, 0.999))
def test_epsilon_and_delta_are_rounded_up(epsilon: float, delta: float) -> None:
    bound = replace(BOUND, epsilon=epsilon, delta=delta)
    text = statement_of(replace(run(quiet_plan()), bound=bound))
    found = re.search(r"\(ε = (\S+), δ = (\S+)\)-differentially", text)
    assert found is not None
    assert epsilon <= float(found[1]) <= epsilon * 1.0011
    assert delta <= float(found[2]) <= delta * 1.011


def test_a_run_that_has_not_ended() -> None:
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
            is_part = isinstance(private.spent(), SpentSoFar)
            assert is_part == (private.step == 2)
            assert ("if the number of steps was fixed in advance" in text) == is_part
            whole = rounded(plan.bound.epsilon, 4)
            assert (f"the full plan's ε = {whole}" in text) == is_part


def test_what_was_derived_from_private_data_comes_first() -> None:
    result = replace(run(noisy_plan()), derived_from_private_data=("a mean", "the set of classes"))
    text = statement_of(result)
    assert text.startswith(
        "NOT PROVEN: a mean was derived from the private data without noise; the set of classes "
        "was derived from"
    )
    assert (
        f"Taken as public: the number of records, n = {RECORDS}; the shape of a record; any" in text
    )


def test_a_counted_number_of_records_is_taken_as_public() -> None:
    words = f"Taken as public: the number of records, n = {RECORDS}, counted in the data;"
    result = run(noisy_plan())
    assert words not in statement_of(result)
    text = statement(result, is_counted=True)
    assert words in " ".join(text.split())
    assert "NOT PROVEN" not in text
