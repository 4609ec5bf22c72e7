"""Whether the first step has changed the trainable weights, and only these."""

from typing import final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dither import validate
from dither.training import StepError


@final
class WeightCheck:
    """Compares the weights of a model before and after its first step.

    Args:
        model: before the step.
        optimizer: the optimizer that takes it.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._before = {name: _fingerprint(p) for name, p in model.named_parameters()}

    def check(self) -> None:
        """Raise if a frozen weight has changed, or none that has a gradient; warn if some have not.

        A weight can stay as it was because its update is below the precision of its numbers.
        """
        named = dict(self._model.named_parameters())
        changed = {n for n, p in named.items() if _fingerprint(p) != self._before[n]}
        rates = {id(p): g["lr"] for g in self._optimizer.param_groups for p in g["params"]}
        moving = {
            name
            for name, p in named.items()
            if rates.get(id(p)) and p.grad is not None and p.grad.any()
        }
        if frozen := {name for name in changed if not named[name].requires_grad}:
            raise StepError(f"the first step has changed frozen weights: {_some(frozen)}")
        if moving and not moving & changed:
            raise StepError(
                "the first step has changed no weight: the optimizer must have the parameters that "
                "the model computes with, and a learning rate that moves them"
            )
        if still := moving - changed:
            validate.warn(
                f"the first step has left weights as they were: {_some(still)}; the learning rate "
                "may be too small for their precision"
            )


def _fingerprint(parameter: Tensor) -> tuple[float, float]:
    """Return two numbers that change when a weight does."""
    flat = parameter.detach().flatten().double()
    return float(flat.sum()), float(flat @ torch.linspace(1.0, 2.0, len(flat)).to(flat))


def _some(names: set[str]) -> str:
    return ", ".join(sorted(names)[:5])
