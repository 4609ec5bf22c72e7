"""The noises that are compared, each under three accountings.

"theorem" is the paper's: σ from its privacy theorem at ε = 16·ε̄. "real" is ours at the same
strength: the ε that the theorem's uniform noise really costs by numerical composition, to which
every noise is calibrated; its uniform noise is the theorem's own. "claimed" is ours at the
theorem's nominal ε, 16·ε̄: what tight accounting buys for the same number.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

import dither
from dither import theory
from dither.noise import Matched
from dither.schedules import InverseSqrt, Schedule, SqrtToZero

NOISES = ("uniform", "matched", "optimal")
ACCOUNTINGS = ("theorem", "real", "claimed")
DELTA = 1e-5
SCHEDULES: dict[str, Schedule] = {
    "sqrt_to_zero": SqrtToZero(start=0.1, end=1e-10),
    "inverse_sqrt": InverseSqrt(a=20.0, c=1.0),
}


@dataclass(frozen=True)
class Mechanism:
    """Everything that decides how much noise every step gets, in units of the clip norm."""

    schedule: str
    steps: int
    dataset_size: int
    batch_size: int
    eps_bar: float
    noise: str
    accounting: str

    def stepsizes(self) -> NDArray[np.float64]:
        """Return η_t."""
        return SCHEDULES[self.schedule].stepsizes(self.steps)

    def plan(self, clip_norm: float) -> dither.Plan:
        """Return the plan; its bound is what the noise really costs."""
        return dither.Plan.from_noise_multipliers(
            noise_multipliers(self),
            delta=DELTA,
            dataset_size=self.dataset_size,
            batch_size=self.batch_size,
            clip_norm=clip_norm,
            stepsizes=self.stepsizes(),
        )


@cache
def noise_multipliers(wanted: Mechanism) -> NDArray[np.float64]:
    """Return z_t."""
    uniform = _by_theorem(np.ones(wanted.steps), wanted)
    if wanted.noise == "uniform" and wanted.accounting != "claimed":
        return uniform
    if wanted.accounting == "theorem":
        return _by_theorem(_shape(wanted), wanted)
    claimed = 16.0 * wanted.eps_bar
    target = claimed if wanted.accounting == "claimed" else _cost(uniform, wanted)
    return _calibrate(wanted, target)


def real_epsilon(wanted: Mechanism) -> float:
    """Return what the theorem's uniform noise really costs."""
    return _cost(_by_theorem(np.ones(wanted.steps), wanted), wanted)


def _by_theorem(alphas: NDArray[np.float64], wanted: Mechanism) -> NDArray[np.float64]:
    sigma = theory.adp_sigma(
        alphas,
        clip_norm=1.0,
        dataset_size=wanted.dataset_size,
        batch_size=wanted.batch_size,
        epsilon=16.0 * wanted.eps_bar,
        delta=DELTA,
    )
    return wanted.batch_size * sigma * alphas


def _shape(wanted: Mechanism) -> NDArray[np.float64]:
    """Return α_t: under the theorem's cost matched noise is optimal; ours has the real cost's."""
    if wanted.noise == "matched":
        return Matched().alphas(wanted.stepsizes())
    return _calibrate(wanted, real_epsilon(wanted))


def _calibrate(wanted: Mechanism, epsilon: float) -> NDArray[np.float64]:
    planned = dither.plan(
        epsilon=epsilon,
        delta=DELTA,
        dataset_size=wanted.dataset_size,
        batch_size=wanted.batch_size,
        steps=wanted.steps,
        stepsizes=wanted.stepsizes(),
        noise=wanted.noise,
    )
    return planned.noise_multipliers


@cache
def _cached_epsilon(noises: bytes, sample_rate: float) -> float:
    z = np.frombuffer(noises)
    return dither.epsilon(z, sample_rate=sample_rate, delta=DELTA).epsilon


def _cost(z: NDArray[np.float64], wanted: Mechanism) -> float:
    return _cached_epsilon(z.tobytes(), wanted.batch_size / wanted.dataset_size)
