"""Averages of the iterates: post-processing of releases, at no privacy cost."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dither.clipping.batch import trainable
from dither.validate import choice

Weighting = Callable[[int, int], float]
"""The weight of the newest iterate in the average, after ``step`` of ``steps`` steps."""


AVERAGINGS: dict[str, Weighting] = {
    # Exponential, over about a hundred steps, fewer at the start: the decay grows from 0 to 0.99.
    "ema": lambda step, _: max(0.01, 9.0 / (9.0 + step)),
    # The mean of the iterates of the second half; the last iterate before that.
    "tail": lambda step, steps: 1.0 / max(1, step - steps // 2),
}


def find_averaging(averaging: str | None) -> Weighting:
    """Return an averaging by its name; None is the newest iterate."""
    if averaging is None:
        return lambda *_: 1.0
    return AVERAGINGS[choice(AVERAGINGS, averaging=averaging)]


class Average:
    """The average of a model's parameters.

    Args:
        model: the model.
        averaging: "ema", "tail", or None for the iterates themselves.
        steps: T, the number of steps that are planned.

    Attributes:
        name: of the averaging.
        mean: the average so far, by the names of the parameters.
    """

    def __init__(self, model: nn.Module, averaging: str | None, steps: int) -> None:
        self._weight = find_averaging(averaging)
        self.name, self._model, self._steps = averaging, model, steps
        self.mean: dict[str, Tensor] = {}

    def resume(self, mean: dict[str, Tensor]) -> None:
        """Continue with a saved average, on the model's device."""
        own = trainable(self._model)
        self.mean = {name: each.to(own[name].device) for name, each in mean.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the iterate after that many steps."""
        if self.name is None:
            return
        weight = self._weight(step, self._steps)
        for name, parameter in trainable(self._model).items():
            if name not in self.mean or weight == 1.0:
                self.mean[name] = parameter.detach().clone()
            else:
                self.mean[name].lerp_(parameter, weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Use the average as the model's parameters inside the ``with``."""
        iterate = {name: p.detach().clone() for name, p in trainable(self._model).items()}
        self.apply()
        try:
            yield
        finally:
            self._load(iterate)

    def apply(self) -> None:
        """Set the model's parameters to the average."""
        self._load(self.mean)

    @torch.no_grad()
    def _load(self, values: dict[str, Tensor]) -> None:
        for name, parameter in trainable(self._model).items():
            if name in values:
                parameter.copy_(values[name])
