"""A paid search: the first steps of a plan choose the learning rate of the rest.

The search is k trials of a few steps each, one for every candidate factor of the learning rate, and
some steps that score the trials: such a step releases, instead of a sum of clipped gradients, the
sum of one vector per record, its scores in the k trials, whose norm is at most the clip norm. So
every step of the search is what every other step is, a sum of records drawn with probability q, at
most ``clip_norm`` per record, with noise z·``clip_norm``: the search is a prefix of the plan's list
of noise multipliers, and one composition covers all.

Trials use the releases of earlier steps, and the rest of the run uses the factor that was chosen
from them. That decides learning rates only, which are post-processing: the rate, the norm and the
noise of every step were fixed before the first. So the steps compose as if nothing had been chosen.

Alternatives, for n = 60,000 and 1,500 at ε = 3 with five candidates. A search that costs 0.3·ε by
itself raises the noise of the rest by a factor of 1.02 and 1.05, since costs add up like squares.
The best of a random number of full runs (`dither.accounting.selection`), five on average, needs
noise 1.26 and 1.59 times as large. Trials and scores on disjoint records would cost their maximum
instead of their sum, but with a quarter of the records for scores their noise would be four times
as large; a model whose training costs a fraction of ε fits its own records no better than others.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dither import validate
from dither.accounting.calibration import calibrate
from dither.planning.fixed_plan import Plan
from dither.planning.reactive_plan import ReactivePlan
from dither.planning.resuming import with_spent
from dither.types import Budget, FloatArray, Search

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
MOST_FACTORS = 5
MOST_SHARE = 0.5
TRIAL_COMPUTE = 0.25
"""Record-gradients of all trials together, as a share of those of the rest."""

_FEWEST_STEPS = 5
TRIALS = (
    f"trials at {', '.join(f'{factor:.3g}' for factor in FACTORS)} times the learning rate, "
    f"{TRIAL_COMPUTE:.0%} more record-gradients"
)


def with_search(
    plan: Plan | ReactivePlan,
    *,
    share: float,
    trial_rate: Callable[[FloatArray, FloatArray], float],
    factors: tuple[float, ...] = FACTORS,
) -> Plan:
    """Return a plan that first spends a share of ε on choosing the learning rate.

    Guarantees: the new plan's ``bound.epsilon`` is at most that of the old one, checked by the
    accountant after the search for its noise.

    Args:
        plan: the plan of the run without a search.
        share: what the search costs by itself, as a share of the plan's ε; above 0, at most 0.5.
            The rest gives up less than that, since costs add up like squares.
        trial_rate: from the noise multipliers of a trial and of the rest to the learning rate of
            a trial, relative to that of the rest: what suits a run as short and as noisy. It is
            multiplied by the trial's factor.
        factors: of the learning rate, the candidates; 1 and up to four others.

    Example:
        >>> import dither
        >>> plain = dither.plan(
        ...     epsilon=3.0, delta=1e-5, dataset_size=10_000, batch_size=500, steps=100)
        >>> tuned = with_search(plain, share=0.3, trial_rate=lambda trial, rest: 1.0)
        >>> tuned.search.steps, tuned.steps, tuned.bound.epsilon <= 3.0
        (45, 145, True)
        >>> round(float(tuned.noise_multipliers[-1] / plain.noise_multipliers[-1]), 2)
        1.02
    """
    share = check_share(share)
    if not isinstance(plan, Plan):
        raise validate.InvalidValueError(
            f"tune must be None for step sizes that react to releases, got {share!r}"
        )
    if not (1.0 in factors and len({*factors}) == len(factors) <= MOST_FACTORS):
        raise validate.InvalidValueError(
            f"factors must be 1 and at most {MOST_FACTORS - 1} others, got {factors!r}"
        )
    search = _search_of(plan, tuple(map(float, validate.positives(factors=factors))))
    budget = Budget(
        share * plan.bound.epsilon,
        plan.delta,
        plan.charge_rate,
        plan.accountant,
        plan.charge_sampling,
    )
    charges = search.steps // plan.bands
    made = with_spent(plan, np.full(charges, calibrate(np.ones(charges), budget)))
    if made is None:
        raise validate.InvalidValueError(
            f"tune must leave enough of ε = {plan.bound.epsilon:g} for the run, got {share!r}"
        )
    z = made.noise_multipliers
    relative = trial_rate(z[: search.trial_steps], z[search.steps :])
    trial = relative * _shortened(plan.stepsizes, search.trial_steps)
    scoring = np.ones(search.score_steps)  # which take no step
    etas = np.concatenate([*(factor * trial for factor in factors), scoring, plan.stepsizes])
    return replace(made, stepsizes=etas, search=search)


def check_no_search(plan: Plan | ReactivePlan) -> None:
    """Raise if a plan begins with a search, whose steps only `dither.train` takes."""
    if isinstance(plan, Plan) and plan.search is not None:
        raise validate.InvalidValueError(
            "plan must have no search (tune=None), got one that begins with a search: only "
            "dither.train takes its steps"
        )


def check_share(tune: float) -> float:
    """Return the share of ε that a search may cost, if it is in (0, 0.5]."""
    share = validate.positive(tune=tune)
    if share > MOST_SHARE:
        raise validate.InvalidValueError(f"tune must be at most {MOST_SHARE}, got {share!r}")
    return share


def _search_of(plan: Plan, factors: tuple[float, ...]) -> Search:
    """Return the search for a plan: a quarter of its compute for trials, one pass for scores."""
    k = len(factors)
    trial_steps = max(_FEWEST_STEPS, math.ceil(TRIAL_COMPUTE * plan.steps / k))
    score_steps = min(math.ceil(plan.dataset_size / plan.batch_size), k * trial_steps)
    score_steps += -(k * trial_steps + score_steps) % plan.bands  # a search has whole cycles
    return Search(factors, trial_steps, score_steps)


def _shortened(stepsizes: FloatArray, steps: int) -> FloatArray:
    """Return step sizes that fall as the given ones do, in fewer steps."""
    places = np.linspace(0.0, stepsizes.size - 1.0, steps)
    return np.interp(places, np.arange(stepsizes.size), stepsizes)
