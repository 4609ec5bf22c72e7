"""Random numbers of the model: keyed by the operating system, and none of the caller's."""

# ruff: noqa: NPY002, S311 (models and data draw from the global generators)
import random
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tests.training.loops import (
    FEATURES,
    RECORDS,
    data,
    flat,
    losses,
    noisy_plan,
    quiet_plan,
    take_steps,
)
from torch import Tensor, nn

import dither
from dither.training import Private

WIDTH = 64


def with_dropout() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Linear(FEATURES, WIDTH), nn.Dropout(0.5), nn.Tanh(), nn.Linear(WIDTH, 3)
    )


def run_of(seed: int | None, **settings: Any) -> Private:
    made = with_dropout()
    plan = settings.pop("plan", noisy_plan(steps=3))
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    return dither.make_private(made, optimizer, plan, data(), seed=seed, **settings)


def masks(run: Private, calls: int = 1) -> list[Tensor]:
    """Return what dropout leaves of ones in every step."""
    found = []
    for inputs, targets in run.batches():
        found += [
            run.model[1](torch.ones(RECORDS, WIDTH, requires_grad=True)) for _ in range(calls)
        ]
        run.backward(losses(run, inputs, targets))
        run.optimizer.step()
    return [each.detach() for each in found]


def test_masks_of_unseeded_runs_differ_whatever_seed_torch_has() -> None:
    runs = []
    for _ in range(2):
        run = run_of(None)
        torch.manual_seed(0)
        runs += masks(run)
    assert len({tuple(mask.flatten().tolist()) for mask in runs}) == 6


class Shifted(nn.Module):
    """A linear model of inputs with random numbers of Python and NumPy, which are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, 3)
        self.drawn: list[tuple[float, float, float]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.linear(inputs)
        self.drawn.append((random.random(), np.random.normal(), np.random.normal()))
        return outputs


def draws_of_python_and_numpy(seed: int | None) -> list[tuple[float, float, float]]:
    model = Shifted()
    plan = quiet_plan(steps=3, batch_size=RECORDS, sampling="fixed")
    run = dither.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), plan, data(), seed=seed
    )
    random.seed(0)
    np.random.seed(0)
    outside = random.getstate(), np.random.get_state()[1].tolist()
    take_steps(run)
    assert outside == (random.getstate(), np.random.get_state()[1].tolist())
    return model.drawn


def test_draws_of_python_and_numpy_have_keys_of_their_own() -> None:
    """One record more would otherwise shift the augmentation of all others."""
    one, other = draws_of_python_and_numpy(None), draws_of_python_and_numpy(None)
    assert len({*one, *other}) == len({*one}) + len({*other})
    assert all(len({each[k] for each in one}) >= 3 for k in range(3))
    assert draws_of_python_and_numpy(7) == draws_of_python_and_numpy(7)


def test_weights_of_unseeded_runs_differ_without_noise_where_batches_are_whole() -> None:
    """With all records in every step and no noise, dropout alone is random."""
    found = []
    for _ in range(2):
        run = run_of(None, plan=quiet_plan(steps=2, batch_size=RECORDS, sampling="fixed"))
        torch.manual_seed(0)
        found.append(take_steps(run))
    assert not torch.equal(*found)


def test_a_seeded_run_repeats_exactly_whatever_seed_torch_has() -> None:
    def trained(of_torch: int) -> Tensor:
        run = run_of(11)
        torch.manual_seed(of_torch)
        return take_steps(run)

    assert torch.equal(trained(0), trained(1))
    assert not torch.equal(trained(0), take_steps(run_of(12)))


def test_masks_of_a_seeded_run_repeat_and_differ_between_steps_and_calls() -> None:
    first, second = (masks(run_of(11), calls=2) for _ in range(2))
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))
    assert len({tuple(mask.flatten().tolist()) for mask in first}) == 6


def test_a_seeded_run_repeats_in_microbatches_too() -> None:
    one, two = (take_steps(run_of(11), microbatch_size=4) for _ in range(2))
    assert torch.equal(one, two)


def test_dropout_drops_as_often_as_it_should() -> None:
    kept = torch.cat([mask.flatten() for mask in masks(run_of(None))]) > 0
    assert stats.binomtest(int(kept.sum()), kept.numel(), 0.5).pvalue > 1e-6
    wrong = int(0.53 * kept.numel())
    assert stats.binomtest(wrong, kept.numel(), 0.5).pvalue < 1e-6


@pytest.mark.parametrize("seed", [None, 11])
def test_a_step_leaves_the_callers_generator_as_it_was(seed: int | None) -> None:
    def jittered(inputs: Tensor) -> Tensor:
        return inputs[:, None] + 0.1 * torch.randn(len(inputs), 2, FEATURES)

    for settings in ({}, {"augment": jittered}):
        run = run_of(seed, **settings)
        state = torch.get_rng_state()
        for inputs, targets in run.batches():
            assert torch.equal(torch.get_rng_state(), state)
            found = losses(run, inputs, targets)
            assert torch.equal(torch.get_rng_state(), state)
            run.backward(found)
            run.optimizer.step()
            assert torch.equal(torch.get_rng_state(), state)


def test_draws_of_the_loop_are_those_without_privacy() -> None:
    torch.manual_seed(5)
    expected = [torch.rand(4) for _ in range(3)]
    run = run_of(None)
    torch.manual_seed(5)
    for (inputs, targets), own in zip(run.batches(), expected, strict=True):
        assert torch.equal(torch.rand(4), own)
        run.backward(losses(run, inputs + 0.0, targets))
        run.optimizer.step()


def test_draws_of_a_model_that_is_measured_are_the_callers() -> None:
    run = run_of(None)
    ones = torch.ones(4, WIDTH)
    torch.manual_seed(5)
    expected = nn.functional.dropout(ones, 0.5)
    next(run.batches())
    torch.manual_seed(5)
    with torch.no_grad():
        assert torch.equal(run.model[1](ones), expected)


def test_the_generator_of_a_run_is_not_in_its_state() -> None:
    """Whoever finds a checkpoint must not be able to compute the masks again."""
    run = run_of(None)
    before = str(run.state_dict())
    take_steps(run)
    text = before + str(run.state_dict())
    assert "generator" not in text
    assert run.state_dict()["seed"] is None
    assert not any(isinstance(value, Tensor | bytes) for value in run.state_dict().values())


def test_dropout_trains() -> None:
    run = run_of(None)
    before = flat(run.model)
    assert take_steps(run).isfinite().all()
    assert not torch.equal(flat(run.model), before)
