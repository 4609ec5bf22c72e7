"""Audits of plans that protect users: each canary is a user with several rows."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.planted.bug import Bug
from tests.planted.user_bugs import AUDITED

import dither
from dither import Plan
from dither.audit import audit
from dither.audit.attacks import attack_plan, draw_included
from dither.schedules import AdaGradNorm

ROWS = pytest.mark.parametrize("rows", [1, 3, 30])
SIZES: dict[str, Any] = {"dataset_size": 100, "batch_size": 20}
SMALL: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "steps": 10, **SIZES}


@cache
def small() -> Plan:
    made: Plan = dither.plan(**SMALL)
    return made


def none_is_refuted(rows: int, repetitions: int, trials: int) -> None:
    """At most 8 rows of a canary's 30 take part in a step."""
    plan = small().for_users(8)
    for seed in range(repetitions):
        found = audit(plan, trials=trials, canary_rows=rows, confidence=1.0 - 5e-4, seed=seed)
        assert found.lower <= plan.bound.epsilon, found
        assert not found.is_violated, found


@ROWS
def test_a_correct_library_is_not_refuted(rows: int) -> None:
    none_is_refuted(rows, 1, 400)


@pytest.mark.evidence
@ROWS
def test_a_hundred_audits_of_a_correct_library(rows: int) -> None:
    none_is_refuted(rows, 100, 4_000)


@pytest.mark.parametrize("settings", [{}, {"clipping": "automatic"}, {"correlation": [1.0, 0.5]}])
def test_a_user_with_equal_rows_is_a_record(settings: dict[str, Any]) -> None:
    """To the last bits: the same users are drawn, and the mean of equal gradients is clipped."""
    plan = Plan.from_noise_multipliers([2.0] * 6, delta=1e-5, **SIZES, **settings).for_users(3)
    included = draw_included(500, 1)
    one, *others = (attack_plan(plan, included, rows=rows, seed=1) for rows in (1, 2, 3, 10))
    assert np.std(one.white_box) > 0.1
    for each in others:
        np.testing.assert_allclose(each.white_box, one.white_box, atol=1e-4)
        np.testing.assert_allclose(each.final, one.final, atol=1e-4)


@pytest.mark.parametrize("attack", ["white-box", "final-model", "one-run"])
def test_every_attack_has_users_as_canaries(attack: str) -> None:
    plan = dither.plan(**{**SMALL, "epsilon": 8.0}).for_users(4)
    found = audit(plan, attack=attack, trials=500, canary_rows=5, seed=2)
    assert 0.5 < found.lower < 8.0
    assert found.canary_rows == 5
    assert "at δ = 1e-05 per user is claimed" in found.verdict


def test_users_are_replaced_under_fixed_sampling() -> None:
    size = {**SMALL, "epsilon": 3.0, "dataset_size": 300}
    plan = dither.plan(**size, sampling="fixed").for_users(4)
    found = audit(plan, trials=3_000, seed=2)
    assert 0.1 < found.lower < 3.0
    assert not found.is_violated


def test_users_are_attacked_where_noise_reacts() -> None:
    for noise, rows in (("uniform", 4), ("filter", None)):
        rule = AdaGradNorm(1e-3, 1e-5)
        plan = dither.plan(**SMALL, stepsizes=rule, noise=noise).for_users(4)
        found = audit(plan, trials=400, seed=2)
        assert not found.is_violated
        assert found.canary_rows == rows
    with pytest.raises(ValueError, match="whose noise follows releases"):
        audit(plan, trials=400, canary_rows=4)


def test_a_canary_has_as_many_rows_as_take_part_unless_it_is_said() -> None:
    plan = Plan.from_noise_multipliers([1.0], delta=1e-5, dataset_size=10, batch_size=5)
    assert audit(plan, trials=200).canary_rows is None
    assert audit(plan.for_users(6), trials=200).canary_rows == 6
    with pytest.raises(ValueError, match="canary_rows must be left out for a plan that protects r"):
        audit(plan, trials=200, canary_rows=3)
    with pytest.raises(ValueError, match="canary_rows must be an integer of at least 1, got 0"):
        audit(plan.for_users(6), trials=200, canary_rows=0)


BUGS = pytest.mark.parametrize("bug", AUDITED, ids=lambda bug: bug.name)


@pytest.mark.evidence
@BUGS
def test_the_audit_finds_bugs_with_any_seed(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    assert bug.plan is not None
    for seed in range(50):
        assert audit(bug.plan(), trials=8_000, confidence=0.999, seed=seed).is_violated
