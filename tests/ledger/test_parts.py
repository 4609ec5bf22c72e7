"""Runs on different parts of a random split do not add up; all others do."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.ledger.ledgers import M, N, charge, new, plan, run_all

import dither
from dither import accounting
from dither.accounting import BudgetExceededError, Odometer
from dither.accounting.gaussian import gaussian_delta
from dither.cli import main
from dither.evaluation import new_split
from dither.ledger import Ledger
from dither.ledger.entries import RunEntry, to_text

A, B, C = plan(2.0), plan(1.5, 20), plan(3.0, 25)


def together(*plans: dither.Plan, rate: float = M / N) -> float:
    z = np.concatenate([each.noise_multipliers for each in plans])
    return accounting.epsilon(z, sample_rate=rate, delta=1e-5).epsilon


def registered(ledger: Ledger, *runs: tuple[dither.Plan, tuple[str, str] | None]) -> float:
    """Register all runs, charge them, and return ε of the total."""
    handles = [ledger if part is None else ledger.part(*part) for _, part in runs]
    accounts = [handle.register(each) for handle, (each, _) in zip(handles, runs, strict=True)]
    for account, (each, _) in zip(accounts, runs, strict=True):
        charge(account, each)
        account.end()
    return ledger.total(1e-5).epsilon


def test_of_the_parts_of_a_split_the_larger_counts(tmp_path: Path) -> None:
    found = registered(new(tmp_path), (A, ("s", "train")), (B, ("s", "holdout")))
    assert found == max(together(A), together(B)) < together(A, B)


def test_the_same_part_twice_adds_up(tmp_path: Path) -> None:
    ledger = new(tmp_path)
    found = registered(ledger, (B, ("s", "train")), (C, ("s", "train")), (A, ("s", "holdout")))
    assert found == together(B, C) > together(A)
    assert ledger.composition == "fixed"


def test_parts_of_different_splits_add_up(tmp_path: Path) -> None:
    runs = (A, ("s", "train")), (B, ("s", "holdout")), (C, ("t", "train")), (A, ("t", "holdout"))
    found = registered(new(tmp_path), *runs, (C, None))
    choices = (together(x, y, C) for x in (A, B) for y in (C, A))
    assert found == max(choices)


def test_a_total_is_proven_only_if_all_of_its_runs_are(tmp_path: Path) -> None:
    ledger = new(tmp_path)
    run_all(ledger.part("s", "train"), A)
    assert ledger.total(1e-5).is_upper_bound
    leaky = pickle.loads(pickle.dumps(ledger.part("s", "holdout").conditional()))  # noqa: S301
    assert leaky.split_part == ("s", "holdout")
    run_all(leaky, B)
    first, second = ledger.runs
    found = [ledger.total_of(*names, delta=1e-5) for names in ([first], [second], [first, second])]
    assert [each.is_upper_bound for each in found] == [True, False, False]
    assert found[-1].epsilon == max(together(A), together(B))
    assert "is_conditional" not in to_text(ledger.entries[0])[1]  # as before there were any


def test_of_two_draws_a_record_may_be_in_both_expensive_parts(tmp_path: Path) -> None:
    one, two = new_split(), new_split()
    runs = (A, (one, "train")), (B, (one, "holdout")), (B, (two, "train")), (A, (two, "holdout"))
    most = max(together(A, A), together(B, B))
    assert registered(new(tmp_path), *runs) == most > together(A, B)


def test_more_than_64_choices_all_add_up(tmp_path: Path) -> None:
    small = plan(8.0, 1, batch=N)
    runs = [(small, (f"split {k}", part)) for k in range(6) for part in ("a", "b")]
    assert registered(new(tmp_path), *runs) == together(*[small] * 6, rate=1.0)
    more = [*runs, (small, ("split 6", "a")), (small, ("split 6", "b"))]
    assert registered(Ledger(tmp_path / "more.sqlite"), *more) == together(*[small] * 14, rate=1.0)


def test_what_another_part_has_spent_does_not_make_a_run_adaptive(tmp_path: Path) -> None:
    """The results of a run that a record is not in depend on the record in no way."""
    ledger = new(tmp_path)
    train, holdout = ledger.part("s", "train"), ledger.part("s", "holdout")
    run_all(train, A)
    run_all(holdout, B)
    assert ledger.composition == "fixed"
    assert ledger.total(1e-5).epsilon == max(together(A), together(B))
    run_all(train, C)  # planned after A, on the same records
    odometer = Odometer(1e-5)
    for each in (A, C):
        for z in each.noise_multipliers:
            odometer.charge(float(z), M / N)
    assert ledger.composition == "adaptive"
    assert ledger.total(1e-5).epsilon == max(odometer.epsilon(), together(B))


def test_a_cap_is_kept_for_every_choice(tmp_path: Path) -> None:
    ledger = new(tmp_path)
    ledger.cap(1.2 * together(A), 1e-5)
    run_all(ledger.part("s", "train"), A)
    run_all(ledger.part("s", "holdout"), A)
    for refused in (ledger.part("s", "train"), ledger.part("s", "holdout"), ledger.part("t", "x")):
        with pytest.raises(BudgetExceededError, match="by a filter"):
            refused.register(A)
    with pytest.raises(BudgetExceededError, match="by a filter"):
        ledger.register(A)
    run_all(ledger.part("s", "third"), A)
    assert ledger.total(1e-5).epsilon <= 1.2 * together(A)


def test_a_mixture_of_two_parts_costs_at_most_the_larger() -> None:
    """δ(ε) by summation over a grid: r moves one of two releases, drawn with probability h."""
    mu, h, epsilon = (0.2, 1.0), 0.7, 0.6
    grid = np.arange(-9.0, 9.0, 0.02)
    x, y = np.meshgrid(grid, grid)

    def density(first: float, second: float) -> np.ndarray:
        found: np.ndarray = np.exp(-0.5 * ((x - first) ** 2 + (y - second) ** 2)) / (2 * np.pi)
        return found

    without = density(0.0, 0.0)
    with_r = h * density(0.0, mu[1]) + (1.0 - h) * density(mu[0], 0.0)
    smaller, larger = (gaussian_delta(each, epsilon) for each in mu)
    found = [
        float(np.maximum(p - np.exp(epsilon) * q, 0.0).sum() * 0.02**2)
        for p, q in ((with_r, without), (without, with_r))
    ]
    assert max(found) <= larger
    assert max(found) > 5.0 * smaller  # the cheaper part alone would be a wrong claim


def test_an_entry_without_a_part_is_as_before() -> None:
    entry = RunEntry("a", "f", "poisson", 0.1, (1.0,), 1.0, 1e-5, is_seeded=False, time="now")
    assert "split" not in to_text(entry)[1]
    assert "part" not in to_text(entry)[1]


def test_a_part_is_a_ledger_wherever_one_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = new(tmp_path)
    part = ledger.part("s", "train")
    copies = [copy.deepcopy(part), pickle.loads(pickle.dumps(part))]  # noqa: S301
    for each in copies:
        assert each.split_part == ("s", "train")
        each.close()
    data = torch.zeros(40, 3), torch.zeros(40, dtype=torch.int64)
    made = dither.Plan.from_noise_multipliers([9.0], delta=1e-5, dataset_size=40, batch_size=10)
    for run in (
        dither.Run(ledger=part),
        dither.Run(tmp_path / "a", ledger=part),
        dither.Run(tmp_path / "b", part=("s", "train")),
    ):
        dither.train(torch.nn.Linear(3, 2), data, made, run=run, progress=False)
    model = dither.estimators.PrivateLogisticRegression(
        classes=[0, 1], feature_norm=1.0, dataset_size=40, ledger=part, steps=1, epsilon=5.0
    )
    model.fit(np.ones((40, 2)), np.arange(40) % 2)
    assert [(run.entry.split, run.entry.part) for run in ledger.runs.values()] == [
        ("s", "train")
    ] * 3
    own = Ledger(tmp_path / "b", create=False)
    assert [run.entry.part for run in own.runs.values()] == ["train"]
    own.close()
    main(["ledger", "show", str(ledger.path)])
    shown = capsys.readouterr().out
    assert shown.count("train") == 3
    assert "the most expensive counts" in shown


def test_bad_arguments(tmp_path: Path) -> None:
    ledger = new(tmp_path)
    with pytest.raises(ValueError, match="split must be a name, got ''"):
        ledger.part("", "train")
    with pytest.raises(TypeError, match="part must be a str, got 3"):
        ledger.part("s", 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="part must be None unless the ledger is the one in"):
        dither.Run(part=("s", "train"))


def test_parts_of_runs_that_protect_users_are_of_users(tmp_path: Path) -> None:
    ledger, plans = new(tmp_path), (A.for_users(4), B.for_users(4))
    with pytest.raises(ValueError, match="split must be one of users for a run that protects us"):
        ledger.part(new_split(), "train").register(plans[0])
    split = new_split(users=True)
    found = registered(ledger, (plans[0], (split, "train")), (plans[1], (split, "holdout")))
    assert found == max(together(A), together(B))
    assert ledger.total(1e-5).unit == "user"


def test_a_run_directory_keeps_what_its_ledger_says(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "all.sqlite")
    data = torch.zeros(60, 3), torch.zeros(60, dtype=torch.int64)
    made = dither.plan(epsilon=2.0, delta=1e-3, dataset_size=60, batch_size=20, steps=2)
    run = dither.Run(tmp_path / "run", ledger=ledger.conditional().preplanned())
    dither.train(torch.nn.Linear(3, 2), data, made, run=run, progress=False)
    (entry,) = [each.entry for each in ledger.runs.values()]
    assert entry.is_conditional
    assert entry.is_preplanned
    assert not ledger.total(1e-3).is_upper_bound
