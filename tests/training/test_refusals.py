"""Bad use and bad input: each refused in one line, before anything is spent."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.loops import (
    CLASSES,
    FEATURES,
    data,
    flat,
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
        ((torch.zeros(0, FEATURES), torch.zeros(0)), "the data must have at least one record"),
        (Stream(), "the data must give any record by its index, got Stream"),
        (iter([1]), "the data must give any record by its index"),
        (DataLoader(TensorDataset(torch.zeros(4, 2))), "got a DataLoader.*loader.dataset"),
        ((torch.zeros(4, 2), torch.zeros(3)), r"one row per record.*\(4, 2\), \(3,\)"),
        ((np.array(["a", "b"]),), "tensors or arrays of numbers"),
        (7, "the data must be tensors, arrays or a dataset"),
        ({}, "one row per record.*got shapes none"),
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
        (sgd(other), "optimizer must have the model's parameters alone, got 4 besides"),
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


def test_settings() -> None:
    with pytest.raises(ValueError, match="workers must be an integer of at least 1, got -1"):
        private(workers=-1)


def test_a_plan_that_is_none() -> None:
    made = model()
    with pytest.raises(TypeError, match="plan must be what dither.plan returns, got float"):
        dither.make_private(made, sgd(made), 3.0, data())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="seed must be an integer or None"):
        dither.make_private(made, sgd(made), quiet_plan(), data(), seed=1.5)  # type: ignore[arg-type]


def test_a_step_without_private_backward() -> None:
    """Plain loss.backward() leaves gradients without noise, which no step takes."""
    run = private(noisy_plan())
    before = flat(run.model)
    inputs, targets = next(run.batches())
    with pytest.raises(StepError, match=r"without private.backward.*no noise"):
        run.optimizer.step()
    losses(run, inputs, targets).mean().backward()
    with pytest.raises(StepError, match=r"without private.backward.*no noise"):
        run.optimizer.step()
    assert run.step == 0
    assert torch.equal(flat(run.model), before)


def test_two_steps_after_one_backward_pass() -> None:
    run = private(noisy_plan())
    run.backward(losses(run, *next(run.batches())))
    run.optimizer.step()
    before = flat(run.model)
    with pytest.raises(StepError, match=r"without private.backward.*no noise"):
        run.optimizer.step()
    assert torch.equal(flat(run.model), before)
    assert run.step == 1


def test_a_closure() -> None:
    run = private()
    inputs, targets = next(run.batches())
    run.backward(losses(run, inputs, targets))
    with pytest.raises(StepError, match="closure"):
        run.optimizer.step(lambda: 0.0)
    with pytest.raises(StepError, match="closure"):
        run.optimizer.step(closure=lambda: 0.0)
    assert run.step == 0


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


def test_a_rate_that_is_set_back_and_rates_of_hooks_are_fine() -> None:
    """A warm-up that changes lr and restores it, and hooks of the user that read it."""
    seen = []
    run = private()
    run.optimizer.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["lr"]))
    for batch in run.batches():
        run.optimizer.param_groups[0]["lr"] = 0.1
        run.backward(losses(run, *batch))
        run.optimizer.param_groups[0]["lr"] = 0.5
        run.optimizer.step()
    assert seen == [0.5] * 6


def test_a_rate_that_is_a_tensor() -> None:
    expected = take_steps(private(noisy_plan(stepsizes=[1.0, 0.7, 0.3, 1.0, 0.7, 0.3])))
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=torch.tensor(0.5))
    plan = noisy_plan(stepsizes=[1.0, 0.7, 0.3, 1.0, 0.7, 0.3])
    found = take_steps(dither.make_private(made, optimizer, plan, data(), seed=7))
    assert float((found - expected).abs().max()) < 1e-6
    assert float(optimizer.param_groups[0]["lr"]) == 0.5


def test_parameters_that_are_added_or_unfrozen_on_the_way() -> None:
    run = private()
    run.backward(losses(run, *next(run.batches())))
    run.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    with pytest.raises(StepError, match="the model's parameters alone, got 1 besides"):
        run.optimizer.step()
    made = model()
    made[0].requires_grad_(False)
    run = dither.make_private(
        made, torch.optim.SGD(made[2].parameters(), lr=0.5), quiet_plan(), data()
    )
    run.backward(losses(run, *next(run.batches())))
    made[0].requires_grad_(True)
    with pytest.raises(StepError, match="got none for 0.weight, 0.bias: add them, or freeze them"):
        run.optimizer.step()
    assert run.step == 0


def test_records_that_are_missing_or_come_twice() -> None:
    run = private()
    batch = next(run.batches())
    found = losses(run, *batch)
    with pytest.raises(ValueError, match="a vector of another length; compute a loss for every"):
        run.backward(found[:3])
    run.backward(found)
    with pytest.raises(StepError, match="twice for the same records"):
        run.backward(found)
    run.optimizer.step()
    with pytest.raises(StepError, match="without a batch"):
        run.backward(found)


@pytest.mark.parametrize("calls_the_model", [True, False])
def test_losses_of_an_earlier_batch(calls_the_model: bool) -> None:
    """Records that were not drawn for this step would take part in it."""
    run = private(noisy_plan(sampling="fixed"))
    batches = run.batches()
    found = losses(run, *next(batches))
    run.backward(found)
    run.optimizer.step()
    inputs, _ = next(batches)
    if calls_the_model:
        run.model(inputs)
    with pytest.raises(StepError, match="the losses of an earlier batch or microbatch"):
        run.backward(found)
    assert run.step == 1


def test_losses_from_elsewhere() -> None:
    run = private(quiet_plan(sampling="fixed"))
    for graph in (False, True):
        own = losses(run, *next(run.batches()))
        with pytest.raises(ValueError, match="losses without a graph"):
            run.backward(own.detach() if graph else torch.zeros(12))
    with torch.no_grad():
        found = losses(run, *next(run.batches()))
    with pytest.raises(ValueError, match="with gradients enabled"):
        run.backward(found)
    assert run.step == 0


@pytest.mark.parametrize(
    ("reduce", "words"),
    [
        (torch.mean, 'got a single number; use reduction="none"'),
        (torch.sum, 'got a single number; use reduction="none"'),
        (lambda each: each.mean()[None], "got a vector of another length"),
        (lambda each: each[:, None], r"got 2 dimensions; reduce over .* \.flatten\(1\)\.mean\(1\)"),
        (lambda each: each.tolist(), 'got list; use reduction="none"'),
        (lambda each: float(each.detach().mean()), 'got float; use reduction="none"'),
    ],
)
def test_losses_of_the_wrong_shape(reduce: Any, words: str) -> None:
    run = private(quiet_plan(sampling="fixed"))
    found = losses(run, *next(run.batches()))
    with pytest.raises(ValueError, match=words):
        run.backward(reduce(found))
    run.backward(found)  # the mistake can be put right
    run.optimizer.step()
    assert run.step == 1


def test_a_model_that_is_wrapped() -> None:
    made = model()
    with pytest.raises(ValueError, match="pass the module inside it"):
        dither.make_private(nn.DataParallel(made), sgd(made), quiet_plan(), data())


def test_a_batch_norm_that_is_put_back_into_training() -> None:
    norm = nn.BatchNorm1d(4, affine=False)
    made = nn.Sequential(nn.Linear(FEATURES, 4), norm, nn.Linear(4, CLASSES)).eval()
    run = dither.make_private(made, sgd(made), quiet_plan(), data())
    batches = run.batches()
    run.backward(losses(run, *next(batches)))
    run.optimizer.step()
    made.train()
    with pytest.raises(ValueError, match="BatchNorm1d.*replace_batch_norm"):
        next(batches)
    made.eval()
    run.backward(losses(run, *next(batches)))
    run.optimizer.step()
    assert run.step == 2
