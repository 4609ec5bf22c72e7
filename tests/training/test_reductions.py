"""The paper's reductions: without noise it is SGD, with equal noise DP-SGD."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from tests.normals import standard_normals
from tests.training.loops import (
    batch_by_hand,
    flat,
    model,
    noisy_plan,
    own_losses,
    private,
    quiet_plan,
    sum_by_hand,
    take_steps,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer

import dither
from dither import Plan
from dither.randomness import Source
from dither.release import margin
from dither.schedules import Linear
from dither.types import CLIPPINGS

OPTIMIZERS: dict[str, Callable[[Iterable[Tensor]], Optimizer]] = {
    "sgd": lambda p: SGD(p, lr=0.5),
    "momentum": lambda p: SGD(p, lr=0.3, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p: Adam(p, lr=0.05),
    "adamw": lambda p: AdamW(p, lr=0.05, amsgrad=True),
}


def by_hand(plan: Plan, optimizer: Callable[[Iterable[Tensor]], Optimizer]) -> Tensor:
    made = model()
    stepping = optimizer(made.parameters())
    rates = [group["lr"] for group in stepping.param_groups]
    for t in range(plan.steps):
        inputs, targets = batch_by_hand(plan, t)
        for group, rate in zip(stepping.param_groups, rates, strict=True):
            group["lr"] = rate * float(plan.stepsizes[t])
        stepping.zero_grad()
        total = functional.cross_entropy(made(inputs), targets, reduction="sum")
        (total / plan.batch_size).backward()
        stepping.step()
    return flat(made)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_without_noise_and_clipping_it_is_the_plain_optimizer(name: str, sampling: str) -> None:
    plan = quiet_plan(stepsizes=Linear(1.0, 0.2), sampling=sampling)
    found = take_steps(private(plan, optimizer=OPTIMIZERS[name]))
    assert float((found - by_hand(plan, OPTIMIZERS[name])).abs().max()) < 1e-6


@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("microbatch_size", [0, 1, 5])
def test_with_clipping_alone_it_is_descent_along_clipped_gradients(
    microbatch_size: int, clipping: str
) -> None:
    plan = quiet_plan(clip_norm=0.3, clipping=clipping)
    made = model()
    for t in range(plan.steps):
        drawn = batch_by_hand(plan, t)
        total = sum_by_hand(made, own_losses, 0.3, *drawn, clipping=clipping).float()
        with torch.no_grad():
            nn.utils.vector_to_parameters(
                flat(made) - 0.5 * total / plan.batch_size, made.parameters()
            )
    found = take_steps(private(plan), microbatch_size=microbatch_size)
    assert float((found - flat(made)).abs().max()) < 1e-6


def test_with_equal_noise_it_is_dp_sgd() -> None:
    plan = noisy_plan(steps=5, z=0.7, clip_norm=0.4)
    found = take_steps(private(plan))
    made = model()
    for t in range(plan.steps):
        inputs, targets = batch_by_hand(plan, t)
        sums = [torch.zeros_like(p) for p in made.parameters()]
        for x, y in zip(inputs, targets, strict=True):
            loss = functional.cross_entropy(made(x[None]), y[None])
            gradients = torch.autograd.grad(loss, list(made.parameters()))
            norm = torch.stack([g.norm() for g in gradients]).norm()
            for total, gradient in zip(sums, gradients, strict=True):
                total += gradient * min(1.0, 0.4 / float(norm))
        stream = Source(7).stream("noise", t + 1)
        size, scale = flat(made).numel(), 0.4 * 0.7 * (1.0 + margin(12))
        noise = scale * torch.from_numpy(standard_normals(size, stream))
        step = (torch.cat([s.flatten() for s in sums]) + noise).float() / plan.batch_size
        with torch.no_grad():
            for p, g in zip(made.parameters(), step.split([s.numel() for s in sums]), strict=True):
                p.sub_(0.5 * g.view_as(p))
    assert float((found - flat(made)).abs().max()) < 1e-6


def test_uniform_noise_is_alpha_one_and_any_common_scale_of_alpha_is_the_same_plan() -> None:
    setting: dict[str, Any] = {
        "epsilon": 2.0, "delta": 1e-4, "dataset_size": 120, "batch_size": 12, "steps": 20,
    }  # fmt: skip
    ones = dither.plan(noise=np.ones(20), **setting)
    assert ones == dither.plan(noise="uniform", **setting)
    assert ones == dither.plan(noise=np.full(20, 7.0), **setting)
