"""Training of linear models on users: descent on their means, what is released, what is drawn."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from scipy import sparse, stats
from torch import Tensor

import dither
from dither import Plan
from dither.accounting import BudgetExceededError
from dither.clipping.clip import Clip
from dither.ledger import Ledger
from dither.progress import Progress
from dither.training.linear import _moments, _Steps, train_linear
from dither.training.linear_losses import LinearLoss, logistic_loss, softmax_loss, squared_loss
from dither.training.users import Users

COUNTS = np.random.default_rng(1).integers(1, 12, 30)
IDS = np.random.default_rng(2).permutation(np.repeat(np.arange(COUNTS.size), COUNTS))
RECORDS, USERS = IDS.size, COUNTS.size
ALL: dict[str, Any] = {"dataset_size": USERS, "batch_size": USERS}
nothing = LinearLoss(lambda scores, _: torch.zeros_like(scores))


def records(columns: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(RECORDS, columns, dtype=torch.float64, generator=generator)


def quiet(steps: int, **more: Any) -> Plan:
    return Plan.unsafe_without_noise(steps=steps, **{**ALL, "stepsizes": [0.5] * steps, **more})


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("clip_norm", [0.2, 1e9])
def test_without_noise_it_is_descent_on_clipped_means_of_users(
    clip_norm: float, is_sparse: bool
) -> None:
    x, y = records(), np.random.default_rng(0).normal(size=RECORDS)
    weights = torch.rand(RECORDS, generator=torch.Generator().manual_seed(0))
    plan = quiet(5, clip_norm=clip_norm)
    result = train_linear(
        sparse.csr_array(x.numpy()) if is_sparse else x, squared_loss(y), plan, outputs=1,
        momentum=0.0, averaging=None, constant=0.7, users=IDS, rows_per_user=99,
        record_weights=weights,
    )  # fmt: skip
    parameters = [each.detach().numpy() for each in result.model.parameters()]
    columns = np.hstack([x.numpy(), np.full((RECORDS, 1), 0.7)])
    weight = np.zeros(4)
    for eta in plan.stepsizes:
        total = np.zeros(4)
        for user in range(USERS):
            own = np.flatnonzero(user == IDS)
            mean = (columns[own] * (columns[own] @ weight - y[own])[:, None]).mean(0)
            mean *= min(1.0, clip_norm / np.linalg.norm(mean)) * float(weights[own].double().mean())
            total += mean
        weight -= eta * total / USERS
    np.testing.assert_allclose(parameters[0][0], weight[:3], rtol=1e-7)
    np.testing.assert_allclose(parameters[1], 0.7 * weight[3:], rtol=1e-7)
    assert (result.plan.unit, result.bound.unit, result.plan.rows_per_user) == ("user", "user", 99)


def test_records_without_a_user_are_left_out_or_their_own() -> None:
    x, y = records(), np.random.default_rng(0).normal(size=RECORDS)
    ids = [None if each == 4 else f"user {each}" for each in IDS]
    kept = IDS != 4

    def weight(rows: Any, users: Any, missing: str = "drop") -> Tensor:
        trained = train_linear(
            x[rows], squared_loss(y[rows]), quiet(3), outputs=1, rows_per_user=99, users=users,
            missing=missing,
        )  # fmt: skip
        return next(trained.model.parameters()).detach()

    dropped, own = weight(slice(None), ids), weight(slice(None), ids, "own")
    assert torch.allclose(dropped, weight(kept, IDS[kept]), rtol=1e-9)
    each = np.where(IDS == 4, np.arange(1000, 1000 + RECORDS), IDS)
    assert torch.allclose(own, weight(slice(None), each), rtol=1e-9)
    assert not torch.allclose(own, dropped, rtol=1e-3)


def steps(plan: Plan, most: int = 99) -> _Steps:
    """Return a run that is about to release means; users are in the order of `by_count`."""
    users = Users.of(IDS, rows_per_user=most).by_count()
    users = replace(users, rows=np.arange(RECORDS))
    bar = Progress("", plan.steps, shown=False)
    return _Steps(plan.for_users(most), USERS, 1, None, bar, users)


def test_released_means_are_means_over_users() -> None:
    x = torch.nn.functional.normalize(records())
    y = np.random.default_rng(0).integers(3, size=RECORDS)
    loss = softmax_loss(y, 3)
    users = Users.of(IDS, rows_per_user=99).by_count()
    ordered = users.rows
    run = steps(quiet(2))
    mean, scale, intercept = _moments(
        x[ordered].float(), loss.select(torch.from_numpy(ordered)), None, run, 1
    )
    own = [np.flatnonzero(user == IDS) for user in range(USERS)]
    truth = torch.stack([x[rows].mean(0) for rows in own]).mean(0)
    assert torch.allclose(mean, truth, atol=1e-6)
    assert scale**2 == pytest.approx(1.0 - float(truth.square().sum()), rel=1e-5)
    shares = np.mean([np.bincount(y[rows], minlength=3) / rows.size for rows in own], axis=0)
    logs = np.log(shares)
    assert isinstance(intercept, Tensor)
    np.testing.assert_allclose(intercept.numpy(), logs - logs.mean(), rtol=1e-5)


def test_what_a_user_adds_to_the_means_is_not_clipped() -> None:
    """All rows as long as can be: the mean of vectors of norm at most 1 has norm at most 1."""
    x = 2.0 * torch.nn.functional.normalize(records()).float()
    x[:] = x[:1]
    run = steps(quiet(2))
    with patch.object(run, "release", wraps=run.release) as watched:
        _moments(x, logistic_loss(np.zeros(RECORDS, int)), None, run, 1)
    rows, _, ones = watched.call_args.args
    drawn = np.arange(RECORDS), np.sort(COUNTS)
    found = dither.clipping.linear.linear_clipped_sum(
        rows, torch.zeros(rows.columns, 1), ones, *drawn
    )
    assert rows.clip == Clip(1.0)
    assert float(found.gradients["weight"].norm()) == pytest.approx(USERS, rel=1e-5)


@pytest.mark.parametrize("noise", ["uniform", "correlated"])
def test_users_are_drawn_and_at_most_so_many_of_their_rows(
    noise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws: list[tuple[Any, Any]] = []
    real = dither.clipping.linear.linear_clipped_sum

    def watched(rows: Any, weight: Any, gradients: Any, records: Any, counts: Any) -> Any:
        draws.append((records, counts))
        return real(rows, weight, gradients, records, counts)

    monkeypatch.setattr("dither.training.linear.linear_clipped_sum", watched)
    counts = np.tile([1, 2, 3, 9], 250)
    ids = np.repeat(np.arange(1000), counts)
    how: dict[str, Any] = (
        {"noise": dither.noise.Correlated(bands=4)} if noise == "correlated" else {}
    )
    plan = dither.plan(epsilon=3.0, delta=1e-4, dataset_size=1000, batch_size=100, steps=20, **how)
    result = train_linear(
        torch.zeros(ids.size, 2), nothing, plan, outputs=1, users=ids, rows_per_user=4, seed=0
    )
    assert result.plan.sampling == ("cyclic" if noise == "correlated" else "poisson")
    sizes = [taken.size for _, taken in draws]
    assert stats.binomtest(sum(sizes), 20_000, 0.1).pvalue > 1e-3
    assert len({*sizes}) > 5
    sorted_counts = np.sort(counts)
    ends = np.cumsum(sorted_counts)
    full = []
    for rows, taken in draws:
        owners = np.searchsorted(ends, rows, side="right")
        found, of_each = np.unique(owners, return_counts=True)
        assert (of_each == taken).all()
        assert (taken == np.minimum(sorted_counts[found], 4)).all()
        assert np.unique(rows).size == rows.size
        full += (rows - (ends - sorted_counts)[owners])[sorted_counts[owners] == 9].tolist()
    assert stats.chisquare(np.bincount(full, minlength=9)).pvalue > 1e-3  # all rows alike


def test_the_ledger_has_the_unit(tmp_path: Path) -> None:
    plan = dither.plan(epsilon=3.0, delta=1e-3, dataset_size=USERS, batch_size=10, steps=5)
    ledger = Ledger(tmp_path / "spent.sqlite")
    train_linear(records(), nothing, plan, outputs=1, users=IDS, ledger=ledger)
    assert ledger.total(1e-3).unit == "user"
    with pytest.raises(BudgetExceededError, match="protects records, but the ledger has runs that"):
        train_linear(records()[:USERS], nothing, plan, outputs=1, ledger=ledger)


def test_numbers_that_are_warned_of_are_those_of_users() -> None:
    plan = dither.plan(epsilon=3.0, delta=1e-3, dataset_size=RECORDS, batch_size=10, steps=3)
    with pytest.warns(UserWarning, match="another number of users than the plan"):
        train_linear(records(), nothing, plan, outputs=1, users=IDS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"users": IDS[1:]}, "users must have one id per record"),
        ({"users": IDS, "rows_per_user": 0}, "rows_per_user must be an integer of at least 1"),
        ({"rows_per_user": 3}, "rows_per_user must be left out where no users are given"),
        ({"missing": "own"}, "missing must be left out where no users are given"),
    ],
)
def test_refusals(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train_linear(records(), nothing, quiet(2), outputs=1, **given)
    with pytest.raises(ValueError, match="users must be given for a plan that protects users"):
        train_linear(records(), nothing, quiet(2).for_users(3), outputs=1)
