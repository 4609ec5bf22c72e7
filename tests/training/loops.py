"""Loops as users write them, and the same by hand."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import dither
from dither import Plan
from dither.randomness import Source
from dither.sampling import sampler_for
from dither.training import Private

RECORDS, FEATURES, CLASSES = 120, 6, 3


def data(records: int = RECORDS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(records, FEATURES, generator=generator)
    return inputs, torch.randint(CLASSES, (records,), generator=generator)


def model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def quiet_plan(steps: int = 6, **settings: Any) -> Plan:
    given: dict[str, Any] = {"dataset_size": RECORDS, "batch_size": 12, **settings}
    return Plan.unsafe_without_noise(steps=steps, **given)


def noisy_plan(steps: int = 6, z: float = 1.0, **settings: Any) -> Plan:
    given: dict[str, Any] = {"dataset_size": RECORDS, "batch_size": 12, "delta": 1e-3, **settings}
    return Plan.from_noise_multipliers([z] * steps, **given)


def private(plan: Plan | None = None, dataset: Any = None, **settings: Any) -> Private:
    made = model()
    optimizer = settings.pop("optimizer", lambda p: torch.optim.SGD(p, lr=0.5))
    given = data() if dataset is None else dataset
    return dither.make_private(
        made, optimizer(made.parameters()), plan or quiet_plan(), given, seed=7, **settings
    )


def losses(run: Private, inputs: Any, targets: Tensor) -> Tensor:
    return own_losses(run.model, inputs, targets)


def own_losses(module: nn.Module, inputs: Any, targets: Tensor) -> Tensor:
    return functional.cross_entropy(module(inputs), targets, reduction="none")


def take_steps(
    run: Private, compute: Callable[..., Tensor] = losses, microbatch_size: int = 0
) -> Tensor:
    """Run the loop to its end, and return the parameters as one vector."""
    for batch in run.batches():
        parts = run.microbatches(batch, microbatch_size) if microbatch_size else [batch]
        for inputs, targets in parts:
            run.backward(compute(run, inputs, targets))
        run.optimizer.step()
        run.optimizer.zero_grad()
    return flat(run.model)


def released_sum(run: Private) -> Tensor:
    """Take the step of a plan without noise, and return the clipped sum that it has released."""
    run.optimizer.step()
    found = [p.grad.flatten() for p in run.model.parameters() if p.grad is not None]
    return torch.cat(found).double() * run.plan.batch_size


def sum_by_hand(
    module: nn.Module,
    loss: Callable[..., Tensor],
    clip_norm: float,
    *batch: Tensor,
    clipping: str = "flat",
) -> Tensor:
    """Return the clipped sum from the gradient of every record alone, by plain autograd.

    Args:
        module: is copied, so that nothing of it is recorded.
        loss: ``loss(module, *record)`` for a batch of one record.
        clip_norm: the bound on a record's gradient.
        batch: tensors of one row per record.
        clipping: "flat" or "automatic".
    """
    copied = copy.deepcopy(module)
    parameters = [p for p in copied.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    for row in range(len(batch[0])):
        own = loss(copied, *(tensor[row : row + 1].detach() for tensor in batch)).sum()
        found = torch.autograd.grad(own, parameters, allow_unused=True, materialize_grads=True)
        gradient = torch.cat([each.flatten().double() for each in found])
        if gradient.isfinite().all():
            norm = float(gradient.norm())
            flat_factor = min(1.0, clip_norm / max(norm, 1e-300))
            total += gradient * (flat_factor if clipping == "flat" else clip_norm / (norm + 0.01))
    return total


def distance(one: Tensor, two: Tensor) -> float:
    """Return the largest difference of two sums, relative to the larger entry."""
    return float((one - two).abs().max() / two.abs().max().clamp(min=1e-12))


def flat(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def batch_by_hand(plan: Plan, step: int, seed: int = 7) -> tuple[Tensor, Tensor]:
    inputs, targets = data()
    stream = Source(seed).stream("sampling", step)
    index = torch.from_numpy(sampler_for(plan, length=len(inputs)).draw(len(inputs), stream))
    return inputs[index], targets[index]
