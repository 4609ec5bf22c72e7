"""Resuming after a crash: more noise in the rest of a plan, so that the total stays what it was.

A run that died has spent steps that its last checkpoint does not have. They stay spent. How many
they are depends on when the machine died, not on the data: so the noise of the rest may be
calibrated again, and everything together composes like a plan that was made beforehand.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dither import validate
from dither.accounting.calibration import quick_epsilon
from dither.accounting.cyclic import cycle_minima
from dither.planning.fixed_plan import Plan
from dither.planning.reactive_plan import ReactivePlan
from dither.types import FloatArray

MOST_NOISE = 4.0
"""With more than this multiple of the planned noise, training is not worth it: the run ends."""

_FINE = 1e-3


def check_state(
    state: Mapping[str, Any], own: Mapping[str, Any], released: int, bands: int
) -> tuple[int, list[float]]:
    """Return how many steps a saved run has taken, and the noise of its charges.

    ``own`` is the state of the run that resumes it, which has released some steps itself; a charge
    is for as many steps as there are ``bands``.
    """
    for name in ("format", "rows_per_user", "plan", "seed"):
        if state.get(name, ...) != own[name]:
            saved, current = str(state.get(name, ...))[:16], str(own[name])[:16]
            remedy = ""
            if name == "plan":
                remedy = "; continue with the same ε, δ, sizes, steps, step sizes and clip norm"
            raise validate.InvalidValueError(
                f"state must be of the same {name}: the saved run has {saved}, this one {current}"
                f"{remedy}"
            )
    spent = [float(z) for z in state["plan_state"]["spent"]]
    taken = validate.instance(int, taken=state["taken"])
    needed, found = max(taken, released), len(spent) * bands
    if taken < own["taken"]:  # in the middle of a cycle
        needed, found = own["taken"], taken
    if found < needed:
        raise validate.InvalidValueError(
            f"state must have spent the {needed} steps that were released, got {found}: to go back "
            "because of results is not covered by the plan"
        )
    return taken, spent


def after_losses(
    plan: Plan | ReactivePlan, *, taken: int, spent: Sequence[float], noise: Sequence[float]
) -> tuple[Plan | ReactivePlan, FloatArray, bool]:
    """Return the plan with which a run resumes after it has lost steps.

    Args:
        plan: the plan as it was before the first step.
        taken: how many of its steps the model has taken.
        spent: the noise multipliers of all that was charged, steps or cycles, taken or lost.
        noise: the least noise that was registered, that of the charges first.

    Returns:
        The new plan, whose first steps are those that were charged; the noise of all its charges;
        and whether there are steps left: if not, the run has come to its end early.
    """
    if isinstance(plan, ReactivePlan) and plan.noises is None:
        least = np.concatenate([np.asarray(noise[: len(spent)]), plan.charges[taken:]])
        return replace(plan, steps=least.size), least, True
    recalibrated = with_spent(_fixed(plan), spent, taken=taken)
    if recalibrated is None:
        return only_spent(plan, spent), np.asarray(spent, dtype=np.float64), False
    return _with_noise_of(recalibrated, plan), recalibrated.charges, True


def only_spent(plan: Plan | ReactivePlan, spent: Sequence[float]) -> Plan | ReactivePlan:
    """Return a plan of the steps that were spent, which ends with them."""
    if isinstance(plan, ReactivePlan) and plan.noises is None:
        return replace(plan, steps=len(spent))
    fixed = _fixed(plan)
    noise = np.repeat(np.asarray(spent, dtype=np.float64), fixed.bands)
    stepsizes = np.resize(fixed.stepsizes, noise.size)
    return _with_noise_of(replace(fixed, noise_multipliers=noise, stepsizes=stepsizes), plan)


def as_registered(
    plan: Plan | ReactivePlan, *, taken: int, spent: Sequence[float], noise: Sequence[float]
) -> Plan | ReactivePlan:
    """Return the plan with which a run resumed before, from the noise that it registered."""
    if isinstance(plan, ReactivePlan) and plan.noises is None:
        return replace(plan, steps=len(noise))
    fixed = _fixed(plan)
    stepsizes = _stepsizes(fixed, taken, len(spent) * fixed.bands - taken)
    each = np.repeat(np.asarray(noise), fixed.bands)[: stepsizes.size]
    registered = replace(fixed, noise_multipliers=each, stepsizes=stepsizes)
    return _with_noise_of(registered, plan)


def _fixed(plan: Plan | ReactivePlan) -> Plan:
    """Return the plan of noise that was fixed in advance."""
    fixed = plan if isinstance(plan, Plan) else plan.noises
    assert fixed is not None  # noqa: S101 (for the type checker: noise that follows b is excluded)
    return fixed


def _with_noise_of(fixed: Plan, plan: Plan | ReactivePlan) -> Plan | ReactivePlan:
    """Return the new noise in a plan of the old kind."""
    if isinstance(plan, Plan):
        return fixed
    bound = plan.bound if math.isinf(plan.bound.epsilon) else fixed.bound
    return replace(plan, noises=fixed, steps=fixed.steps, bound=bound)


def with_spent(plan: Plan, spent: ArrayLike, *, taken: int = 0) -> Plan | None:
    """Return the plan of the steps that were spent, and of those that the model still needs.

    Its first steps are those that ``spent`` has charges for, whether their releases were used or
    lost, or of a cycle that was begun: correlated noise begins again after them. The noise of the
    rest is the old plan's, times the smallest factor with which everything together costs no
    more than the old plan claims. None if nothing is left to do, or if nothing fits with at most
    `MOST_NOISE` times the noise.
    """
    rest = plan.noise_multipliers[taken:]
    if not rest.size:
        return None
    first = np.repeat(np.asarray(spent, dtype=np.float64), plan.bands)
    stepsizes = _stepsizes(plan, taken, first.size - taken)
    if math.isinf(plan.bound.epsilon):
        return replace(plan, noise_multipliers=np.zeros(stepsizes.size), stepsizes=stepsizes)
    for factor in _factors(plan, first, rest):
        noise = np.concatenate([first, factor * rest])
        recalibrated = replace(plan, noise_multipliers=noise, stepsizes=stepsizes)
        if recalibrated.bound.epsilon <= plan.bound.epsilon:
            return recalibrated
    return None


def _stepsizes(plan: Plan, taken: int, lost: int) -> FloatArray:
    """Return the step sizes of a plan with steps in between that were lost, and need none."""
    filler = np.full(lost, plan.stepsizes[min(taken, plan.steps - 1)])
    return np.concatenate([plan.stepsizes[:taken], filler, plan.stepsizes[taken:]])


def _factors(plan: Plan, first: FloatArray, rest: FloatArray) -> list[float]:
    """Return factors to try, the smallest that may do first."""

    def excess(log_factor: float) -> float:
        epsilon = quick_epsilon(
            cycle_minima(np.concatenate([first, math.exp(log_factor) * rest]), plan.bands),
            sample_rate=plan.charge_rate,
            delta=plan.delta,
            sampling=plan.charge_sampling,
            accountant=plan.accountant,
        )
        return epsilon - plan.bound.epsilon

    low, high = 0.0, math.log(MOST_NOISE)
    if excess(high) > 0.0:
        return []
    while high - low > _FINE:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) > 0.0 else (low, middle)
    unchanged = [1.0] if low == 0.0 else []
    return unchanged + [math.exp(high) * (1.0 + _FINE) ** k for k in range(12)]
