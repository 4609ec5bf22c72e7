"""Users: which rows they have, which of them take part, and what a run keeps of the unit."""

import time
import warnings
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.training.loops import data, losses, model, noisy_plan, private, quiet_plan, take_steps

import dither
from dither import Plan
from dither.accounting import BudgetExceededError
from dither.clipping.engine import split_rows
from dither.ledger import Ledger
from dither.randomness import Source
from dither.schedules import AdaGradNorm
from dither.training.records import Draws, records_of
from dither.training.users import Users

NAN = float("nan")
OWNERS = np.arange(120) % 12  # ten rows of each user of the tests' data
USERS: dict[str, Any] = {"dataset_size": 12, "batch_size": 4}


def rows_of(users: Users) -> list[list[int]]:
    return [part.tolist() for part in np.split(users.rows, users.ends[:-1])]


# --- ids ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ids",
    [
        [3, 5, 3, None, 5, 3],
        ["ann", "bob", "ann", "", "bob", "ann"],
        [" ann", "bob", "ann ", "  ", "bob", "\tann\n"],
        (1.0, 2.5, 1.0, NAN, 2.5, 1.0),
        [7, "x", 7.0, pd.NA, "x", "7"],
        [7, 8, np.int64(7), pd.NaT, np.float32(8.0), torch.tensor(7)],
        [torch.tensor([7]), 8, 7, NAN, 8, np.array([7])],
        np.array([1.0, 2.0, 1.0, NAN, 2.0, 1.0]),
        np.array(["a", "b", "a", None, "b", "a"], object),
        np.array([[1.0], [2.0], [1.0], [NAN], [2.0], [1.0]]),
        torch.tensor([1.0, 2.0, 1.0, NAN, 2.0, 1.0]),
        torch.tensor([[1.0], [2.0], [1.0], [NAN], [2.0], [1.0]]),
        pd.Series(["a", "b", "a", None, "b", "a"]),
        pd.Series(["a", "b", "a", None, "b", "a"], dtype="string", index=[5, 4, 3, 2, 1, 0]),
        pd.Series(["a", "b", "a", None, "b", "a"], dtype="category"),
        pd.Series([1, 2, 1, None, 2, 1], dtype="Int64"),
        pd.Series([1, 2, 1, None, 2, 1]),
        pd.DataFrame({"user": [1, 2, 1, None, 2, 1]}),
        pd.Index([1, 2, 1, None, 2, 1]),
        [("a", 1), ("b", 1), ("a", 1), None, ("b", 1), ("a", 1)],
        [2**80, 2**80 + 1, 2**80, None, 2**80 + 1, 2**80],
    ],
    ids=str,
)
def test_ids_are_compared_as_text(ids: Any) -> None:
    assert rows_of(Users.of(ids)) == [[0, 2, 5], [1, 4]]
    own = Users.of(ids, missing="own")
    assert rows_of(own) == [[0, 2, 5], [1, 4], [3]]
    assert own.names.size == 2


def test_marks_of_a_missing_id_do_not_make_many_people_one_user() -> None:
    # As str, np.array of texts and R's write.csv write them.
    texts = ["nan", "None", "NULL", "ann", "NA", "n/a", "<NA>", "NaT", " nan "]
    assert rows_of(Users.of(texts)) == [[3]]
    assert rows_of(Users.of(np.array(["ann", np.nan, "bob", np.nan]))) == [[0], [2]]
    assert Users.of(texts, missing="own").count == len(texts)


def test_a_number_and_its_text_are_one_user() -> None:
    assert Users.of(["7", "7.0", 7, 7.0, "7.5"]).names.tolist() == ["7", "7.5"]


def test_floats_that_may_stand_for_several_ids_are_refused() -> None:
    ids = np.array([2**60 + 1, 2**60 + 2])
    assert Users.of(ids).count == 2
    with pytest.raises(ValueError, match="users must be exact, got 1.15"):
        Users.of(ids.astype(np.float64))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_users_have_their_rows(ids: list[int]) -> None:
    users = Users.of(ids)
    assert users.count == len({*ids})
    found = {ids[rows[0]]: rows for rows in rows_of(users)}
    assert found == {each: [i for i, own in enumerate(ids) if own == each] for each in ids}
    parts = [users.part(rank, 3) for rank in range(3)]
    together = [rows for part in parts if part.count for rows in rows_of(part)]
    assert sorted(together) == sorted(rows_of(users))


@pytest.mark.parametrize(
    ("ids", "settings", "words"),
    [
        ([None, NAN], {}, "users must name the user of at least one row"),
        ((each for each in "abc"), {}, "users must be one id per row, such as .* generator"),
        ({"a", "b"}, {}, "users must be one id per row, such as .*, got set"),
        ("abc", {}, "users must be one id per row, such as .*, got str"),
        (7, {}, "users must be one id per row, such as .*, got int"),
        (np.zeros((3, 2)), {}, "users must be one id per row, got an array of 2 dimensions"),
        (torch.tensor(3), {}, "users must be one id per row, got an array of 0 dimensions"),
        ([np.zeros(2)], {}, r"a number or a text, got an id of shape \(2,\)"),
        ([torch.zeros(2, 1)], {}, r"a number or a text, got an id of shape \(2, 1\)"),
        ([1], {"rows_per_user": 0}, "rows_per_user must be an integer of at least 1, got 0"),
        ([1], {"missing": "x"}, "missing must be one of drop, own, got 'x'"),
    ],
)
def test_bad_ids(ids: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        Users.of(ids, **settings)


# --- which rows take part -----------------------------------------------------------------------


def stream(step: int = 0) -> Any:
    return Source(5).stream("rows", step)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 12), st.integers(0, 9))
def test_rows_of_a_draw_are_different_and_few_enough(
    sizes: list[int], most: int, step: int
) -> None:
    users = Users.of(np.repeat(np.arange(len(sizes)), sizes), rows_per_user=most)
    drawn = np.random.default_rng(step).permutation(users.count)[: 1 + users.count // 2]
    rows, counts = users.draw(drawn, stream(step))
    assert counts.tolist() == sorted(counts)
    parts = [part.tolist() for part in np.split(rows, counts.cumsum()[:-1])]
    owned = rows_of(users)
    owner = {row: user for user, each in enumerate(owned) for row in each}
    assert sorted(owner[part[0]] for part in parts) == sorted(drawn)
    for part in parts:
        own = owned[owner[part[0]]]
        assert {*part} <= {*own}
        assert len({*part}) == len(part) == min(len(own), most)


def fits(subsets: Counter[tuple[int, ...]], kinds: int) -> bool:
    """Whether all subsets are equally likely: χ² with a false alarm in a million."""
    counts = [*subsets.values(), *[0] * (kinds - len(subsets))]
    return bool(stats.chisquare(counts).pvalue > 1e-6)


def test_all_subsets_of_a_users_rows_are_equally_likely() -> None:
    """The 20 subsets of 3 of 6 rows; a draw that repeats the first row is not like that."""
    users = Users.of([0] * 6, rows_per_user=3)
    right, biased = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
    for step in range(4_000):
        rows = users.draw(np.zeros(1, np.int64), stream(step))[0].tolist()
        right[tuple(rows)] += 1
        biased[tuple(sorted({0, *rows[1:]})) if step % 8 == 0 else tuple(rows)] += 1
    assert fits(right, 20)
    assert not fits(biased, 20)


def test_users_of_a_draw_choose_their_rows_independently() -> None:
    users = Users.of(np.repeat([0, 1], 4), rows_per_user=1)
    pairs = Counter[tuple[int, ...]]()
    for step in range(4_000):
        pairs[tuple(sorted(users.draw(np.arange(2), stream(step))[0].tolist()))] += 1
    assert fits(pairs, 16)


def test_a_user_with_a_million_rows_is_drawn_at_once() -> None:
    users = Users.of(np.r_[np.zeros(1_000_000), np.arange(1, 100)], rows_per_user=8)
    began = time.perf_counter()
    seen = [users.draw(np.arange(100), stream(step))[0][-8:] for step in range(100)]
    assert time.perf_counter() - began < 2.0
    assert len({row for rows in seen for row in rows}) > 780
    assert 4e5 < np.mean(seen) < 6e5


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(1, 12))
def test_parts_of_a_batch_have_whole_users(counts: list[int], size: int) -> None:
    parts = [part.tolist() for part in split_rows(torch.tensor(counts), size)]
    assert [count for part in parts for count in part] == counts
    assert all(sum(part) <= size or len(part) == 1 for part in parts)
    assert all(sum(one) + two[0] > size for one, two in pairwise(parts))


# --- runs ---------------------------------------------------------------------------------------


def batches(plan: Plan, owners: Any, rows_per_user: int) -> list[list[int]]:
    """Return the rows of all steps."""
    records = records_of(torch.arange(len(owners)))
    users = Users.of(owners, rows_per_user=rows_per_user)
    draws = Draws(records, users, plan, Source(3), length=users.count, rank=0)
    return [batch.tolist() for batch, _ in draws.batches(0, plan.steps)]


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_users_are_drawn_whatever_rows_they_have(sampling: str) -> None:
    """With the probability q = m/n: a binomial test with a false alarm in a million."""
    owners, steps = np.repeat(np.arange(12), np.arange(1, 13)), 600
    plan = quiet_plan(steps, sampling=sampling, **USERS)
    drawn = Counter[int]()
    for rows in batches(plan, owners, rows_per_user=2):
        counts = Counter(owners[rows].tolist())
        assert all(count == min(2, owner + 1) for owner, count in counts.items())
        drawn.update([*counts])
        assert sampling == "poisson" or len(counts) == 4
    for owner in range(12):
        assert stats.binomtest(drawn[owner], steps, 1 / 3).pvalue > 1e-6
    assert stats.binomtest(drawn[0], steps, 0.45).pvalue < 1e-6


def test_a_user_is_in_one_subset_of_a_cycle() -> None:
    plan = Plan.from_noise_multipliers(
        [1.0] * 60, delta=1e-3, dataset_size=12, batch_size=4, correlation=[1.0, 0.5, 0.2]
    )
    steps = [{*OWNERS[rows].tolist()} for rows in batches(plan, OWNERS, rows_per_user=3)]
    subsets = [set[int]().union(*steps[k::3]) for k in range(3)]
    assert sum(len(each) for each in subsets) == 12
    assert all(not one & two for one, two in pairwise(subsets))


def test_a_function_of_a_record_names_its_user() -> None:
    inputs, targets = data()
    inputs[:, 0] = torch.from_numpy(OWNERS)
    plan = quiet_plan(**USERS)
    one = take_steps(private(plan, (inputs, targets), users=lambda record: record[0][0]))
    two = take_steps(private(plan, (inputs, targets), users=OWNERS))
    three = take_steps(private(plan, [*zip(inputs, targets, strict=True)], users=lambda r: r[0][0]))
    assert torch.equal(one, two)
    assert torch.allclose(one, three)


def test_a_user_of_one_row_each_is_a_record() -> None:
    """The same batches, in the order in which names sort, and the same noise."""
    names = [f"{row:03}" for row in range(120)]
    one = take_steps(private(noisy_plan(), users=names, rows_per_user=5))
    assert torch.allclose(one, take_steps(private(noisy_plan())), atol=1e-6)


def test_microbatches_of_users_train_the_same() -> None:
    one, two = (take_steps(private(quiet_plan(**USERS), users=OWNERS), microbatch_size=size)
                for size in (0, 11))  # fmt: skip
    assert torch.allclose(one, two, atol=1e-6)


def test_train_takes_users() -> None:
    how: Any = {"users": OWNERS, "rows_per_user": 3, "progress": False, "seed": 1}
    result = dither.train(model(), data(), epsilon=3.0, delta=1e-3, compute=500, **how)
    assert (result.plan.dataset_size, result.plan.rows_per_user) == (12, 3)
    assert result.bound.unit == "user"
    given = dither.train(model(), data(), noisy_plan(**USERS), **how)
    assert given.plan.fingerprint == noisy_plan(**USERS).for_users(3).fingerprint


# --- the unit -----------------------------------------------------------------------------------


def test_a_plan_for_users_costs_the_same_and_says_so() -> None:
    plan = noisy_plan(**USERS)
    made = plan.for_users(5)
    assert (made.unit, made.rows_per_user) == ("user", 5)
    assert (plan.unit, plan.rows_per_user) == ("record", None)
    assert made.bound.epsilon == plan.bound.epsilon
    assert made.bound.adjacency_text == "adjacency: add or remove one user"
    assert "n = 12 users" in str(made)
    assert len({plan.fingerprint, made.fingerprint, plan.for_users(6).fingerprint}) == 3
    read = Plan.from_json(made.to_json())
    assert (read.fingerprint, read.bound) == (made.fingerprint, made.bound)
    assert "rows_per_user" not in plan.to_json()
    with pytest.raises(ValueError, match="rows_per_user must be an integer of at least 1, got 0"):
        plan.for_users(0)


def test_a_claim_for_users_is_not_read_as_one_for_records() -> None:
    text = noisy_plan(**USERS).for_users(5).to_json()
    for wrong in (text.replace('"unit": "user"', '"unit": "record"'),
                  text.replace('"rows_per_user": 5', '"rows_per_user": 0')):  # fmt: skip
        assert wrong != text
        with pytest.raises(ValueError, match="must be"):
            Plan.from_json(wrong)


@pytest.mark.parametrize("noise", ["uniform", "filter"])
def test_a_plan_that_reacts_protects_users(noise: str) -> None:
    plan: Any = dither.plan(
        epsilon=3.0, delta=1e-3, steps=4, stepsizes=AdaGradNorm(1.0, 1e-2), noise=noise, **USERS
    )
    run = private(plan, users=OWNERS, rows_per_user=3)
    take_steps(run)
    assert run.plan.unit == run.spent().unit == "user"
    assert run.plan.fingerprint == plan.for_users(3).fingerprint != plan.fingerprint


def test_the_plan_says_how_many_rows_take_part() -> None:
    plan = quiet_plan(**USERS).for_users(3)
    assert private(plan, users=OWNERS).plan.rows_per_user == 3
    assert private(plan, users=OWNERS, rows_per_user=3).plan.rows_per_user == 3
    assert private(quiet_plan(**USERS), users=OWNERS).plan.rows_per_user == 8
    with pytest.raises(ValueError, match="rows_per_user must be left out or be the plan's, 3, got"):
        private(plan, users=OWNERS, rows_per_user=4)


def test_the_ledger_keeps_the_unit(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    run = private(noisy_plan(**USERS), users=OWNERS, ledger=ledger, run_name="users")
    take_steps(run)
    assert run.spent().unit == "user"
    run.close()
    assert ledger.total(1e-3).unit == "user"
    records = private(noisy_plan(), ledger=ledger)
    with pytest.raises(BudgetExceededError, match="protects records, but the ledger has runs that"):
        next(records.batches())
    ledger.close()
    again = Ledger(tmp_path)
    assert again.total(1e-3).unit == "user"
    again.close()


def test_users_are_refused_by_a_ledger_of_records(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    run = private(noisy_plan(), ledger=ledger)
    take_steps(run)
    run.close()
    with pytest.raises(BudgetExceededError, match="protects users, but the ledger has runs that p"):
        next(private(noisy_plan(**USERS), users=OWNERS, ledger=ledger).batches())
    assert ledger.total(1e-3).unit == "record"
    ledger.close()


def take(run: Any, steps: int) -> None:
    for batch in run.batches(steps):
        run.backward(losses(run, *batch))
        run.optimizer.step()


@pytest.mark.filterwarnings("ignore:.*steps were spent and lost")
def test_a_resumed_run_draws_the_same_users_and_keeps_the_unit(tmp_path: Path) -> None:
    plan, how = noisy_plan(**USERS), {"users": OWNERS, "rows_per_user": 3}
    ledger = Ledger(tmp_path / "run")
    first = private(plan, ledger=ledger, run_name="run", **how)
    take(first, 3)
    state, weights = first.state_dict(), [p.detach().clone() for p in first.model.parameters()]
    take(first, 1)  # which is lost
    first.close()
    second = private(plan, ledger=ledger, **how)
    with torch.no_grad():
        for parameter, saved in zip(second.model.parameters(), weights, strict=True):
            parameter.copy_(saved)
    second.load_state_dict(state)
    assert second.plan.rows_per_user == 3
    assert second.plan.steps == 7
    assert second.plan.bound.epsilon <= plan.bound.epsilon
    take_steps(second)
    assert second.spent().unit == "user"
    ledger.close()


@pytest.mark.filterwarnings("ignore:without a ledger")
def test_a_state_of_users_is_for_the_same_users_plan() -> None:
    run = private(quiet_plan(**USERS), users=OWNERS)
    take(run, 2)
    state = run.state_dict()
    same, other = (private(quiet_plan(**USERS), users=OWNERS, rows_per_user=k) for k in (8, 7))
    same.load_state_dict(state)
    assert same.step == 2
    with pytest.raises(ValueError, match="state must be of the same rows_per_user"):
        other.load_state_dict(state)


# --- messages -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"users": OWNERS[:-1]}, "users must have one id per record, 120 in all, got 119"),
        ({"users": (each for each in OWNERS)}, "or a function of a record, got generator"),
        ({"users": np.zeros((120, 2))}, "users must be one id per row, got an array of 2 dimens"),
        ({"users": lambda record: record[0]}, r"a number or a text, got an id of shape \(6,\)"),
        ({"users": OWNERS, "rows_per_user": 0}, "rows_per_user must be an integer of at least 1"),
        ({"users": OWNERS, "missing": "x"}, "missing must be one of drop, own, got 'x'"),
        ({"rows_per_user": 5}, "rows_per_user must be left out where no users are given, got 5"),
        ({"missing": "own"}, "missing must be left out where no users are given, got 'own'"),
    ],
)
def test_bad_input(settings: dict[str, Any], words: str) -> None:
    plan = quiet_plan(**USERS)
    with pytest.raises((ValueError, TypeError), match=words):
        private(plan, **settings)
    with pytest.raises((ValueError, TypeError), match=words):
        dither.train(model(), data(), plan, **settings)


def test_a_plan_for_users_needs_users() -> None:
    plan = quiet_plan(**USERS).for_users(3)
    words = "users must be given for a plan that protects users, got None"
    for make in (private, lambda plan: dither.train(model(), data(), plan)):
        with pytest.raises(ValueError, match=words):
            make(plan)


def test_the_number_of_users_is_compared_with_the_plan() -> None:
    with pytest.warns(UserWarning, match="the dataset has another number of users than the plan"):
        private(quiet_plan(), users=OWNERS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        private(quiet_plan(**USERS), users=OWNERS)
