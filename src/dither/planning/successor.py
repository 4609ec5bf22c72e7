"""What is left of a plan after steps were lost: more noise, so that the total stays what it was.

A run that died has paid for steps that its last checkpoint does not have. They stay spent. How many
they are depends on when the machine died, not on the data: so the noise of the rest may be fixed
anew, and everything together composes like a plan that was made beforehand.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dither import accounting
from dither.accounting import pld
from dither.planning.fixed_plan import Plan
from dither.planning.reactive_plan import ReactivePlan
from dither.types import FloatArray

MOST_NOISE = 4.0
"""Noise so many times the planned is no training any more: then the run ends."""

_FINE = 1e-3


def after_losses(
    plan: Plan | ReactivePlan, *, taken: int, spent: Sequence[float], noise: Sequence[float]
) -> tuple[Plan | ReactivePlan, FloatArray, bool]:
    """Return the plan with which a run goes on after it has lost steps.

    Args:
        plan: the plan as it was before the first step.
        taken: how many of its steps the model has taken.
        spent: the noise multipliers of all steps that were paid for, taken or lost.
        noise: the least noise of the steps that was registered, those that were spent first.

    Returns:
        The new plan, whose first steps are those that were spent; the least noise of all its steps;
        and whether there are steps left: if not, the run has come to its end early.
    """
    if isinstance(plan, ReactivePlan) and plan.noises is None:
        least = np.concatenate([np.asarray(noise[: len(spent)]), plan.least_noise[taken:]])
        return replace(plan, steps=least.size), least, True
    found = successor(_fixed(plan), taken=taken, spent=spent)
    if found is None:
        return only_spent(plan, spent), np.asarray(spent, dtype=np.float64), False
    return _with_noise_of(found, plan), found.noise_multipliers, True


def only_spent(plan: Plan | ReactivePlan, spent: Sequence[float]) -> Plan | ReactivePlan:
    """Return a plan of the steps that were spent, which is at its end with them."""
    if isinstance(plan, ReactivePlan) and plan.noises is None:
        return replace(plan, steps=len(spent))
    fixed = _fixed(plan)
    stepsizes = np.resize(fixed.stepsizes, len(spent))
    return _with_noise_of(_priced(fixed, np.asarray(spent, dtype=np.float64), stepsizes), plan)


def as_registered(
    plan: Plan | ReactivePlan, *, taken: int, spent: Sequence[float], noise: Sequence[float]
) -> Plan | ReactivePlan:
    """Return the plan with which a run went on before, from the noise that it registered."""
    if isinstance(plan, ReactivePlan) and plan.noises is None:
        return replace(plan, steps=len(noise))
    fixed = _fixed(plan)
    made = _priced(fixed, np.asarray(noise), _stepsizes(fixed, taken, len(spent) - taken))
    return _with_noise_of(made, plan)


def _fixed(plan: Plan | ReactivePlan) -> Plan:
    """Return the plan of noise that was fixed in advance."""
    fixed = plan if isinstance(plan, Plan) else plan.noises
    assert fixed is not None  # noqa: S101 (for the type checker: noise that follows gets not here)
    return fixed


def _with_noise_of(made: Plan, plan: Plan | ReactivePlan) -> Plan | ReactivePlan:
    """Return the new noise in a plan of the old kind."""
    if isinstance(plan, Plan):
        return made
    bound = plan.bound if math.isinf(plan.bound.epsilon) else made.bound
    return replace(plan, noises=made, steps=made.steps, bound=bound)


def successor(plan: Plan, *, taken: int, spent: Sequence[float]) -> Plan | None:
    """Return the plan of the steps that were paid for, and of those that the model still needs.

    Its first steps are those in ``spent``, whether their releases were used or lost. The noise of
    the rest is the old plan's, times the smallest factor with which everything together costs no
    more than the old plan claims.

    Args:
        plan: the plan as it was before the first step.
        taken: how many of its steps the model has taken.
        spent: the noise multipliers of all steps that were paid for, taken or lost.

    Returns:
        The new plan; None if nothing is left to do, or if nothing fits with at most `MOST_NOISE`
        times the noise.
    """
    rest = plan.noise_multipliers[taken:]
    if not rest.size:
        return None
    stepsizes = _stepsizes(plan, taken, len(spent) - taken)
    paid = np.asarray(spent, dtype=np.float64)
    if math.isinf(plan.bound.epsilon):
        return _priced(plan, np.zeros(stepsizes.size), stepsizes)
    for factor in _factors(plan, paid, rest):
        made = _priced(plan, np.concatenate([paid, factor * rest]), stepsizes)
        if made.bound.epsilon <= plan.bound.epsilon:
            return made
    return None


def _stepsizes(plan: Plan, taken: int, lost: int) -> FloatArray:
    """Return the step sizes of a plan with steps in between that were lost, and need none."""
    filler = np.full(lost, plan.stepsizes[min(taken, plan.steps - 1)])
    return np.concatenate([plan.stepsizes[:taken], filler, plan.stepsizes[taken:]])


def _priced(plan: Plan, noise: FloatArray, stepsizes: FloatArray) -> Plan:
    """Return a plan like another, with other noise and step sizes."""
    if not noise.any():
        return Plan.unsafe_without_noise(
            steps=noise.size,
            dataset_size=plan.dataset_size,
            batch_size=plan.batch_size,
            clip_norm=plan.clip_norm,
            stepsizes=stepsizes,
            sampling=plan.sampling,
        )
    return Plan.from_noise_multipliers(
        noise,
        delta=plan.bound.delta,
        dataset_size=plan.dataset_size,
        batch_size=plan.batch_size,
        clip_norm=plan.clip_norm,
        stepsizes=stepsizes,
        sampling=plan.sampling,
        accountant=plan.accountant,
    )


def _factors(plan: Plan, paid: FloatArray, rest: FloatArray) -> list[float]:
    """Return factors to try, the smallest that may do first."""

    def excess(log_factor: float) -> float:
        z = np.concatenate([paid, math.exp(log_factor) * rest])
        return _quick_epsilon(plan, z) - plan.bound.epsilon

    low, high = 0.0, math.log(MOST_NOISE)
    if excess(high) > 0.0:
        return []
    while high - low > _FINE:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) > 0.0 else (low, middle)
    first = [1.0] if low == 0.0 else []
    return first + [math.exp(high) * (1.0 + _FINE) ** k for k in range(12)]


def _quick_epsilon(plan: Plan, z: FloatArray) -> float:
    q, delta = plan.sample_rate, plan.bound.delta
    if plan.accountant == "pld" and q < 1.0 and z.size > 1:
        return pld.coarse_epsilon(z, sample_rate=q, delta=delta, sampling=plan.sampling)
    return accounting.epsilon(
        z, sample_rate=q, delta=delta, sampling=plan.sampling, accountant=plan.accountant
    ).epsilon
