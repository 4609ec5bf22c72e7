"""What a ledger adds up, what it refuses, and how it says which case it is in."""

import pickle
import sqlite3
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from tests.ledger.ledgers import M, N, charge, new, plan, run_all

from dither import Plan, accounting
from dither import plan as make_plan
from dither.accounting import BudgetExceededError, Odometer
from dither.ledger import Account, DamagedLedgerError, Ledger
from dither.ledger.entries import StepEntry, from_text
from dither.schedules import AdaGradNorm, UnsafeRawAdaGradNorm


def peer(*plans: Plan, delta: float) -> float:
    """Return ε of all plans together by the peer's accountant."""
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = PLDAccountant(relation, value_discretization_interval=1e-4)
    for each in plans:
        for z, count in zip(*np.unique(each.noise_multipliers, return_counts=True), strict=True):
            event = dp_accounting.GaussianDpEvent(float(z))
            sampled = dp_accounting.PoissonSampledDpEvent(each.sample_rate, event)
            accountant.compose(sampled, int(count))
    return float(accountant.get_epsilon(delta))


def test_an_empty_ledger_has_spent_nothing(tmp_path: Path) -> None:
    ledger = new(tmp_path)
    assert ledger.total(1e-5).epsilon == 0.0
    assert ledger.composition == "fixed"
    assert ledger.limit is None
    assert not ledger.runs


def test_one_run_costs_what_its_plan_says(tmp_path: Path) -> None:
    made = plan()
    run_all(new(tmp_path), made)
    found = Ledger(tmp_path / "shared.sqlite", create=False).total(1e-5)
    assert found == made.bound


def test_runs_that_were_registered_before_compose_like_one(tmp_path: Path) -> None:
    ledger, plans = new(tmp_path), (plan(2.0), plan(1.5, 20, batch=50))
    run_all(ledger, *plans)
    assert ledger.composition == "fixed"
    found = ledger.total(1e-5)
    assert found.accountant == "pld"
    expected = peer(*plans, delta=1e-5)
    assert expected * 0.99 <= found.epsilon <= expected * 1.005
    assert found.epsilon < sum(each.bound.epsilon for each in plans)


def test_a_run_that_came_later_is_paid_as_adaptive(tmp_path: Path) -> None:
    ledger, first, second = new(tmp_path), plan(2.0), plan(1.5, 20)
    run_all(ledger, first)
    run_all(ledger, second)
    assert ledger.composition == "adaptive"
    found = ledger.total(1e-5)
    odometer = Odometer(1e-5)
    for each in (first, second):
        for z in each.noise_multipliers:
            odometer.charge(float(z), M / N)
    assert found.accountant == "odometer"
    assert found.epsilon == odometer.epsilon()
    assert found.epsilon > peer(first, second, delta=1e-5)


def test_steps_so_far_cost_less_than_the_plan(tmp_path: Path) -> None:
    ledger, made = new(tmp_path), plan()
    charge(ledger.register(made), made, last=10)
    expected = accounting.epsilon([2.0] * 10, sample_rate=M / N, delta=1e-5)
    assert ledger.total(1e-5).epsilon == expected.epsilon
    assert "valid if the number of steps was fixed in advance" in str(ledger.total(1e-5))


def test_a_run_that_was_ended_early_costs_its_whole_plan(tmp_path: Path) -> None:
    """Its results may have ended it, and then the cost of its steps alone is no bound."""
    ledger, made = new(tmp_path), plan()
    account = ledger.register(made)
    charge(account, made, last=10)
    account.end()
    assert ledger.total(1e-5) == made.bound


def test_a_cap_refuses_before_the_first_step(tmp_path: Path) -> None:
    ledger, made = new(tmp_path), plan()
    both = accounting.epsilon([2.0] * 60, sample_rate=M / N, delta=1e-5).epsilon
    ledger.cap(both * 1.0001, 1e-5)
    accounts = [ledger.register(made), ledger.register(made)]
    before = ledger.export()
    with pytest.raises(BudgetExceededError, match=r"by composition\), above the cap of") as caught:
        ledger.register(plan(2.0, 3), name="third")
    assert "run 'third'" in str(caught.value)
    assert ledger.export() == before
    for account in accounts:
        charge(account, made)
    assert ledger.total(1e-5).epsilon <= both * 1.0001


def test_what_a_run_did_not_spend_is_free_when_it_ends(tmp_path: Path) -> None:
    ledger, made = new(tmp_path), plan()
    ledger.cap(2.5 * made.bound.epsilon, 1e-5)
    account = ledger.register(made)
    charge(account, made, last=2)
    longer = plan(2.0, 110)
    with pytest.raises(BudgetExceededError, match="by a filter"):
        ledger.register(longer)
    account.end()
    charge(ledger.register(longer), longer)
    assert ledger.total(1e-5).epsilon <= 2.5 * made.bound.epsilon


def test_the_orders_of_a_cap_are_fixed_before_anything_is_spent(tmp_path: Path) -> None:
    ledger = new(tmp_path)
    ledger.cap(2.0, 1e-5)
    assert ledger.limit is not None
    orders = ledger.limit.orders
    run_all(ledger, plan())
    ledger.cap(5.0, 1e-6)
    assert ledger.limit.orders == orders
    late = Ledger(tmp_path / "late.sqlite")
    run_all(late, plan())
    late.cap(2.0, 1e-5)
    assert late.limit is not None
    assert late.limit.orders == accounting.odometer.ODOMETER_ORDERS


def test_a_filter_never_admits_more_than_its_cap(tmp_path: Path) -> None:
    ledger, small = new(tmp_path), plan(3.0, 10)
    ledger.cap(0.4, 1e-5)
    run_all(ledger, small)
    admitted = 1
    with pytest.raises(BudgetExceededError, match="by a filter"):  # noqa: PT012
        while True:
            run_all(ledger, small)
            admitted += 1
    total = ledger.total(1e-5).epsilon
    assert total <= 0.4
    # The cap is used, up to what a filter costs more than plain composition.
    z = np.full(10 * admitted, 3.0)
    assert accounting.epsilon(z, sample_rate=M / N, delta=1e-5).epsilon > 0.2


def test_claims_about_other_neighbours_do_not_add_up(tmp_path: Path) -> None:
    ledger = new(tmp_path)
    ledger.register(plan())
    with pytest.raises(BudgetExceededError, match="fixed sampling, but the ledger has poisson"):
        ledger.register(plan(sampling="fixed"))


def test_the_first_run_is_held_to_a_cap_by_its_own_sampling(tmp_path: Path) -> None:
    """A record that is replaced moves a sum twice as far as one that is removed."""
    ledger, made = new(tmp_path), plan(4.0, sampling="fixed")
    assert made.bound.epsilon > 1.5 * plan(4.0).bound.epsilon
    ledger.cap(0.95 * made.bound.epsilon, 1e-5)
    with pytest.raises(BudgetExceededError, match="above the cap"):
        ledger.register(made)
    ledger.cap(1.001 * made.bound.epsilon, 1e-5)
    run_all(ledger, made)
    assert ledger.total(1e-5) == made.bound


def test_a_step_is_not_released_with_less_noise_than_it_was_paid_for(tmp_path: Path) -> None:
    account = new(tmp_path).register(plan())
    account.finish(0, 2.0)
    with pytest.raises(BudgetExceededError, match="was charged with noise 2, got 1"):
        account.finish(0, 1.0)


def test_runs_without_noise_cost_everything(tmp_path: Path) -> None:
    ledger = new(tmp_path)
    bare = Plan.unsafe_without_noise(steps=3, dataset_size=N, batch_size=M)
    run_all(ledger, plan(), bare)
    assert ledger.total(1e-5).epsilon == np.inf
    assert not ledger.total(1e-5).is_upper_bound
    capped = Ledger(tmp_path / "capped.sqlite")
    capped.cap(100.0, 1e-5)
    raw = make_plan(
        epsilon=1.0, delta=1e-5, dataset_size=N, batch_size=M, steps=5, noise="uniform",
        stepsizes=UnsafeRawAdaGradNorm(20.0, 1e-3),
    )  # fmt: skip
    for unsafe in (bare, raw):
        with pytest.raises(BudgetExceededError, match="total to ε = inf"):
            capped.register(unsafe)


def test_noise_that_follows_is_registered_by_the_least_it_can_be(tmp_path: Path) -> None:
    made = make_plan(
        epsilon=1.0, delta=1e-5, dataset_size=N, batch_size=M, steps=20, noise="filter",
        stepsizes=AdaGradNorm(20.0, 1e-3),
    )  # fmt: skip
    ledger = new(tmp_path)
    ledger.cap(1.0, 1e-5)
    account = ledger.register(made)
    least = made.charges
    account.finish(0, float(least[0]) * 1.3)
    with pytest.raises(BudgetExceededError, match="less than the .* that was registered"):
        account.finish(1, float(least[1]) * 0.99)


def test_steps_that_were_not_registered(tmp_path: Path) -> None:
    ledger, made = new(tmp_path), plan(steps=3)
    account = ledger.register(made)
    charge(account, made, last=1)
    with pytest.raises(BudgetExceededError, match="less than the 2 that was registered"):
        account.finish(1, 1.0)
    with pytest.raises(BudgetExceededError, match="has spent 1 steps, but the next would be"):
        account.finish(2, 2.0)
    charge(account, made, first=1)
    with pytest.raises(BudgetExceededError, match="registered 3 steps, and no more"):
        account.finish(3, 2.0)
    assert len(ledger.runs[account.run].spent) == 3


def test_a_step_is_paid_for_once(tmp_path: Path) -> None:
    ledger, made = new(tmp_path), plan(steps=3)
    account = ledger.register(made)
    for _ in range(3):
        account.begin(0, 2.0)
        account.finish(0, 2.0)
    assert account.spent == (2.0,)
    assert sum(isinstance(entry, StepEntry) for entry in ledger.entries) == 1


def test_two_processes_cannot_go_on_with_the_same_run(tmp_path: Path) -> None:
    made = plan(steps=5)
    one, two = new(tmp_path), new(tmp_path)
    first = one.register(made)
    second = Account(lambda: two)
    second.attach(first.run)
    charge(first, made, last=1)
    with pytest.raises(BudgetExceededError, match="another process continues the same run"):
        second.finish(0, 2.0)


def test_unknown_entries_fail_closed(tmp_path: Path) -> None:
    for kind, version in (("refund", 1), ("step", 2)):
        with pytest.raises(DamagedLedgerError, match=f"kind '{kind}', version {version}"):
            from_text(kind, version, "{}")


def test_other_files_are_no_ledgers(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE things (a)")
    database.close()
    with pytest.raises(DamagedLedgerError, match="is no ledger"):
        Ledger(other)
    empty = tmp_path / "empty"
    empty.touch()
    before = other.read_bytes()
    for path in (other, empty):
        with pytest.raises(DamagedLedgerError, match="is no ledger"):
            Ledger(path, create=False)
    assert other.read_bytes() == before
    assert empty.stat().st_size == 0
    text = tmp_path / "notes.txt"
    text.write_text("not a database, and longer than a header of one would be" * 10)
    with pytest.raises(DamagedLedgerError, match="not a database"):
        Ledger(text)
    with pytest.raises(DamagedLedgerError, match="was not found"):
        Ledger(tmp_path / "nothing.sqlite", create=False)


def test_bad_arguments(tmp_path: Path) -> None:
    ledger = new(tmp_path)
    for epsilon, delta, words in ((0.0, 1e-5, "epsilon"), (1.0, 0.0, "delta"), (1.0, 1.0, "delta")):
        with pytest.raises(ValueError, match=words):
            ledger.cap(epsilon, delta)
    with pytest.raises(ValueError, match="delta"):
        ledger.total(0.0)
    with pytest.raises(ValueError, match="has no run 'nobody'"):
        Account(lambda: ledger).attach("nobody")
    ledger.register(plan(), name="one")
    with pytest.raises(ValueError, match="name must be new in the ledger, got 'one'"):
        ledger.register(plan(), name="one")


def test_a_run_that_was_planned_before_is_not_adaptive(tmp_path: Path) -> None:
    ledger, plans = new(tmp_path), (plan(2.0), plan(1.5, 20))
    run_all(ledger, plans[0])
    handle = pickle.loads(pickle.dumps(ledger.part("s", "a").preplanned()))  # noqa: S301
    assert handle.split_part == ("s", "a")
    run_all(ledger.preplanned(), plans[1])
    assert ledger.composition == "fixed"
    expected = peer(*plans, delta=1e-5)
    assert expected * 0.99 <= ledger.total(1e-5).epsilon <= expected * 1.005
    again = Ledger(tmp_path / "shared.sqlite", create=False)
    assert again.composition == "fixed"
    run_all(ledger, plan(3.0, 5))  # this one was not
    assert ledger.composition == "adaptive"
    assert [run.entry.is_preplanned for run in ledger.runs.values()] == [None, True, None]


def test_a_cap_holds_for_runs_that_were_planned_before(tmp_path: Path) -> None:
    ledger, made = new(tmp_path), plan(2.0)
    ledger.cap(made.bound.epsilon * 1.2, 1e-5)
    run_all(ledger, made)
    with pytest.raises(BudgetExceededError, match="above the cap"):
        run_all(ledger.preplanned(), made)
