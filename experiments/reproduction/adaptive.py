"""Runs whose step size follows the gradients' norms, by the paper's rule or by ours."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

import dither
from dither import theory
from dither.noise import GrowthBound, Uniform
from dither.schedules import AdaGradNorm, UnsafeRawAdaGradNorm
from dither.types import Allocation
from experiments.reproduction.features import FeatureSet
from experiments.reproduction.head import HeadSetting, head_features, head_outcomes
from experiments.reproduction.noises import DELTA
from experiments.reproduction.run import Outcome

B0_SQUARED, NU = 20.0, 1e-5
RULES = {"raw": UnsafeRawAdaGradNorm, "released": AdaGradNorm}
"""The paper's, which leaks and claims nothing, and ours, which looks at releases only."""


@dataclass(frozen=True)
class AdaptiveRun:
    """A run with b_{t+1}² = b_t² + max(β_t·‖g‖², ν).

    With the paper's rule, noise is what its theorem gives for α_t (by way of the ε that this costs,
    so up to 1e-3 more); with ours, it is calibrated to the ε of the theorem's uniform noise. Noise
    of growth None is uniform, and with our rule "filter" lets it follow b_t, which a privacy filter
    accounts for step by step.
    """

    kind: ClassVar[str] = "adaptive"
    setting: HeadSetting
    steps: int
    rule: str
    noise: str
    eps_bar: float
    clip_norm: float
    beta: float
    growth: float | None
    seed: int

    @property
    def work(self) -> float:
        """Its steps."""
        return self.steps

    @property
    def features(self) -> FeatureSet:
        """The projected features of CIFAR-10."""
        return head_features(self.setting)

    @property
    def group(self) -> Hashable:
        """Runs of one seed and length draw the same records and normals."""
        return self.setting, self.steps, self.seed

    @classmethod
    def measure(cls, runs: Sequence["AdaptiveRun"]) -> list[Outcome]:
        """Train, and measure every few steps."""
        return head_outcomes(runs[0].setting, [run.plan() for run in runs], runs[0].seed)

    def plan(self) -> dither.planning.ReactivePlan:
        """Return the plan."""
        n, m = self.setting.dataset_size, self.setting.batch_size
        growth = self.growth if self.rule == "raw" else None
        return dither.plan(
            epsilon=_real_epsilon(self.eps_bar, growth, self.steps, n, m),
            delta=DELTA,
            dataset_size=n,
            batch_size=m,
            steps=self.steps,
            clip_norm=self.clip_norm,
            stepsizes=RULES[self.rule](b0_squared=B0_SQUARED, nu=NU, beta=self.beta),
            noise="filter" if self.noise == "filter" else _allocation(self.growth),
        )


def _allocation(growth: float | None) -> Allocation:
    return Uniform() if growth is None else GrowthBound(B0_SQUARED, growth)


@cache
def _real_epsilon(eps_bar: float, growth: float | None, steps: int, n: int, m: int) -> float:
    """Return what the theorem's noise for α_t at ε̄ costs by numerical composition."""
    alphas = _allocation(growth).alphas(np.ones(steps))
    sigma = theory.adp_sigma(
        alphas, clip_norm=1.0, dataset_size=n, batch_size=m, epsilon=16.0 * eps_bar, delta=DELTA
    )
    return dither.epsilon(m * sigma * alphas, sample_rate=m / n, delta=DELTA).epsilon
