"""The trials of a private search: their budget, how many there are, and their noisy scores."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from dither.accounting.rdp import ORDERS, renyi_divergences, renyi_epsilon
from dither.accounting.selection import TrialCount, selection_divergences
from dither.clipping import ClippedSum
from dither.planning import Plan, ReactivePlan
from dither.randomness import Stream
from dither.release import release
from dither.types import FloatArray
from dither.validate import InvalidValueError

_TOLERANCE = 0.01
_EVALUATIONS = 30


@final
@dataclass(frozen=True)
class TrialBudget:
    """The budget of a trial, and the cost of the search.

    Attributes:
        epsilon: ε of the plan of a single trial.
        score_noise: standard deviation of the noise on a sum of scores from 0 to 1.
        total: ε of the complete search.
        plans: the plans that were accounted, in the order of the settings.
    """

    epsilon: float
    score_noise: float
    total: float
    plans: tuple[Plan | ReactivePlan, ...] = ()


def trial_budget(
    plans: Callable[[float], Sequence[Plan | ReactivePlan]],
    *,
    epsilon: float,
    delta: float,
    trials: TrialCount,
) -> TrialBudget:
    """Return the largest budget of a trial for which the complete search costs at most ε.

    A record, or a user, is either trained on or scored on, so that a trial costs the larger of the
    two, and the settings of a trial are random, so that it costs no more than its most expensive
    settings. The noise of the score is chosen so that scoring costs as much as training.

    Args:
        plans: maps the budget of a trial to the plans of all settings.
        epsilon: ε of the search.
        delta: δ of the search.
        trials: the distribution of the number of trials.
    """

    def budget_at(trial_epsilon: float) -> TrialBudget:
        candidates = tuple(plans(trial_epsilon))
        D = np.max([_divergences(plan) for plan in candidates], axis=0)
        noise = math.sqrt(float(np.max(ORDERS / D)) / 2.0)
        both = np.maximum(D, ORDERS / (2.0 * noise**2))
        total = renyi_epsilon(selection_divergences(both, ORDERS, trials), ORDERS, delta)
        return TrialBudget(trial_epsilon, noise, total, candidates)

    low, high = budget_at(epsilon / 8.0), budget_at(epsilon)
    while low.total > epsilon:
        if low.epsilon < 1e-3 * epsilon:
            raise InvalidValueError(
                f"epsilon must be more than {epsilon:g} for about {trials.mean:g} trials at "
                f"delta = {delta:g}: take fewer trials, or more budget"
            )
        low, high = budget_at(low.epsilon / 8.0), low
    if high.total <= epsilon:
        return high
    for _ in range(_EVALUATIONS):
        if low.total >= (1.0 - _TOLERANCE) * epsilon or high.epsilon <= 1.001 * low.epsilon:
            break
        # Between both the cost is about a power of the budget: where that meets the target.
        power = math.log(high.total / low.total) / math.log(high.epsilon / low.epsilon)
        step = (math.log(epsilon * (1.0 - 0.3 * _TOLERANCE) / low.total)) / power
        limit = math.log(high.epsilon / low.epsilon)
        middle = budget_at(low.epsilon * math.exp(min(max(step, 0.05 * limit), 0.95 * limit)))
        low, high = (middle, high) if middle.total <= epsilon else (low, middle)
    return low


def _divergences(plan: Plan | ReactivePlan) -> FloatArray:
    if not isinstance(plan, Plan) or plan.bound.adjacency != "add-remove":
        raise InvalidValueError(
            "stepsizes must be fixed in advance for a search, got a reactive schedule"
        )
    return renyi_divergences(plan.charges, sample_rate=plan.charge_rate)


def draw_trial_count(trials: TrialCount, stream: Stream) -> int:
    """Draw the number of trials, which must stay secret."""
    uniform, cumulative = float(stream.words(1)[0]) / 2.0**64, 0.0
    for number, probability in enumerate(trials.probabilities(), start=1):
        cumulative += probability
        if uniform < cumulative or (probability < 1e-30 and number > trials.mean):
            return number
    raise AssertionError  # the probabilities do not end


def noisy_score(
    scores: NDArray[Any],
    owners: NDArray[np.int64],
    noise: float,
    expected: int,
    stream: Stream,
) -> float:
    """Return the sum of scores from 0 to 1 with noise, divided by their expected number.

    Args:
        scores: one per record.
        owners: the number of each one's user: the score of a user is the mean of theirs. Where
            records are protected, each has a number of its own.
        noise: standard deviation on the sum.
        expected: the public number of records, or of users, to divide by.
        stream: the source of random bits.
    """
    each = np.nan_to_num(np.asarray(scores, np.float64), nan=0.0).clip(0.0, 1.0)
    _, users, counts = np.unique(owners, return_inverse=True, return_counts=True)
    clipped = each / counts[users]
    total = ClippedSum({"score": torch.tensor([float(clipped.sum())]).double()}, torch.zeros(0))
    released = release(
        total, clip_norm=1.0, noise_multiplier=noise, batch_size=expected, stream=stream
    )
    return float(released.gradients["score"][0])
