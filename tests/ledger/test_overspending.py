"""Mistakes that would spend more than the ledger counts: all are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.ledger.ledgers import M, N, charge, new, plan, run_all
from torch import nn
from torch.nn import functional

import dither
from dither import accounting
from dither.accounting import BudgetExceededError
from dither.ledger import Account, Ledger, LedgerWriteError
from dither.schedules import AdaGradNorm, UnsafeRawAdaGradNorm
from dither.training import Private, StepError


def private(plan: Any, ledger: Ledger, **settings: Any) -> Private:
    torch.manual_seed(0)
    made = nn.Linear(4, 2)
    data = torch.randn(N, 4), torch.randint(2, (N,))
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    return dither.make_private(made, optimizer, plan, data, ledger=ledger, **settings)


def step(run: Private, batch: Any) -> None:
    x, y = batch
    run.backward(functional.cross_entropy(run.model(x), y, reduction="none"))
    run.optimizer.step()


def go(run: Private, steps: int | None = None) -> None:
    for batch in run.batches():
        step(run, batch)
        if run.step == steps:
            break


def test_an_ended_run_spends_nothing(tmp_path: Path) -> None:
    ledger, made = new(tmp_path), plan(2.0, 30)
    ledger.cap(1.05 * made.bound.epsilon, 1e-5)
    first = private(made, ledger)
    go(first, 1)
    state = first.state_dict()
    second = private(made, ledger)
    second.load_state_dict(state)
    second.close()
    with pytest.raises(BudgetExceededError, match="has ended, and may not spend any more"):
        go(first)


def test_a_run_is_opened_again_only_under_the_cap(tmp_path: Path) -> None:
    ledger, made = new(tmp_path), plan(2.0, 60)
    ledger.cap(0.6, 1e-5)
    first = private(made, ledger)
    go(first, 1)
    state = first.state_dict()
    first.close()
    run_all(ledger, plan(2.0, 80))
    again = private(made, ledger)
    with pytest.raises(BudgetExceededError, match="above the cap"):
        again.load_state_dict(state)
    assert ledger.total(1e-5).epsilon <= 0.6


def test_a_plan_that_is_no_longer_the_runs(tmp_path: Path) -> None:
    ledger, made = new(tmp_path), plan(2.0, 10)
    stale = ledger.register(made)
    charge(stale, made, last=2)
    other = Account(lambda: ledger)
    other.attach(stale.run)
    more = torch.tensor([2.0] * 2 + [3.0] * 8, dtype=torch.float64).numpy()
    other.change("another", more)
    with pytest.raises(BudgetExceededError, match="less than the 3 that was registered"):
        stale.finish(2, 2.0)
    with pytest.raises(ValueError, match="must begin with the 2 steps"):
        other.change("another", 2.0 * more)


def test_raw_step_sizes_cost_everything_whatever_their_noise(tmp_path: Path) -> None:
    made = dither.plan(
        epsilon=1.0, delta=1e-5, dataset_size=N, batch_size=M, steps=3, noise="uniform",
        stepsizes=UnsafeRawAdaGradNorm(20.0, 1e-3),
    )  # fmt: skip
    ledger = new(tmp_path)
    run = private(made, ledger)
    go(run)
    run.close()
    assert ledger.total(1e-5).epsilon == float("inf")
    ledger.cap(10.0, 1e-5)
    with pytest.raises(BudgetExceededError, match="total to ε = inf"):
        ledger.register(plan())


def test_noise_that_follows_is_counted_by_the_least_it_could_be(tmp_path: Path) -> None:
    made = dither.plan(
        epsilon=1.0, delta=1e-5, dataset_size=N, batch_size=M, steps=6, noise="filter",
        stepsizes=AdaGradNorm(1e-4, 1e-6),
    )  # fmt: skip
    ledger = new(tmp_path)
    run = private(made, ledger)
    go(run)
    # b_t² starts so small that the first gradients raise it at once: by 2.7 in the least of 300.
    (found,) = ledger.runs.values()
    assert max(found.spent) > 1.01 * max(found.noise)
    least = accounting.epsilon(made.charges, sample_rate=M / N, delta=1e-5)
    assert ledger.total(1e-5) == least


def test_two_iterators_do_not_share_a_batch(tmp_path: Path) -> None:
    run = private(plan(), new(tmp_path))
    one, two = run.batches(), run.batches()
    step(run, next(one))
    step(run, next(two))
    with pytest.raises(StepError, match=r"batches\(\) was called again"):
        step(run, next(one))


def test_going_back_because_of_results(tmp_path: Path) -> None:
    run = private(plan(), new(tmp_path))
    go(run, 2)
    state = run.state_dict()
    go(run, 5)
    with pytest.raises(ValueError, match="to go back because of results is not covered"):
        run.load_state_dict(state)


def test_early_ends_do_not_let_in_what_the_filter_would_have_refused(tmp_path: Path) -> None:
    ledger, made = new(tmp_path), plan(2.0, 60)
    ledger.cap(1.001 * accounting.epsilon([2.0] * 120, sample_rate=M / N, delta=1e-5).epsilon, 1e-5)
    accounts = [ledger.register(made), ledger.register(made)]
    for account in accounts:
        charge(account, made, last=1)
        account.end()
    with pytest.raises(BudgetExceededError, match="by a filter"):
        ledger.register(plan(2.0, 2))


def test_a_cap_below_what_open_runs_have_registered(tmp_path: Path) -> None:
    ledger, made = new(tmp_path), plan()
    account = ledger.register(made)
    charge(account, made, last=1)
    with pytest.raises(
        BudgetExceededError, match="must not be below what open runs have registered"
    ):
        ledger.cap(0.5 * made.bound.epsilon, 1e-5)
    account.end()
    ledger.cap(0.01, 1e-5)
    with pytest.raises(BudgetExceededError, match="above the cap"):
        ledger.register(made)


def test_a_ledger_that_is_deleted_on_the_way(tmp_path: Path) -> None:
    ledger, made = new(tmp_path), plan()
    account = ledger.register(made)
    charge(account, made, last=2)
    ledger.path.unlink()
    with pytest.raises(LedgerWriteError, match="was deleted or replaced"):
        account.finish(2, 2.0)


def test_a_refused_run_takes_nothing_away_that_is_not_its_own(tmp_path: Path) -> None:
    class Mixing(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x - x.mean(0))

    folder = tmp_path / "run"
    shared = folder / "shared.sqlite"
    data = torch.randn(N, 4), torch.randint(2, (N,))
    with pytest.raises(ValueError, match="every record by itself"):
        dither.train(
            Mixing(4, 2), data, plan(), run=dither.Run(folder, ledger=shared), progress=False
        )
    assert len(Ledger(shared, create=False).runs) == 1


def test_a_folder_that_lost_its_name(tmp_path: Path) -> None:
    data = torch.randn(N, 4), torch.randint(2, (N,))
    settings: dict[str, Any] = {
        "run": dither.Run(tmp_path / "run", resume=True), "progress": False,
    }  # fmt: skip
    dither.train(nn.Linear(4, 2), data, plan(steps=3), **settings)
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(ValueError, match=r"must have its run.json"):
        dither.train(nn.Linear(4, 2), data, plan(steps=3), **settings)


def test_a_run_does_not_become_seeded_on_the_way(tmp_path: Path) -> None:
    ledger, made = new(tmp_path), plan()
    first = private(made, ledger)
    go(first, 2)
    state = {**first.state_dict(), "seed": 7}
    with pytest.raises(ValueError, match="seed must be as the run began"):
        private(made, ledger, seed=7).load_state_dict(state)
