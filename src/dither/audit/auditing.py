"""An audit: attack, count the right guesses, hold them against the claim."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from dither import validate
from dither.audit.evidence import Coins, Scores, coins_of, fair_coins, numbers
from dither.audit.guessing import (
    breach_of,
    by_rank,
    by_thresholds,
    gaussian_lower,
    reached,
    roc_of,
)
from dither.audit.mechanism import Directions, attacked
from dither.audit.reactive import attack_reactive_plan
from dither.audit.result import ATTACKERS, AuditResult
from dither.audit.thresholds import rehearsed, simulated
from dither.audit.tradeoff import Allowed, allowed_by
from dither.planning import Plan, ReactivePlan
from dither.randomness import Source
from dither.types import FloatArray, PrivacyBound

ATTACKS = tuple(ATTACKERS)
_TRIALS = {"white-box": 50_000, "final-model": 50_000, "one-run": 2_000}
_FEWEST = 100
_CURVE_SHARE = 0.2
"""The share of the error probability that goes to the test of the trade-off."""

_REHEARSAL = -7_340_033
_RUNS = 100
"""Under fixed sampling a run has as many canaries as records: no more runs than this by default."""

_WIDTH = 5
"""Random directions lie in a space of so many dimensions a canary."""


def audit(
    plan: Plan | ReactivePlan,
    *,
    attack: str = "white-box",
    confidence: float = 0.95,
    trials: int | None = None,
    directions: ArrayLike | None = None,
    seed: int | None = None,
    progress: bool = False,
) -> AuditResult:
    """Attack the mechanism of a plan and return what that proves about its claim.

    Canaries, put in by a fair coin each, go through real private training along the plan (those of
    noise that follows a filter through its state, sampler and release alone). The attacker knows
    everything but the coins, the batches and the noise.

    - ``white-box`` sees every release, and guesses by the likelihood ratio.
    - ``final-model`` sees only where the parameters end.
    - ``one-run`` sees every release of one run in which the canaries point in random directions and
      disturb each other; the bound is the one for dependent guesses.

    Guarantees: if the claim holds, the result ``is_violated`` with probability at most
    1 − ``confidence``; ``lower`` and ``breach`` are bounds, not estimates.

    Args:
        plan: the plan; it must add noise.
        attack: one of `ATTACKS`.
        confidence: in (0, 1).
        trials: the number of canaries, at least 100; None is 50,000, and 2,000 for ``one-run``
            (under fixed sampling at most 100, or one, for each of the plan's records).
        directions: for ``one-run``: one row a canary, random ones if None; rows that look like data
            make canaries that do.
        seed: makes the audit repeatable.
        progress: whether a terminal shows a bar.

    Example:
        >>> import dither
        >>> plan = dither.plan(epsilon=3.0, delta=1e-5, dataset_size=100, batch_size=100, steps=5)
        >>> found = audit(plan, trials=4000, seed=1)
        >>> found.is_violated, 1.0 < found.lower < 3.0
        (False, True)
    """
    if not isinstance(plan, Plan | ReactivePlan):
        raise validate.InvalidTypeError(
            f"plan must be one that dither.plan has made, got {type(plan).__name__}"
        )
    validate.choice(ATTACKS, attack=attack)
    confidence = validate.probability(confidence=confidence)
    if isinstance(plan, Plan) and not plan.noise_multipliers.any():
        raise validate.InvalidValueError(
            "plan must add noise: without it every canary that is drawn is seen"
        )
    Source(seed)  # refuses what is no whole number
    if directions is not None and attack != "one-run":
        raise validate.InvalidValueError(f"directions are for attack 'one-run', got {attack!r}")
    rows = None if directions is None else _unit_rows(directions)
    count = _count(plan, attack, trials, rows)
    if attack == "one-run":
        return _audit_one_run(plan, rows, count, confidence, seed, progress)
    return _audit_trials(plan, attack, count, confidence, seed, progress)


def one_run(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    claimed: PrivacyBound,
    confidence: float = 0.95,
) -> AuditResult:
    """Return what the scores of canaries in one real run prove about its claim.

    All, half, a quarter, … of the canaries are guessed: those with the highest scores as "in", and
    as many with the lowest as "out". The bound is corrected for the number of these choices.

    Args:
        scores: one a canary; the higher, the more it looks as if it was in the data. Losses before
            training less those after it are such scores.
        included: the canaries' coins. What heads and tails do must be neighbours of each other in
            the claim's adjacency: left out, where it is add-remove.
        claimed: the claim of the run.
        confidence: in (0, 1).

    Example:
        >>> claimed = PrivacyBound(1.0, 1e-5, "pld", "poisson", "add-remove")
        >>> coins = np.arange(1000) % 2 == 0
        >>> print(one_run(coins + 0.0, coins, claimed=claimed))
        VIOLATED: ε ≤ 1 at δ = 1e-05 is claimed, but an attacker who sees one run proves
        ε ≥ 5.22 with 95 % confidence.
    """
    confidence = validate.probability(confidence=confidence)
    validate.instance(PrivacyBound, claimed=claimed)
    score, coins = numbers(scores=scores), coins_of(included)
    if score.ndim != 1 or score.shape != coins.shape or score.size < 2:
        raise validate.InvalidValueError(
            "scores must be one for each of the coins in included, and at least two, got shape "
            f"{score.shape} for {coins.shape}"
        )
    ranks = np.asarray(rankdata(score), np.float64)
    guesses = by_rank(ranks, coins, delta=claimed.delta, confidence=confidence)
    allowed = None
    if math.isfinite(claimed.epsilon):
        allowed = Allowed((claimed.epsilon,), (claimed.delta,))
    return AuditResult(
        claimed=claimed,
        attack="one-run",
        lower=guesses.lower,
        confidence=confidence,
        trials=coins.size,
        guesses=guesses.made,
        right=guesses.right,
        allowed=allowed,
        roc=roc_of(ranks, coins),
    )


def _count(
    plan: Plan | ReactivePlan, attack: str, trials: int | None, rows: FloatArray | None
) -> int:
    """Return how many canaries there are to be."""
    most, usual = math.inf, _TRIALS[attack]
    if plan.sampling == "fixed" and attack == "one-run":
        most = plan.dataset_size
        usual = min(usual, plan.dataset_size)
    elif plan.sampling == "fixed":
        usual = max(min(usual, _RUNS * plan.dataset_size), _FEWEST)
    usual = usual if rows is None else len(rows)
    count = validate.count(trials=usual if trials is None else trials)
    if rows is not None and count != len(rows):
        raise validate.InvalidValueError(
            f"trials must be the number of directions, {len(rows)}, got {count}"
        )
    if count < _FEWEST:
        raise validate.InvalidValueError(f"trials must be at least {_FEWEST}, got {count}")
    if count > most:
        raise validate.InvalidValueError(
            f"trials must be at most the plan's dataset_size, {most}, in one run under fixed "
            f"sampling, got {count}"
        )
    return count


def _audit_trials(
    plan: Plan | ReactivePlan,
    attack: str,
    trials: int,
    confidence: float,
    seed: int | None,
    progress: bool,
) -> AuditResult:
    level, claimed = 1.0 - confidence, plan.bound
    scores = _scores(plan, trials, seed, progress)
    score, coins = scores.of(attack), scores.included
    breach, gaussian, allowed = None, None, allowed_by(plan)
    if attack not in scores.independent:
        guesses = by_rank(score, coins, delta=claimed.delta, confidence=confidence)
    else:
        certain = 1.0 - (1.0 - _CURVE_SHARE) * level
        rehearsal = _rehearsal(plan, attack, trials, seed, progress)
        thresholds = rehearsed(*rehearsal, trials=trials, confidence=certain)
        guesses = by_thresholds(score, coins, thresholds, delta=claimed.delta, confidence=certain)
        points = reached(score, coins, thresholds, confidence=1.0 - _CURVE_SHARE * level)
        breach = breach_of(allowed, points)
        if isinstance(plan, Plan) and plan.sample_rate == 1.0:
            gaussian = gaussian_lower(points, claimed.delta)
    return AuditResult(
        claimed=claimed,
        attack=attack,
        lower=guesses.lower,
        confidence=confidence,
        trials=trials,
        guesses=guesses.made,
        right=guesses.right,
        gaussian=gaussian,
        breach=breach,
        allowed=allowed,
        roc=roc_of(score, coins),
    )


def _rehearsal(
    plan: Plan | ReactivePlan, attack: str, trials: int, seed: int | None, progress: bool
) -> tuple[FloatArray, Coins]:
    fixed = plan if isinstance(plan, Plan) else plan.noises
    if fixed is not None:
        return simulated(fixed, attack, trials)
    before = None if seed is None else seed + _REHEARSAL
    scores = _scores(plan, trials, before, progress)
    return scores.of(attack), scores.included


def _scores(plan: Plan | ReactivePlan, trials: int, seed: int | None, progress: bool) -> Scores:
    coins = fair_coins(trials, seed)
    if isinstance(plan, ReactivePlan) and plan.noises is None:
        return attack_reactive_plan(plan, coins, seed=seed, progress=progress)
    return attacked(plan, coins, seed=seed, progress=progress)


def _audit_one_run(
    plan: Plan | ReactivePlan,
    rows: FloatArray | None,
    canaries: int,
    confidence: float,
    seed: int | None,
    progress: bool,
) -> AuditResult:
    if rows is None:
        key = int(Source(seed).stream("directions", 0).words(1)[0])
        drawn = np.random.default_rng(key).standard_normal((canaries, _WIDTH * canaries))
        rows = _unit_rows(drawn)
    coins, directions = fair_coins(canaries, seed), Directions(canaries, rows)
    scores = attacked(plan, coins, directions=directions, seed=seed, progress=progress)
    return one_run(scores.white_box, coins, claimed=plan.bound, confidence=confidence)


def _unit_rows(directions: ArrayLike) -> FloatArray:
    rows = numbers(directions=directions)
    if rows.ndim != 2:
        raise validate.InvalidValueError(
            f"directions must be a matrix with one row a canary, got shape {rows.shape}"
        )
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    if not (np.isfinite(rows).all() and (largest > 0.0).all()):
        raise validate.InvalidValueError("directions must be finite, and no row zero")
    rows = rows / largest
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))
