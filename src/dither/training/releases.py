"""From the clipped sums of all ranks to one release, which the first rank pays for."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from dither.clipping import ClippedSum
from dither.planning import Plan, ReactivePlan
from dither.randomness import Source
from dither.release import release
from dither.schedules import UnsafeRawAdaGradNorm
from dither.training.errors import StepError
from dither.training.payments import Payments
from dither.training.ranks import Ranks, place


@dataclass(frozen=True)
class Told:
    """What all ranks know of a release besides its gradients."""

    step: int
    noise_multiplier: float
    noise: float
    dimension: int
    energy: float = math.nan
    raw_squared_norm: float = math.nan

    def squared_norm(self) -> float:
        """Return ‖g‖²; only for step sizes that follow it."""
        return self.energy


@dataclass(frozen=True)
class Ready:
    """A step that waits for its release.

    Attributes:
        plan: the plan.
        number: how many steps were released before it.
        noise_multiplier: z.
        sums: this rank's clipped gradients, in the order of the parameters.
        spend: is called when the step is paid for, before anything of it is released.
    """

    plan: Plan | ReactivePlan
    number: int
    noise_multiplier: float
    sums: dict[str, Tensor]
    spend: Callable[[], None]


@final
class Releases:
    """The one way from sums to gradients: reduced to the first rank, paid, noised, sent to all.

    Args:
        group: who takes part.
        payments: the first rank's.
        source: of the noise.
        parameters: what is trained, by name.
    """

    def __init__(
        self,
        group: Ranks,
        payments: Payments,
        source: Source,
        parameters: Mapping[str, nn.Parameter],
    ) -> None:
        self._group, self._payments, self._source = group, payments, source
        self._parameters, self._process = parameters, os.getpid()

    def release(self, ready: Ready) -> tuple[dict[str, Tensor], Told]:
        """Return the gradients that all ranks may see, and what else they know."""
        if os.getpid() != self._process:
            raise StepError("a forked process cannot release what its parent pays for")
        if place() != (self._group.rank, self._group.size):
            raise StepError(
                "the process group has changed since make_private: ranks that each hold all "
                "records would each be a run of its own; call init_process_group first"
            )
        total = self._group.total(ready.sums)
        made: dict[str, Tensor] = {}
        told = self._group.by_first(lambda: self._paid(ready, total, made))
        if not self._group.is_first:
            self._follow(ready, told, made)
        self._group.shared(made)
        return made, told

    def _paid(self, ready: Ready, total: dict[str, Tensor], made: dict[str, Tensor]) -> Told:
        """Pay for a step, and only then put what it releases into ``made``."""
        plan, z = ready.plan, ready.noise_multiplier
        self._payments.finish(ready.number, z)
        ready.spend()
        released = release(
            ClippedSum(total, torch.zeros(0)),
            clip_norm=plan.clip_norm,
            noise_multiplier=z,
            batch_size=plan.batch_size,
            stream=self._source.stream("noise", ready.number + 1),
        )
        for name, parameter in self._parameters.items():
            made[name] = released.gradients[name].to(parameter.dtype)
        told = ready.number, z, released.noise, released.dimension
        if isinstance(plan, Plan):
            return Told(*told)
        raw, m = math.nan, plan.batch_size
        if isinstance(plan.stepsizes, UnsafeRawAdaGradNorm):  # which claims nothing
            raw = sum(float((g.double() / m).square().sum()) for g in total.values())
        return Told(*told, released.squared_norm(), raw)

    def _follow(self, ready: Ready, told: Told, made: dict[str, Tensor]) -> None:
        """Take the step that rank 0 has paid for and released."""
        if (told.step, told.noise_multiplier) != (ready.number, ready.noise_multiplier):
            raise StepError(
                "ranks must be at the same step of the same plan, but rank 0 has released step "
                f"{told.step} with noise {told.noise_multiplier!r}, and here it is step "
                f"{ready.number} with noise {ready.noise_multiplier!r}"
            )
        ready.spend()
        for name, parameter in self._parameters.items():
            made[name] = torch.zeros_like(parameter)
