"""From a budget to a plan: the noise is searched for, and its cost proven."""

import math
from dataclasses import replace
from typing import overload

import numpy as np
from numpy.typing import ArrayLike

from dither import accounting, theory, validate
from dither.accounting.calibration import find_scale, secant_slope
from dither.accounting.cyclic import cycle_minima
from dither.noise import Correlated, Custom, GrowthBound, Matched, Optimal, Uniform
from dither.noise.iterates import iterate_variances
from dither.planning.fixed_plan import Plan
from dither.planning.reactive_plan import ReactivePlan, with_filter, with_fixed_noise
from dither.schedules import Constant, Reactive
from dither.types import Allocation, Budget, FloatArray, Schedule

_NOISES: dict[str, Allocation | Correlated] = {
    "uniform": Uniform(),
    "matched": Matched(),
    "optimal": Optimal(),
    "correlated": Correlated(),
}
NOISES = (*_NOISES,)
_AIM = 0.9998


@overload
def plan(
    *,
    epsilon: float,
    delta: float,
    dataset_size: int,
    batch_size: int,
    steps: int | None = ...,
    epochs: float | None = ...,
    clip_norm: float = ...,
    clipping: str = ...,
    stepsizes: Reactive,
    noise: Allocation | Correlated | ArrayLike | str = ...,
    accountant: str | None = ...,
    sampling: str = ...,
) -> ReactivePlan: ...


@overload
def plan(
    *,
    epsilon: float,
    delta: float,
    dataset_size: int,
    batch_size: int,
    steps: int | None = ...,
    epochs: float | None = ...,
    clip_norm: float = ...,
    clipping: str = ...,
    stepsizes: Schedule | ArrayLike = ...,
    noise: Allocation | Correlated | ArrayLike | str = ...,
    accountant: str | None = ...,
    sampling: str = ...,
) -> Plan: ...


def plan(
    *,
    epsilon: float,
    delta: float,
    dataset_size: int,
    batch_size: int,
    steps: int | None = None,
    epochs: float | None = None,
    clip_norm: float = 1.0,
    clipping: str = "flat",
    stepsizes: Schedule | Reactive | ArrayLike = Constant(1.0),  # noqa: B008 - a frozen value
    noise: Allocation | Correlated | ArrayLike | str = "optimal",
    accountant: str | None = None,
    sampling: str = "poisson",
) -> Plan | ReactivePlan:
    """Plan the noise of every step so that the full run costs at most (ε, δ).

    Guarantees: the plan's ``bound.epsilon`` is at most ``epsilon``, checked by the accountant after
    the search, and within half a percent of it.

    Args:
        epsilon: the target ε, positive.
        delta: δ, in (0, 1).
        dataset_size: n, public.
        batch_size: m, expected and public, at most n.
        steps: T; or
        epochs: T = ceil(epochs·n/m). Exactly one of the two.
        clip_norm: C_G, positive.
        clipping: "flat" shortens per-record gradients that are longer than C_G; "automatic" scales
            every one of them, g·C_G/(‖g‖ + 0.01), so that no gradient norm has to be guessed. A
            record changes the sum by at most C_G either way, and ε is the same.
        stepsizes: a schedule, one step size per step, or a rule that reacts to what is released.
        noise: an allocation, one α per step, or "optimal", "matched", "uniform", "correlated".
            Correlated noise lets later steps cancel part of earlier noise, and samples cyclically;
            where that gains nothing it is optimal noise, with a warning. For a rule that reacts:
            `GrowthBound`, "uniform" or one α per step, fixed in advance, or "filter", which lets
            the noise follow b_t during the run.
        accountant: which accountant's ε is meant; None is the tightest sound one.
        sampling: "poisson" or "fixed".

    Returns:
        A `Plan`, or for a rule that reacts a `ReactivePlan`.

    Example:
        >>> from dither.schedules import Linear
        >>> made = plan(epsilon=3.0, delta=1e-5, dataset_size=60_000, batch_size=256, epochs=1,
        ...             stepsizes=Linear(2.0, 0.01), noise="matched")
        >>> made.steps, 2.985 <= made.bound.epsilon <= 3.0
        (235, True)
    """
    m, n = validate.batch_within(batch_size=batch_size, dataset_size=dataset_size)
    if (steps is None) == (epochs is None):
        raise validate.InvalidTypeError(
            f"plan takes exactly one of steps and epochs, got steps={steps!r}, epochs={epochs!r}"
        )
    if epochs is None:
        T = validate.step_count(steps=steps)
    else:
        T = validate.steps_in(epochs, batch_size=m, dataset_size=n)
    if sampling == "cyclic":
        sampling = _check_cyclic(noise)
    budget = Budget(
        validate.positive(epsilon=epsilon),
        validate.probability(delta=delta),
        m / n,
        accountant,
        sampling,
    )
    accounting.check_settings(sampling=sampling, accountant=accountant)
    shape = Plan.unsafe_without_noise(
        steps=T,
        dataset_size=n,
        batch_size=m,
        clip_norm=validate.positive(clip_norm=clip_norm),
        clipping=clipping,
        stepsizes=Constant(1.0) if isinstance(stepsizes, Reactive) else stepsizes,
        sampling=sampling,
    )
    if not isinstance(stepsizes, Reactive):
        allocation = _check_allocation(noise, T)
        if isinstance(allocation, Correlated):
            return _correlated(shape, allocation, budget)
        return _search(shape, allocation.alphas(shape.stepsizes, budget=budget), budget, allocation)
    if isinstance(noise, str) and noise == "filter":
        return with_filter(stepsizes, shape, budget)
    if is_correlated(noise):
        raise validate.InvalidValueError(
            'noise must be "filter", "uniform", a GrowthBound or one α per step where step sizes '
            "react to releases, got correlated noise, which is designed for step sizes that are "
            "known before the run"
        )
    known = not isinstance(noise, str) or noise == "uniform"
    fixed = _check_allocation(noise, T) if known else None
    if not isinstance(fixed, Uniform | GrowthBound | Custom):
        raise validate.InvalidValueError(
            'noise must be "filter", "uniform", a GrowthBound or one α per step where step sizes '
            f"react to releases, got {noise!r}"
        )
    alphas = fixed.alphas(shape.stepsizes, budget=budget)
    return with_fixed_noise(stepsizes, _search(shape, alphas, budget, fixed))


def compare(
    stepsizes: FloatArray,
    noise_multipliers: FloatArray,
    *,
    uniform: FloatArray,
    correlation: tuple[float, ...] | None = None,
) -> dict[str, float | None]:
    """Return how noise compares with uniform noise of the same cost.

    Args:
        stepsizes: η_0 … η_{T−1}.
        noise_multipliers: z_0 … z_{T−1}.
        uniform: the noise multipliers of uniform noise.
        correlation: the coefficients of correlated noise; None for independent noise.

    Returns:
        Its first and last z, the number of bands, the mean variance of the iterates
        (`dither.noise.iterates`) and that over uniform noise's. For independent noise also
        Σ(η_t·z_t)², that over uniform noise's, and M_dp/M by the paper's cost.
    """
    eta, z = stepsizes, noise_multipliers
    variance, usual = (
        float(np.mean(iterate_variances(eta, each, correlation=theta)))
        for each, theta in ((z, correlation), (uniform, None))
    )
    found: dict[str, float | None] = {
        "first_noise_multiplier": float(z[0]),
        "last_noise_multiplier": float(z[-1]),
        "bands": 1 if correlation is None else len(correlation),
        "mean_variance_of_the_iterates": variance,
        "variance_relative_to_uniform": variance / usual,
        "noise_that_reaches_the_parameters": None,
        "relative_to_uniform": None,
        "improvement_by_the_theorem": None,
    }
    if correlation is None:
        reached = float(np.sum((eta * z) ** 2))
        found |= {
            "noise_that_reaches_the_parameters": reached,
            "relative_to_uniform": reached / float(np.sum((eta * uniform) ** 2)),
            "improvement_by_the_theorem": theory.improvement(eta, z),
        }
    return found


def _correlated(shape: Plan, noise: Correlated, budget: Budget) -> Plan:
    """Return a plan of correlated noise, or of optimal noise where that is better."""
    if shape.sampling != "poisson":
        raise validate.InvalidValueError(
            f"sampling must be poisson or cyclic for correlated noise, got {shape.sampling!r}"
        )
    design = noise.design(shape.stepsizes, budget=budget)
    if design is None:
        validate.warn(
            "correlated noise gains nothing over optimal noise here: the plan has optimal noise"
        )
        optimal = noise.fallback
        return _search(shape, optimal.alphas(shape.stepsizes, budget=budget), budget, optimal)
    made = replace(shape, sampling="cyclic", correlation=design.coefficients)
    return _search(made, design.alphas, budget, Optimal())


def _search(shape: Plan, alphas: FloatArray, budget: Budget, allocation: Allocation) -> Plan:
    """Return the plan of this shape whose noise costs the budget, and no more.

    Coarse upper bounds find the scale to half a percent, and certificates the rest.
    """
    start, floor = None, 0.0
    if isinstance(allocation, Optimal):
        start, floor = 1.0, allocation.floor if alphas.min() >= allocation.floor else 0.0
    else:
        alphas = alphas / alphas.max()  # only ratios count
    target = replace(budget, sample_rate=shape.charge_rate, sampling=shape.charge_sampling)
    charged = cycle_minima(alphas, shape.bands)
    scale, slope = find_scale(charged, target, accuracy=0.005, start=start, floor=floor)
    before, low, high = None, 0.0, math.inf
    for attempt in range(20):
        z = validate.positives(noise_multipliers=np.maximum(alphas * scale, floor))
        made = replace(
            shape, noise_multipliers=z, delta=budget.delta, accountant=budget.accountant or "pld"
        )
        reached = made.bound.epsilon / budget.epsilon
        if (0.999 if attempt < 4 else 0.995) <= reached <= 1.0:
            return made
        reached = max(reached, 0.5)  # ε may be 0, where δ alone covers all losses
        here = math.log(scale), math.log(reached)
        slope = slope if before is None else secant_slope(before, here)
        low, high = (scale, high) if reached > 1.0 else (low, scale)
        before, scale = here, scale * (reached / _AIM) ** (-1.0 / slope)
        scale = scale if low < scale < high else math.sqrt(low * high)
    raise validate.InvalidValueError(
        "epsilon must be one that this accountant resolves to half a percent, "
        f"got {budget.epsilon!r}"
    )


def is_correlated(noise: object) -> bool:
    """Return whether noise, as `plan` takes it, is correlated."""
    return isinstance(noise, Correlated) or (isinstance(noise, str) and noise == "correlated")


def _check_cyclic(noise: Allocation | Correlated | ArrayLike | str) -> str:
    """Return the sampling from which a plan of correlated noise is made."""
    if not is_correlated(noise):
        raise validate.InvalidValueError(
            "sampling must be poisson or fixed for noise that is not correlated, got 'cyclic'"
        )
    return "poisson"


def _check_allocation(
    noise: Allocation | Correlated | ArrayLike | str, T: int
) -> Allocation | Correlated:
    if isinstance(noise, str):
        return _NOISES[validate.choice(_NOISES, noise=noise)]
    if isinstance(noise, Allocation | Correlated) and not isinstance(noise, type):
        return noise
    return Custom(validate.same_length(T, noise=validate.positives(noise=noise)))
