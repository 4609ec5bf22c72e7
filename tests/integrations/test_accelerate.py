"""Models and optimizers that accelerate has prepared train as plain ones do."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import dither
from dither.ledger import Ledger
from dither.training import Private, StepError

STEPS, SEED = 8, 4


@pytest.fixture(autouse=True)
def _state() -> Iterator[None]:
    """Every accelerator sets up the process for all that come later."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(80, 4, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def quiet_plan() -> dither.Plan:
    return dither.Plan.unsafe_without_noise(steps=STEPS, dataset_size=80, batch_size=16)


def real_plan() -> dither.Plan:
    return dither.plan(epsilon=2.0, delta=1e-3, dataset_size=80, batch_size=16, steps=STEPS)


def take_steps(private: Private, model: nn.Module, optimizer: Any, steps: int = STEPS) -> None:
    for inputs, targets in private.batches(steps):
        private.backward(functional.cross_entropy(model(inputs), targets, reduction="none"))
        optimizer.step()
        optimizer.zero_grad()


def prepared(**settings: Any) -> tuple[Accelerator, Any, Any, Any]:
    accelerator = Accelerator(cpu=True, **settings)
    loader = DataLoader(TensorDataset(*data()), batch_size=16, shuffle=True)
    return accelerator, *accelerator.prepare(*made(), loader)


@pytest.mark.parametrize("plan", [quiet_plan, real_plan])
def test_it_trains_to_the_same_parameters(plan: Any) -> None:
    model, optimizer = made()
    private = dither.make_private(model, optimizer, plan(), data(), seed=SEED)
    take_steps(private, model, optimizer)
    accelerator, own, own_optimizer, loader = prepared()
    accelerated = dither.make_private(own, own_optimizer, plan(), loader.dataset, seed=SEED)
    with accelerator.accumulate(own):
        take_steps(accelerated, own, own_optimizer)
    assert accelerated.spent() == private.spent()
    for one, other in zip(model.parameters(), own.parameters(), strict=True):
        assert float((one - other).detach().abs().max()) < 1e-6
    moved = zip(made()[0].parameters(), own.parameters(), strict=True)
    assert all(float((one - other).detach().abs().max()) > 1e-3 for one, other in moved)


def test_mixed_precision_is_that_of_accelerate() -> None:
    _, model, optimizer, loader = prepared(mixed_precision="bf16")
    kinds = set()
    model[0].register_forward_hook(lambda _, __, output: kinds.add(output.dtype))
    private = dither.make_private(model, optimizer, quiet_plan(), loader.dataset, seed=SEED)
    take_steps(private, model, optimizer)
    assert kinds == {torch.bfloat16}
    assert private.step == STEPS


def test_a_run_resumes_from_the_state_of_accelerate(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"
    accelerator, model, optimizer, loader = prepared()
    private = dither.make_private(model, optimizer, real_plan(), loader.dataset, ledger=ledger)
    accelerator.register_for_checkpointing(private)
    take_steps(private, model, optimizer, 3)
    accelerator.save_state(tmp_path / "saved")
    saved = [each.detach().clone() for each in model.parameters()]
    take_steps(private, model, optimizer, 2)
    lost = Ledger(ledger).total(1e-3).epsilon
    private.close()  # what ends here is not saved

    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator, model, optimizer, loader = prepared()
    private = dither.make_private(model, optimizer, real_plan(), loader.dataset, ledger=ledger)
    accelerator.register_for_checkpointing(private)
    with pytest.warns(UserWarning, match="2 steps were spent and lost"):
        accelerator.load_state(tmp_path / "saved")
    assert all(map(torch.equal, saved, model.parameters()))
    assert (private.step, private.steps_left) == (5, STEPS - 3)
    take_steps(private, model, optimizer)
    total = Ledger(ledger).total(1e-3).epsilon
    assert lost <= total <= 2.0
    assert private.spent().epsilon == pytest.approx(total, rel=1e-3)


# What is refused.


def test_a_scaler_is_refused() -> None:
    Accelerator(cpu=True)
    model, optimizer = made()
    scaled = AcceleratedOptimizer(optimizer, scaler=torch.amp.GradScaler("cpu"))
    with pytest.raises(ValueError, match='without a GradScaler.*mixed_precision="bf16"'):
        dither.make_private(model, scaled, quiet_plan(), data())


def test_a_scheduler_is_refused() -> None:
    accelerator = Accelerator(cpu=True)
    model, optimizer = made()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model, optimizer, _ = accelerator.prepare(model, optimizer, scheduler)
    with pytest.raises(ValueError, match="no learning rate scheduler, got one.*from_torch"):
        dither.make_private(model, optimizer, quiet_plan(), data())


def test_a_prepared_dataloader_is_refused() -> None:
    _, model, optimizer, loader = prepared()
    with pytest.raises(TypeError, match="got a DataLoader.*pass loader.dataset"):
        dither.make_private(model, optimizer, quiet_plan(), loader)


def test_gradients_without_noise_are_refused() -> None:
    accelerator, model, optimizer, loader = prepared()
    private = dither.make_private(model, optimizer, quiet_plan(), loader.dataset)
    inputs, targets = next(iter(private.batches()))
    accelerator.backward(functional.cross_entropy(model(inputs), targets))
    with pytest.raises(StepError, match="gradients of a plain loss.backward"):
        optimizer.step()


def test_accumulation_is_refused() -> None:
    accelerator, model, optimizer, loader = prepared(gradient_accumulation_steps=2)
    private = dither.make_private(model, optimizer, quiet_plan(), loader.dataset)

    def go() -> None:
        for inputs, targets in private.batches():
            with accelerator.accumulate(model):
                losses = functional.cross_entropy(model(inputs), targets, reduction="none")
                private.backward(losses)
                optimizer.step()

    with pytest.raises(StepError, match="to accumulate gradients, plan a larger batch_size"):
        go()
