"""Ways to shape the noise, compared at the same budget."""

import numpy as np

from dither import accounting, theory
from dither.planning.fixed_plan import Plan
from dither.types import FloatArray, PrivacyBound

NOISES = ("uniform", "matched", "optimal")


def compared(
    stepsizes: FloatArray,
    noise_multipliers: FloatArray,
    *,
    uniform: FloatArray,
    problem: theory.Problem,
    sampling: str,
) -> dict[str, float]:
    """Return what there is to compare of noise, against uniform noise of the same cost.

    Args:
        stepsizes: η_0 … η_{T−1}.
        noise_multipliers: z_0 … z_{T−1}.
        uniform: the noise multipliers of uniform noise.
        problem: what the utility bound needs to know.
        sampling: "poisson" or "fixed".

    Returns:
        Its first and last z, Σ(η_t·z_t)², that over uniform noise's, M_dp/M by the paper's cost,
        and the bound on min E‖∇F‖².
    """
    eta, z = stepsizes, noise_multipliers
    reached = float(np.sum((eta * z) ** 2))
    bound = theory.utility_bound(problem, eta, noise_multipliers=z, sampling=sampling)
    return {
        "first_noise_multiplier": float(z[0]),
        "last_noise_multiplier": float(z[-1]),
        "noise_that_reaches_the_parameters": reached,
        "relative_to_uniform": reached / float(np.sum((eta * uniform) ** 2)),
        "improvement_by_the_theorem": theory.improvement(eta, z),
        "utility_bound": bound.total,
    }


def prices_of(made: Plan) -> dict[str, PrivacyBound]:
    """Return what a plan costs by every accountant."""
    return accounting.costs(
        made.noise_multipliers,
        sample_rate=made.sample_rate,
        delta=made.bound.delta,
        sampling=made.sampling,
        known={made.accountant: made.bound},
    )
