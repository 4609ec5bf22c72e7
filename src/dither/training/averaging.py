"""Averages of the iterates: post-processing of releases, at no privacy cost."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from dither.clipping.batch import trainable
from dither.validate import choice


class Averaging(Protocol):
    """The weight of the newest iterate in the average."""

    def share(self, step: int, steps: int) -> float:
        """Return the weight of the iterate after ``step`` of ``steps`` steps, in [0, 1]."""
        ...


class Last:
    """No average: the newest iterate."""

    def share(self, step: int, steps: int) -> float:
        """Return 1."""
        return 1.0


class Ema:
    """An exponential moving average over about a hundred steps, fewer at the start."""

    def share(self, step: int, steps: int) -> float:
        """Return 1 − decay, where decay grows from 0 to 0.99."""
        return max(0.01, 9.0 / (9.0 + step))


class Tail:
    """The mean of the iterates of the second half; the last iterate before that."""

    def share(self, step: int, steps: int) -> float:
        """Return one over the number of iterates so far."""
        return 1.0 / max(1, step - steps // 2)


AVERAGINGS: dict[str, Averaging] = {"ema": Ema(), "tail": Tail()}


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
        if averaging is not None:
            choice(AVERAGINGS, averaging=averaging)
        self._how = None if averaging is None else AVERAGINGS[averaging]
        self.name, self._model, self._steps = averaging, model, steps
        self.mean: dict[str, Tensor] = {}

    def resume(self, mean: dict[str, Tensor]) -> None:
        """Continue with a saved average, on the model's device."""
        own = trainable(self._model)
        self.mean = {name: each.to(own[name].device) for name, each in mean.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the iterate after that many steps."""
        if self._how is None:
            return
        share = self._how.share(step, self._steps)
        for name, parameter in trainable(self._model).items():
            if name not in self.mean or share == 1.0:
                self.mean[name] = parameter.detach().clone()
            else:
                self.mean[name].lerp_(parameter, share)

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
