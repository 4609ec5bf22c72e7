"""Whether the first step has changed the trainable weights, and only these."""

from typing import final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

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
        """Raise if a frozen weight has changed, or a trainable one with a gradient has not."""
        named = dict(self._model.named_parameters())
        changed = {n for n, p in named.items() if _fingerprint(p) != self._before[n]}
        moving = {
            id(p)
            for group in self._optimizer.param_groups
            for p in group["params"]
            if group["lr"] and p.dtype.itemsize >= 4 and p.grad is not None and p.grad.any()
        }
        frozen = {name for name, p in named.items() if not p.requires_grad}
        still = {name for name, p in named.items() if id(p) in moving} - changed
        if frozen & changed:
            raise StepError(f"the first step has changed frozen weights: {_some(frozen & changed)}")
        if still:
            raise StepError(
                f"the first step has left weights as they were, which have a gradient and a "
                f"learning rate: {_some(still)}; the optimizer must have the parameters that the "
                "model computes with"
            )


def _fingerprint(parameter: Tensor) -> tuple[float, float]:
    """Return two numbers that change when a weight does."""
    flat = parameter.detach().flatten().double()
    return float(flat.sum()), float(flat @ torch.linspace(1.0, 2.0, len(flat)).to(flat))


def _some(names: set[str]) -> str:
    return ", ".join(sorted(names)[:5])
