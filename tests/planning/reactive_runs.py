"""Runs along reactive plans, with releases that were made up."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dither.accounting import Filter
from dither.noise import GrowthBound
from dither.planning.reactive_plan import ReactivePlanState
from dither.schedules import AdaGradNorm

SETTING: dict[str, Any] = {
    "epsilon": 1.0,
    "delta": 1e-5,
    "dataset_size": 60_000,
    "batch_size": 256,
    "steps": 60,
}
SHORT = {**SETTING, "steps": 6}  # a step of noise of its own costs the search most
RULE = AdaGradNorm(b0_squared=20.0, nu=1e-3, beta=3.0)
GROWTH = GrowthBound(b0_squared=20.0, growth=0.5)


@dataclass(frozen=True)
class FakeRelease:
    """A release, as a run_state sees it."""

    squared: float
    noise: float = 0.1
    dimension: int = 50

    def squared_norm(self) -> float:
        return self.squared


def never() -> float:
    raise AssertionError("the raw norm must not be read")


def run(
    run_state: ReactivePlanState, releases: Iterable[FakeRelease]
) -> tuple[list[float], list[float]]:
    """Walk until releases or run_state are at their end; return the noise and the step sizes."""
    noises, stepsizes, start = [], [], run_state.steps
    for released in releases:
        z = run_state.noise_multiplier
        if z is None:
            break
        assert run_state.noise_multiplier == z
        run_state.spend()
        noises.append(z)
        stepsizes.append(run_state.stepsize(released, never))
        assert run_state.steps == start + len(noises)
    return noises, stepsizes


def some_releases(seed: int, count: int = 200) -> list[FakeRelease]:
    return [FakeRelease(float(x)) for x in np.random.default_rng(seed).gamma(0.5, 4.0, count)]


def expected_b(rule: AdaGradNorm, releases: list[FakeRelease], steps: int) -> list[float]:
    """b_0 … b_T by the formula of the design, from all releases anew."""
    found = [rule.b0_squared]
    for t in range(steps):
        terms = [
            rule.weight(s) * (released.squared - released.dimension * released.noise**2)
            for s, released in enumerate(releases[: t + 1])
        ]
        grown = rule.b0_squared + max(math.fsum(terms), (t + 1) * rule.nu)
        found.append(max(found[-1], grown))
    return [math.sqrt(b_squared) for b_squared in found]


def charge_all(budget: Filter, noises: list[float], q: float) -> None:
    for z in noises:
        budget.charge(z, q)
