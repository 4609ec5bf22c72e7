"""A check after the first step: trainable parameters have changed, and no others have."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dither.training import Private, StepError


def check_first_step(private: Private) -> None:
    """Check the parameters when the optimizer takes its next step.

    A change that is too small for the dtype is no error, unless nothing at all has changed.
    """
    model, optimizer = private.model, private.optimizer
    optimizer = getattr(optimizer, "optimizer", optimizer)  # inside of that of accelerate
    frozen, before = dict[str, int](), dict[str, Tensor]()

    def remember(*_: Any) -> None:
        first.remove()  # torch calls hooks again for the super().step() of a subclass
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                before[name] = parameter.detach().clone()
            else:
                frozen[name] = parameter._version

    def compare(*_: Any) -> None:
        last.remove()
        named = dict(model.named_parameters())
        changed = [name for name, version in frozen.items() if named[name]._version != version]
        if changed:
            raise StepError(
                f"the first step has changed parameters that are frozen, {_shown(changed)}: the "
                "optimizer must write to trainable parameters only"
            )
        stuck = [name for name, old in before.items() if torch.equal(old, named[name])]
        steps = _steps(optimizer, private.stepsize)
        wrong = [name for name in stuck if _should_change(named[name], steps[named[name]])]
        if wrong or len(stuck) == len(before):
            raise StepError(
                f"the first step has not changed {_shown(wrong or stuck)}, which have a gradient: "
                "the model that is trained must be the one whose parameters the optimizer has, and "
                "the learning rate not 0, nor too small for their dtype (keep float32 weights with "
                "bf16=True); freeze what shall not change with requires_grad_(False)"
            )

    first = optimizer.register_step_pre_hook(remember)
    last = optimizer.register_step_post_hook(compare)


def _steps(optimizer: Optimizer, stepsize: float) -> dict[Tensor, float]:
    """Return the learning rate in use of every parameter."""
    groups = optimizer.param_groups
    return {each: float(group["lr"]) * stepsize for group in groups for each in group["params"]}


def _should_change(parameter: nn.Parameter, rate: float) -> bool:
    """Return whether a step of about the rate is more than rounding, for SGD and for Adam."""
    if parameter.grad is None:
        return False
    step = rate * min(1.0, float(parameter.grad.abs().max()))
    return rate == 0.0 or step > torch.finfo(parameter.dtype).eps * float(
        parameter.detach().abs().max()
    )


def _shown(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
