"""Audit a plan or a run: attack it, count the right guesses, compare with the claim."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from dither import validate
from dither.audit.attacks import (
    Directions,
    Included,
    Scores,
    attack_plan,
    attack_reactive_plan,
    check_included,
    draw_included,
    numbers,
)
from dither.audit.guesses import (
    choose_thresholds,
    find_breach,
    gaussian_bound,
    guess_by_rank,
    guess_by_thresholds,
    reached_points,
    roc_curve,
    simulate,
)
from dither.audit.result import ATTACKERS, Allowed, AuditResult, allowed_by
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
"""Runs at most, by default, under fixed sampling, where a run has one canary per record."""

_WIDTH = 5
"""Dimensions per canary of the space of random directions."""


def audit(
    plan: Plan | ReactivePlan,
    *,
    attack: str = "white-box",
    confidence: float = 0.95,
    trials: int | None = None,
    canary_rows: int | None = None,
    seed: int | None = None,
    progress: bool = False,
) -> AuditResult:
    """Attack the mechanism of a plan and return the lower bound on ε that this proves.

    Canaries, each included independently with probability 1/2, go through real private training
    with the plan (for noise that follows a filter: through its state, sampler and release only).
    The attacker knows everything but the inclusions, the batches and the noise. Where the plan
    protects users, a canary is a user with several rows, which all push in the same direction.

    - ``white-box`` sees every release, and guesses by the likelihood ratio.
    - ``final-model`` sees only the final parameters.
    - ``one-run`` sees every release of one run in which the canaries have random directions and
      interfere; the bound is the one for dependent guesses.

    Guarantees: if the claim holds, the result ``is_violated`` with probability at most
    1 − ``confidence``; ``lower`` and ``breach`` are bounds, not estimates.

    Args:
        plan: the plan; it must add noise.
        attack: one of `ATTACKS`.
        confidence: in (0, 1).
        trials: the number of canaries, at least 100; None is 50,000, and 2,000 for ``one-run``
            (under fixed sampling at most 100, or one, for each of the plan's records).
        canary_rows: how many rows each canary has, if the plan protects users; more than the plan's
            ``rows_per_user`` are drawn from. None is ``rows_per_user``.
        seed: makes the audit reproducible.
        progress: whether progress is shown on standard error.

    Example:
        >>> import dither
        >>> plan = dither.plan(epsilon=3.0, delta=1e-5, dataset_size=100, batch_size=100, steps=5)
        >>> result = audit(plan, trials=4000, seed=1)
        >>> result.is_violated, 1.0 < result.lower < 3.0
        (False, True)
    """
    if not isinstance(plan, Plan | ReactivePlan):
        raise validate.InvalidTypeError(
            f"plan must be a Plan or ReactivePlan, got {type(plan).__name__}"
        )
    validate.choice(ATTACKS, attack=attack)
    confidence = validate.probability(confidence=confidence)
    if isinstance(plan, Plan) and not plan.noise_multipliers.any():
        raise validate.InvalidValueError("plan must add noise, got one without")
    Source(seed)  # checks the seed
    count, rows = _trial_count(plan, attack, trials), _rows(plan, canary_rows)
    attack_ = _Attack(plan, attack, count, rows, seed, progress)
    if attack == "one-run":
        return _audit_one_run(attack_, confidence)
    return _audit_trials(attack_, confidence)


def one_run(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    claimed: PrivacyBound,
    confidence: float = 0.95,
) -> AuditResult:
    """Return the lower bound on ε that the scores of canaries in one real run prove.

    All, half, a quarter, … of the canaries are guessed: those with the highest scores as "in", and
    as many with the lowest as "out". The bound is corrected for the number of these choices.

    Args:
        scores: one per canary; higher means more likely in the data, for example the loss before
            training minus the loss after it.
        included: whether each canary is in the data, independently with probability 1/2. Inclusion
            and exclusion must be adjacent by the claim: left out, for add-remove.
        claimed: the claimed bound of the run.
        confidence: in (0, 1).

    Example:
        >>> claimed = PrivacyBound(1.0, 1e-5, "pld", "poisson", "add-remove")
        >>> included = np.arange(1000) % 2 == 0
        >>> print(one_run(included + 0.0, included, claimed=claimed))
        VIOLATED: ε ≤ 1 at δ = 1e-05 is claimed, but an attacker who sees one run proves
        ε ≥ 5.22 with 95 % confidence.
    """
    confidence = validate.probability(confidence=confidence)
    validate.instance(PrivacyBound, claimed=claimed)
    score, is_in = numbers(scores=scores), check_included(included)
    if score.ndim != 1 or score.shape != is_in.shape or score.size < 2:
        raise validate.InvalidValueError(
            "scores must have the shape of included, and at least two values, got shape "
            f"{score.shape} for {is_in.shape}"
        )
    ranks = np.asarray(rankdata(score), np.float64)
    guesses = guess_by_rank(ranks, is_in, delta=claimed.delta, confidence=confidence)
    allowed = None
    if math.isfinite(claimed.epsilon):
        allowed = Allowed((claimed.epsilon,), (claimed.delta,))
    return AuditResult(
        claimed=claimed,
        attack="one-run",
        lower=guesses.lower,
        confidence=confidence,
        trials=is_in.size,
        guesses=guesses.count,
        right=guesses.right,
        allowed=allowed,
        roc=roc_curve(ranks, is_in),
    )


@dataclass(frozen=True)
class _Attack:
    """What is attacked, by whom and how often."""

    plan: Plan | ReactivePlan
    name: str
    trials: int
    rows: int | None
    seed: int | None
    progress: bool

    def run(self, seed: int | None) -> Scores:
        """Return the scores of independent trials."""
        included = draw_included(self.trials, seed)
        if isinstance(self.plan, ReactivePlan) and self.plan.noises is None:
            return attack_reactive_plan(self.plan, included, seed=seed, progress=self.progress)
        return attack_plan(
            self.plan, included, rows=self.rows or 1, seed=seed, progress=self.progress
        )

    def rehearse(self) -> tuple[FloatArray, Included]:
        """Return scores and inclusions that are independent of those of the attack."""
        fixed = self.plan if isinstance(self.plan, Plan) else self.plan.noises
        if fixed is not None:
            return simulate(fixed, self.name, self.trials)
        scores = self.run(None if self.seed is None else self.seed + _REHEARSAL)
        return scores.of(self.name), scores.included


def _trial_count(plan: Plan | ReactivePlan, attack: str, trials: int | None) -> int:
    """Return the number of canaries."""
    most, default = math.inf, _TRIALS[attack]
    if plan.sampling == "fixed" and attack == "one-run":
        most = plan.dataset_size
        default = min(default, plan.dataset_size)
    elif plan.sampling == "fixed":
        default = max(min(default, _RUNS * plan.dataset_size), _FEWEST)
    count = validate.count(trials=default if trials is None else trials)
    if count < _FEWEST:
        raise validate.InvalidValueError(f"trials must be at least {_FEWEST}, got {count}")
    if count > most:
        raise validate.InvalidValueError(
            f"trials must be at most the plan's dataset_size, {most}, in one run under fixed "
            f"sampling, got {count}"
        )
    return count


def _rows(plan: Plan | ReactivePlan, canary_rows: int | None) -> int | None:
    """Return how many rows a canary has; None where canaries are records, or nothing is trained."""
    is_filtered = isinstance(plan, ReactivePlan) and plan.noises is None
    if canary_rows is None:
        return None if is_filtered else plan.rows_per_user
    if plan.rows_per_user is None or is_filtered:
        raise validate.InvalidValueError(
            "canary_rows must be left out for a plan that protects records, or whose noise follows "
            f"releases, of which the trials have no rows, got {canary_rows!r}"
        )
    return validate.count(canary_rows=canary_rows)


def _audit_trials(attack: _Attack, confidence: float) -> AuditResult:
    plan, level = attack.plan, 1.0 - confidence
    scores = attack.run(attack.seed)
    score, included, delta = scores.of(attack.name), scores.included, plan.bound.delta
    breach, gaussian, allowed = None, None, allowed_by(plan)
    if attack.name not in scores.independent:
        guesses = guess_by_rank(score, included, delta=delta, confidence=confidence)
    else:
        certain = 1.0 - (1.0 - _CURVE_SHARE) * level
        thresholds = choose_thresholds(*attack.rehearse(), trials=attack.trials, confidence=certain)
        guesses = guess_by_thresholds(score, included, thresholds, delta=delta, confidence=certain)
        points = reached_points(score, included, thresholds, confidence=1.0 - _CURVE_SHARE * level)
        breach = find_breach(allowed, points)
        if isinstance(plan, Plan) and plan.sample_rate == 1.0:
            gaussian = gaussian_bound(points, delta)
    return AuditResult(
        claimed=plan.bound,
        attack=attack.name,
        lower=guesses.lower,
        confidence=confidence,
        trials=attack.trials,
        guesses=guesses.count,
        right=guesses.right,
        gaussian=gaussian,
        breach=breach,
        allowed=allowed,
        canary_rows=attack.rows,
        roc=roc_curve(score, included),
    )


def _audit_one_run(attack: _Attack, confidence: float) -> AuditResult:
    canaries, seed = attack.trials, attack.seed
    key = int(Source(seed).stream("directions", 0).words(1)[0])
    vectors = np.random.default_rng(key).standard_normal((canaries, _WIDTH * canaries))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    included = draw_included(canaries, seed)
    scores = attack_plan(
        attack.plan,
        included,
        rows=attack.rows or 1,
        directions=Directions(canaries, vectors),
        seed=seed,
        progress=attack.progress,
    )
    claimed = attack.plan.bound
    found = one_run(scores.white_box, included, claimed=claimed, confidence=confidence)
    return replace(found, canary_rows=attack.rows)
