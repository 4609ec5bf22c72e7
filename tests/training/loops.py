"""Loops as users write them, and the same by hand."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import dither
from dither import Plan, Private
from dither.randomness import Source
from dither.sampling import sampler_for

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


def losses(run: Private, inputs: Any, targets: Tensor, reduction: str = "none") -> Tensor:
    return functional.cross_entropy(run.model(inputs), targets, reduction=reduction)


def take_steps(run: Private, compute: Callable[..., Tensor] = losses, piece: int = 0) -> Tensor:
    """Run the loop to its end, and return the parameters as one vector."""
    for batch in run.batches():
        for inputs, targets in run.pieces(batch, piece) if piece else [batch]:
            run.backward(compute(run, inputs, targets))
        run.optimizer.step()
        run.optimizer.zero_grad()
    return flat(run.model)


def flat(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def batch_by_hand(plan: Plan, step: int, seed: int = 7) -> tuple[Tensor, Tensor]:
    inputs, targets = data()
    stream = Source(seed).stream("sampling", step)
    index = torch.from_numpy(sampler_for(plan, length=len(inputs)).draw(len(inputs), stream))
    return inputs[index], targets[index]
