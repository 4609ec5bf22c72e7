"""States of reactive plans: independent, saved, resumed."""

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.planning.reactive_runs import (
    RULE,
    FakeRelease,
    run,
    some_releases,
)

from dither.accounting import BudgetExceededError
from dither.planning import ReactivePlan


def test_a_run_never_goes_beyond_its_steps(following: ReactivePlan) -> None:
    run_state = following.new_state()
    noises, _ = run(run_state, [FakeRelease(1e6)] * 200)
    assert len(noises) == 60
    assert run_state.noise_multiplier is None
    with pytest.raises(BudgetExceededError, match="there is no next step"):
        run_state.spend()


def test_states_of_one_plan_are_independent(following: ReactivePlan) -> None:
    first, second = following.new_state(), following.new_state()
    run(first, some_releases(7))
    assert (second.steps, first.steps) == (0, 60)
    assert run(second, some_releases(7)) == run(following.new_state(), some_releases(7))


def check_resumed(plan: ReactivePlan, stop: int) -> None:
    releases, run_state = some_releases(8), plan.new_state()
    run(run_state, releases[:stop])
    state = json.loads(json.dumps(run_state.state_dict(), allow_nan=False))
    again = plan.new_state()
    again.load_state_dict(state)
    assert again.steps == stop
    assert again.state_dict() == run_state.state_dict()
    assert again.bound() == run_state.bound()
    assert run(again, releases[stop:]) == run(run_state, releases[stop:])
    assert again.steps == plan.steps
    assert again.noise_multiplier is None


@pytest.mark.parametrize("stop", [0, 1, 4, 6])
def test_a_state_goes_through_json_and_has_the_same_future(fixed: ReactivePlan, stop: int) -> None:
    check_resumed(fixed, stop)


@pytest.mark.parametrize("stop", [0, 1, 25, 60])
def test_a_state_of_noise_that_follows_has_the_same_future(
    following: ReactivePlan, stop: int
) -> None:
    check_resumed(following, stop)


def test_a_resumed_run_has_spent_all_steps(following: ReactivePlan) -> None:
    greedy = replace(following, scale=0.98 * following.scale)
    whole = greedy.new_state()
    expected, _ = run(whole, [FakeRelease(0.0)] * 200)
    first, second = greedy.new_state(), greedy.new_state()
    run(first, [FakeRelease(0.0)] * 5)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    more, _ = run(second, [FakeRelease(0.0)] * 200)
    assert len(more) == len(expected) - 5
    # A run_state that forgot what was paid would go on for longer.
    assert len(run(greedy.new_state(), [FakeRelease(0.0)] * 200)[0]) > len(more)


def test_a_state_resumes_from_a_later_state_of_its_own(following: ReactivePlan) -> None:
    releases = some_releases(9)
    ahead, behind = following.new_state(), following.new_state()
    run(ahead, releases[:30])
    run(behind, releases[:10])
    behind.load_state_dict(ahead.state_dict())
    assert run(behind, releases[30:]) == run(ahead, releases[30:])


def test_a_state_holds_nothing_that_was_not_released(following: ReactivePlan) -> None:
    run_state = following.new_state()
    run(run_state, [FakeRelease(9.0)] * 2)
    terms = [RULE.weight(t) * (9.0 - 50 * 0.1**2) for t in range(2)]
    state = run_state.state_dict()
    assert set(state) == {"growth", "spent"}
    assert state["growth"] == pytest.approx([2, 20.0 + sum(terms), sum(terms)])
    paid = [following.scale * b**0.25 for b in (20.0, 20.0 + terms[0])]
    assert state["spent"] == pytest.approx(paid, rel=1e-12)


def state_after(plan: ReactivePlan, steps: int, seed: int = 10) -> dict[str, Any]:
    run_state = plan.new_state()
    run(run_state, some_releases(seed)[:steps])
    return run_state.state_dict()


def test_an_inconsistent_state_is_refused(following: ReactivePlan) -> None:
    state = state_after(following, 5)
    for steps in (4, 0):
        with pytest.raises(ValueError, match="state must be a later one of the same run"):
            following.new_state().load_state_dict({**state, "spent": state["spent"][:steps]})
    run_state = following.new_state()
    run(run_state, some_releases(11)[:4])
    before = run_state.state_dict()
    for other in (state, state_after(following, 3, 11), following.new_state().state_dict()):
        with pytest.raises(ValueError, match="state must be a later one of the same run"):
            run_state.load_state_dict(other)
    assert run_state.state_dict() == before


def test_a_state_that_costs_more_than_the_budget_is_refused(following: ReactivePlan) -> None:
    state = state_after(following, 40)
    run_state = following.new_state()
    with pytest.raises(BudgetExceededError):
        run_state.load_state_dict({**state, "spent": [0.6 * z for z in state["spent"]]})
    assert run_state.steps == 0


@pytest.mark.parametrize(("steps", "growth", "factor"), [(5, 5, 2.0), (9, 9, 1.0), (5, 8, 1.0)])
def test_a_state_that_the_plan_cannot_reach_is_refused(
    fixed: ReactivePlan, steps: int, growth: int, factor: float
) -> None:
    assert fixed.noises is not None
    z = [*fixed.noises.noise_multipliers, *[1.0] * 10][:steps]
    paid = [factor * float(value) for value in z]
    with pytest.raises(ValueError, match="state must be"):
        fixed.new_state().load_state_dict({"growth": [growth, 30.0, 9.0], "spent": paid})
