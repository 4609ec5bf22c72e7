"""An audit: attack, count the right guesses, hold them against the claim."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm

from dither import validate
from dither.accounting.gaussian import gaussian_epsilon
from dither.audit.bounds import at_least, at_most, independent_bound, one_run_bound
from dither.audit.evidence import Coins, Scores, fair_coins
from dither.audit.mechanism import Directions, attacked
from dither.audit.reactive import attacked_courses
from dither.audit.result import AuditResult, Breach
from dither.audit.thresholds import Thresholds, rehearsed, simulated
from dither.audit.tradeoff import Allowed, allowed_by
from dither.planning import Plan, ReactivePlan
from dither.randomness import Source
from dither.types import FloatArray, PrivacyBound

ATTACKS = ("white-box", "final-model", "one-run")
_TRIALS = {"white-box": 50_000, "final-model": 50_000, "one-run": 2_000}
_FEWEST = 100
_CURVE_SHARE = 0.2
"""The share of the error probability that goes to the test of the trade-off."""

_REHEARSAL = -7_340_033
_SIDES = 0.5 ** np.arange(1, 8)
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

    Canaries, put in by a fair coin each, go through real private training along the plan. The
    attacker knows everything but the coins, the batches and the noise.

    - ``white-box`` sees every release, and guesses by the likelihood ratio, as well as can be.
    - ``final-model`` sees only where the parameters end.
    - ``one-run`` sees every release of one run in which the canaries point in random directions and
      disturb each other; the bound is the one for dependent guesses.

    Guarantees: if the claim holds, the result ``is_violated`` with probability at most
    1 − ``confidence``; ``lower`` and ``breach`` are bounds, not estimates.

    Args:
        plan: the plan; it must add noise.
        attack: one of `ATTACKS`.
        confidence: in (0, 1).
        trials: the number of canaries; None is 50,000, and 2,000 for ``one-run``.
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

    Half, a quarter, … of the canaries are guessed, those with the highest scores as "in" and those
    with the lowest as "out"; the bound is corrected for the number of these choices.

    Args:
        scores: one a canary; the higher, the more it looks as if it was in the data. Losses before
            training less those after it are such scores.
        included: the canaries' coins. What heads and tails do must be neighbours of each other in
            the claim's relation: left out, where it is add-remove.
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
    coins = np.asarray(included)
    score = np.asarray(scores, np.float64)
    if coins.dtype != np.bool_ or coins.ndim != 1 or score.shape != coins.shape:
        raise validate.InvalidValueError(
            "included must be true or false for each of the scores, got "
            f"{coins.dtype} of shape {coins.shape} for scores of shape {score.shape}"
        )
    if coins.size < 2 or np.isnan(score).any():
        raise validate.InvalidValueError(
            f"scores must be at least two numbers, got {score.size} with "
            f"{int(np.isnan(score).sum())} that are none"
        )
    level = (1.0 - confidence) / _SIDES.size
    order, best = np.argsort(score, kind="stable"), (-1.0, 0, 0)
    for share in _SIDES:
        k = max(int(coins.size * share), 1)
        right = int(coins[order[-k:]].sum() + (~coins[order[:k]]).sum())
        found = one_run_bound(
            right, 2 * k, canaries=coins.size, delta=claimed.delta, confidence=1.0 - level
        )
        best = max(best, (found, right, 2 * k))
    lower, right, guesses = best
    allowed = None
    if math.isfinite(claimed.epsilon):
        allowed = Allowed((claimed.epsilon,), (claimed.delta,))
    return AuditResult(
        claimed, "one-run", lower, confidence, coins.size, guesses, right, None, None, allowed,
        _roc(score, coins),
    )  # fmt: skip


def _count(
    plan: Plan | ReactivePlan, attack: str, trials: int | None, rows: FloatArray | None
) -> int:
    """Return how many canaries there are to be."""
    most = plan.dataset_size if attack == "one-run" and plan.sampling == "fixed" else math.inf
    usual = int(min(_TRIALS[attack], most)) if rows is None else len(rows)
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
    lower_level = (1.0 - _CURVE_SHARE) * level
    thresholds = rehearsed(
        *_rehearsal(plan, attack, trials, seed, progress),
        trials=trials,
        confidence=1.0 - lower_level,
    )
    scores = _scores(plan, trials, seed, progress)
    score, coins = _of(scores, attack), scores.included
    guessed_in, guessed_out = score >= thresholds.guess_in, score <= thresholds.guess_out
    right = int((guessed_in & coins).sum() + (guessed_out & ~coins).sum())
    guesses = int((guessed_in | guessed_out).sum())
    if scores.is_independent:
        lower = independent_bound(
            right, guesses, trials=trials, delta=claimed.delta, confidence=1.0 - lower_level
        )
    else:
        lower = one_run_bound(
            right, guesses, canaries=trials, delta=claimed.delta, confidence=1.0 - lower_level
        )
    allowed, curve_level = allowed_by(plan), _CURVE_SHARE * level
    breach, gaussian = None, None
    if scores.is_independent:
        points = _points(score, coins, thresholds, curve_level)
        breach = _breach(points, allowed)
        if isinstance(plan, Plan) and plan.sample_rate == 1.0:
            gaussian = _gaussian(points, claimed.delta)
    return AuditResult(
        claimed, attack, lower, confidence, trials, guesses, right, gaussian, breach, allowed,
        _roc(score, coins),
    )  # fmt: skip


def _rehearsal(
    plan: Plan | ReactivePlan, attack: str, trials: int, seed: int | None, progress: bool
) -> tuple[FloatArray, Coins]:
    if isinstance(plan, Plan):
        return simulated(plan, attack, trials)
    before = None if seed is None else seed + _REHEARSAL
    scores = _scores(plan, trials, before, progress)
    return _of(scores, attack), scores.included


def _scores(plan: Plan | ReactivePlan, trials: int, seed: int | None, progress: bool) -> Scores:
    coins = fair_coins(trials, seed)
    if isinstance(plan, ReactivePlan):
        return attacked_courses(plan, coins, seed=seed, progress=progress)
    return attacked(plan, coins, seed=seed, progress=progress)


def _of(scores: Scores, attack: str) -> FloatArray:
    return scores.final if attack == "final-model" else scores.white_box


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
    rows = np.asarray(directions, np.float64)
    if rows.ndim != 2:
        raise validate.InvalidValueError(
            f"directions must be a matrix with one row a canary, got shape {rows.shape}"
        )
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not (np.isfinite(rows).all() and (lengths > 0.0).all()):
        raise validate.InvalidValueError("directions must be finite, and no row zero")
    return np.asarray(rows / lengths)


def _points(
    score: FloatArray, coins: Coins, thresholds: Thresholds, level: float
) -> list[tuple[float, float]]:
    """Return (false positives at most, true positives at least), all of them true together."""
    each = 1.0 - level / (2.0 * thresholds.curve.size)
    inside, outside = score[coins], score[~coins]
    return [
        (
            at_most(int((outside >= s).sum()), outside.size, each),
            at_least(int((inside >= s).sum()), inside.size, each),
        )
        for s in thresholds.curve
    ]


def _breach(points: list[tuple[float, float]], allowed: Allowed | None) -> Breach | None:
    """Return the point that lies the furthest above what is allowed, or None."""
    if allowed is None:
        return None
    found = [Breach(fpr, tpr, float(allowed.true_positives(fpr))) for fpr, tpr in points]
    worst = max(found, key=lambda point: point.true_positives - point.allowed)
    return worst if worst.true_positives > worst.allowed else None


def _gaussian(points: list[tuple[float, float]], delta: float) -> float:
    """Return ε of the least distance of two Gaussians that reaches all points."""
    mu = max(float(norm.ppf(tpr) - norm.ppf(fpr)) for fpr, tpr in points)
    return gaussian_epsilon(mu, delta).lower if mu > 0.0 else 0.0


def _roc(score: FloatArray, coins: Coins) -> FloatArray:
    """Return the attack's false and true positive rates, in some two hundred points."""
    shares = np.concatenate([np.linspace(0.0, 1.0, 201), 1.0 - 0.5 ** np.arange(8, 14)])
    levels = np.unique(np.quantile(score, shares))[::-1]
    inside, outside = np.sort(score[coins]), np.sort(score[~coins])
    rates = [1.0 - np.searchsorted(each, levels) / max(each.size, 1) for each in (outside, inside)]
    return np.concatenate([np.zeros((2, 1)), np.array(rates), np.ones((2, 1))], axis=1)
