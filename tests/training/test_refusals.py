"""Bad use and bad input: each refused in one line, before anything is spent."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.loops import (
    CLASSES,
    FEATURES,
    data,
    losses,
    model,
    noisy_plan,
    private,
    quiet_plan,
    take_steps,
)
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

import dither
from dither.training import StepError


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(FEATURES), 0)])


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=1.0)


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ((torch.zeros(0, FEATURES), torch.zeros(0)), "dataset must have at least one record"),
        (Stream(), "dataset must give any record by its index, got Stream"),
        (iter([1]), "dataset must give any record by its index"),
        (DataLoader(TensorDataset(torch.zeros(4, 2))), "got a DataLoader.*loader.dataset"),
        ((torch.zeros(4, 2), torch.zeros(3)), r"one record a row.*\(4, 2\), \(3,\)"),
        ((np.array(["a", "b"]),), "tensors or arrays of numbers"),
        (7, "dataset must be tensors, arrays or a dataset"),
        ({}, "one record a row.*got shapes none"),
        (list(data()), "got a list of arrays"),
        (
            Subset(TensorDataset(*data()), [0, 1, 0]),
            "a Subset with repeated indices",
        ),
    ],
)
def test_datasets(dataset: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words) as refusal:
        private(dataset=dataset)
    assert "\n" not in str(refusal.value)


def test_a_plan_for_another_dataset_size_under_fixed_sampling() -> None:
    with pytest.raises(ValueError, match=r"dataset_size, 120 records.*got 100"):
        private(quiet_plan(sampling="fixed"), data(100))
    assert take_steps(private(quiet_plan(), data(100))).isfinite().all()


def test_models() -> None:
    normalised = nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))
    with pytest.raises(ValueError, match="BatchNorm1d.*replace_batch_norm"):
        dither.make_private(normalised, sgd(normalised), quiet_plan(), data())
    frozen = model().requires_grad_(False)
    with pytest.raises(ValueError, match="model must have trainable parameters"):
        dither.make_private(frozen, sgd(model()), quiet_plan(), data())


def test_optimizers() -> None:
    made, other = model(), model()
    cases: list[tuple[Any, str]] = [
        (sgd(other), "optimizer must have the model's parameters alone, got 4 that are not"),
        (torch.optim.SGD(made[0].parameters(), lr=1.0), "all trainable.*2.weight, 2.bias"),
        (torch.optim.LBFGS(made.parameters()), "LBFGS, which evaluates the loss several times"),
        ("sgd", "optimizer must be a torch.optim.Optimizer, got str"),
    ]
    scheduled = sgd(made)
    torch.optim.lr_scheduler.StepLR(scheduled, 1)
    for optimizer, words in [*cases, (scheduled, "no learning rate scheduler, got one")]:
        with pytest.raises((ValueError, TypeError), match=words):
            dither.make_private(made, optimizer, quiet_plan(), data())
    used = sgd(made)
    run = dither.make_private(made, used, quiet_plan(), data())
    with pytest.raises(ValueError, match="must not belong to another private run"):
        dither.make_private(made, used, quiet_plan(), data())
    run.close()
    dither.make_private(made, used, quiet_plan(), data())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"reduction": "max"}, "reduction must be one of mean, sum, got 'max'"),
        ({"engine": "quick"}, "engine must be one of fast, oracle, got 'quick'"),
        ({"workers": -1}, "workers must be a whole number of at least 1, got -1"),
    ],
)
def test_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        private(**settings)


def test_a_plan_that_is_none() -> None:
    made = model()
    with pytest.raises(TypeError, match="plan must be what dither.plan returns, got float"):
        dither.make_private(made, sgd(made), 3.0, data())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="seed must be a whole number or None"):
        dither.make_private(made, sgd(made), quiet_plan(), data(), seed=1.5)  # type: ignore[arg-type]


def test_a_step_without_private_backward() -> None:
    run = private(noisy_plan())
    before = [p.clone() for p in run.model.parameters()]
    for inputs, targets in run.batches():
        found = losses(run, inputs, targets)
        with pytest.raises(StepError, match="gradients without noise: call private.backward"):
            found.mean().backward()
        assert all(parameter.grad is None for parameter in run.model.parameters())
        with pytest.raises(StepError, match=r"without private.backward.*no noise"):
            run.optimizer.step()
        break
    assert run.step == 0
    assert all(bool((p == q).all()) for p, q in zip(run.model.parameters(), before, strict=True))


def test_gradients_that_were_there_before_are_overwritten() -> None:
    run = private(noisy_plan(steps=1))
    inputs, targets = next(run.batches())
    run.backward(losses(run, inputs, targets))
    for parameter in run.model.parameters():
        parameter.grad = torch.full_like(parameter, 1e9)
    run.optimizer.step()
    assert all(float(p.grad.abs().max()) < 100.0 for p in run.model.parameters())


def test_a_closure() -> None:
    run = private()
    inputs, targets = next(run.batches())
    run.backward(losses(run, inputs, targets))
    with pytest.raises(StepError, match="closure"):
        run.optimizer.step(lambda: 0.0)
    with pytest.raises(StepError, match="closure"):
        run.optimizer.step(closure=lambda: 0.0)
    assert run.step == 0


def test_more_steps_than_planned() -> None:
    run = private(quiet_plan(steps=2))
    take_steps(run)
    assert list(run.batches()) == []
    with pytest.raises(StepError, match="all 2 steps of the plan were taken"):
        run.optimizer.step()


def test_a_changed_learning_rate_or_a_scheduler_on_the_way() -> None:
    run = private()
    inputs, targets = next(run.batches())
    run.backward(losses(run, inputs, targets))
    run.optimizer.param_groups[0]["lr"] = 0.1
    with pytest.raises(StepError, match="changed from 0.5 to 0.1, but the plan owns it"):
        run.optimizer.step()
    run.optimizer.param_groups[0]["lr"] = 0.5
    torch.optim.lr_scheduler.StepLR(run.optimizer, 1)
    with pytest.raises(StepError, match="no learning rate scheduler"):
        run.optimizer.step()
    assert run.step == 0


def test_parameters_that_are_frozen_or_added_on_the_way() -> None:
    run = private()
    inputs, targets = next(run.batches())
    run.backward(losses(run, inputs, targets))
    run.model[0].requires_grad_(False)
    with pytest.raises(StepError, match="trainable parameters have changed"):
        run.optimizer.step()
    run.model[0].requires_grad_(True)
    run.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    with pytest.raises(StepError, match="learning rate was changed"):
        run.optimizer.step()


def test_records_that_are_missing_or_come_twice() -> None:
    run = private()
    batch = next(run.batches())
    with pytest.raises(StepError, match=r"all \d+ rows that were drawn, got shapes \(3"):
        run.model(batch[0][:3])
    found = losses(run, *batch)
    run.backward(found)
    with pytest.raises(StepError, match="twice for the same records"):
        run.backward(found)
    run.optimizer.step()
    with pytest.raises(StepError, match="without a batch"):
        run.backward(found)
    batch = next(run.batches())
    with pytest.raises(StepError, match="losses of an earlier|of an earlier one"):
        run.backward(found)
    inputs, targets = next(run.pieces(batch, 2))
    run.backward(losses(run, inputs, targets))
    with pytest.raises(StepError, match=r"after 2 of the \d+ records"):
        run.optimizer.step()
    with pytest.raises(StepError, match="whole and unused"):
        next(run.pieces(batch, 2))


def test_losses_from_elsewhere() -> None:
    run = private()
    inputs, _ = next(run.batches())
    with pytest.raises(StepError, match="computed from private.model"):
        run.backward(torch.zeros(3, requires_grad=True))
    with pytest.raises(
        StepError, match=r"linear got a tensor of shape \(8, 6\) that comes from param"
    ):
        run.model[0](inputs)


def test_a_batch_that_is_skipped() -> None:
    run = private()
    batches = run.batches()
    next(batches)
    with pytest.raises(StepError, match=r"step 0 was not taken.*private.pieces"):
        next(batches)


@pytest.mark.parametrize(
    ("reduction", "shape", "words"),
    [
        (None, "mean", r"one a record, a tensor of shape \(\d+,\), got \(\)"),
        ("mean", "none", "a single number with reduction='mean', got shape"),
    ],
)
def test_losses_of_the_wrong_shape(reduction: str | None, shape: str, words: str) -> None:
    run = private(reduction=reduction)
    inputs, targets = next(run.batches())
    with pytest.raises(ValueError, match=words):
        run.backward(losses(run, inputs, targets, shape))


def test_all_refusals_are_one_line() -> None:
    import inspect

    from dither.training import guard
    from dither.training import private as loop

    for module in (guard, loop):
        for text in re.findall(r'StepError\(\s*f?"(.*?)"', inspect.getsource(module), re.DOTALL):
            assert "\\n" not in text
