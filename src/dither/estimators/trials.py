"""The trials of a private search: what one may spend, which settings it takes, how it is scored."""

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
    """What a search comes to.

    Attributes:
        epsilon: what every trial's own plan is made for.
        score_noise: standard deviation of the noise on a sum of scores from 0 to 1.
        total: ε of the whole search.
        plans: what was accounted, in the order of the settings.
    """

    epsilon: float
    score_noise: float
    total: float
    plans: tuple[Plan | ReactivePlan, ...] = ()


def budget_of(
    plans: Callable[[float], Sequence[Plan | ReactivePlan]],
    *,
    epsilon: float,
    delta: float,
    trials: TrialCount,
) -> TrialBudget:
    """Return the largest budget of a trial for which the whole search costs at most ε.

    A record is either trained on or scored on, so that a trial costs the larger of the two, and
    the settings of a trial are random, so that it costs no more than its dearest settings. The
    noise of the score is what makes it as dear as the training.

    Args:
        plans: the plans of all settings that a trial may take, for its budget.
        epsilon: ε of the search.
        delta: δ of the search.
        trials: the distribution of the number of trials.
    """

    def searched(each: float) -> TrialBudget:
        made = tuple(plans(each))
        D = np.max([_divergences(plan) for plan in made], axis=0)
        noise = math.sqrt(float(np.max(ORDERS / D)) / 2.0)
        both = np.maximum(D, ORDERS / (2.0 * noise**2))
        total = renyi_epsilon(selection_divergences(both, ORDERS, trials), ORDERS, delta)
        return TrialBudget(each, noise, total, made)

    low, high = searched(epsilon / 8.0), searched(epsilon)
    while low.total > epsilon:
        if low.epsilon < 1e-3 * epsilon:
            raise InvalidValueError(
                f"epsilon must be more than {epsilon:g} for about {trials.mean:g} trials at "
                f"delta = {delta:g}: take fewer trials, or more budget"
            )
        low, high = searched(low.epsilon / 8.0), low
    if high.total <= epsilon:
        return high
    for _ in range(_EVALUATIONS):
        if low.total >= (1.0 - _TOLERANCE) * epsilon or high.epsilon <= 1.001 * low.epsilon:
            break
        # Where the cost, a power of the budget from here to there, would meet the target.
        power = math.log(high.total / low.total) / math.log(high.epsilon / low.epsilon)
        step = (math.log(epsilon * (1.0 - 0.3 * _TOLERANCE) / low.total)) / power
        limit = math.log(high.epsilon / low.epsilon)
        middle = searched(low.epsilon * math.exp(min(max(step, 0.05 * limit), 0.95 * limit)))
        low, high = (middle, high) if middle.total <= epsilon else (low, middle)
    return low


def _divergences(plan: Plan | ReactivePlan) -> FloatArray:
    if not isinstance(plan, Plan) or plan.bound.adjacency != "add-remove":
        raise InvalidValueError(
            "stepsizes must be fixed in advance for a search, got a rule that reacts"
        )
    return renyi_divergences(plan.noise_multipliers, sample_rate=plan.sample_rate)


def drawn_count(trials: TrialCount, stream: Stream) -> int:
    """Return a number of trials, which nobody may learn."""
    chance, below = float(stream.words(1)[0]) / 2.0**64, 0.0
    for number, probability in enumerate(trials.probabilities(), start=1):
        below += probability
        if chance < below or (probability < 1e-30 and number > trials.mean):
            return number
    raise AssertionError  # the probabilities do not end


def noisy_score(scores: NDArray[Any], noise: float, expected: int, stream: Stream) -> float:
    """Return the sum of scores from 0 to 1, one per record, with noise, over their expected number.

    Args:
        scores: one per record.
        noise: standard deviation on the sum.
        expected: the public number of records to divide by.
        stream: where the random bits come from.
    """
    within = np.nan_to_num(np.asarray(scores, np.float64), nan=0.0).clip(0.0, 1.0)
    total = ClippedSum({"score": torch.tensor([float(within.sum())]).double()}, torch.zeros(0))
    released = release(
        total, clip_norm=1.0, noise_multiplier=noise, batch_size=expected, stream=stream
    )
    return float(released.gradients["score"][0])
