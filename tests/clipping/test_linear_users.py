"""The direct path of linear models for users, against a loop over users in double precision."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from dither.clipping import linear_users
from dither.clipping.clip import STABILIZER, Clip
from dither.clipping.linear import linear_clipped_sum
from dither.clipping.linear_rows import DenseRows, Rows, SparseRows
from dither.release import margin
from dither.training import hinge_loss, logistic_loss, softmax_loss, squared_loss
from dither.training.linear_losses import LinearLoss
from dither.types import CLIPPINGS

Counts = NDArray[np.int64]
COUNTS = np.sort(np.append(np.random.default_rng(2).integers(1, 21, 40), [1, 2, 1500]))
RECORDS = int(COUNTS.sum())
KINDS = ["softmax", "logistic", "hinge", "squares"]
BUILD: list[Callable[..., Rows]] = [
    DenseRows,
    lambda x, *more: SparseRows(sparse.csr_array(x.numpy()), *more),
]


def loss_of(kind: str) -> tuple[int, LinearLoss]:
    rng = np.random.default_rng(5)
    if kind == "softmax":
        return 4, softmax_loss(rng.integers(4, size=RECORDS), 4)
    if kind == "logistic":
        return 1, logistic_loss(rng.integers(2, size=RECORDS))
    if kind == "hinge":
        return 3, hinge_loss(rng.choice([-1.0, 1.0], size=(RECORDS, 3)))
    return 1, squared_loss(rng.normal(size=RECORDS))


def records(columns: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(RECORDS, columns, dtype=torch.float64, generator=generator)
    sizes = torch.logspace(-3, 2, RECORDS).double()
    return x * sizes[torch.randperm(RECORDS, generator=generator), None]


def one_by_one(
    x: Tensor, r: Tensor, counts: Counts, clip: Clip, weights: Tensor | None = None
) -> Tensor:
    """Return Σ w·clip(mean of x·rᵀ over a user's rows), with the mean weight."""
    total, x, r = torch.zeros(x.shape[1], r.shape[1]).double(), x.double(), r.double()
    for own in torch.arange(len(x)).split(counts.tolist()):
        mean = (x[own, :, None] * r[own, None]).mean(0)
        norm = float(mean.norm())
        factor = clip.norm / (norm + STABILIZER)
        if clip.mode == "flat":
            factor = min(1.0, clip.norm / norm) if norm else 1.0
        total += mean * factor * (1.0 if weights is None else float(weights[own].mean()))
    return total


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("columns", [3, 12, 70])
@pytest.mark.parametrize("build", BUILD, ids=["dense", "sparse"])
def test_equals_a_loop_over_users(
    build: Callable[..., Rows], columns: int, clipping: str, kind: str
) -> None:
    outputs, loss = loss_of(kind)
    x = records(columns)
    weight = torch.linspace(-1.0, 1.0, columns * outputs).view(columns, outputs).double()
    weights = torch.rand(RECORDS, generator=torch.Generator().manual_seed(1)).double()
    drawn = np.flatnonzero(np.repeat(np.arange(COUNTS.size) % 3 != 1, COUNTS))
    some = COUNTS[np.arange(COUNTS.size) % 3 != 1]
    for chosen, counts in ((np.arange(RECORDS), COUNTS), (drawn, some)):
        r = loss.gradients(x[chosen] @ weight, torch.from_numpy(chosen))
        for clip_norm in (1e-4, 0.3, 1e9):
            clip = Clip(clip_norm, clipping)
            rows = build(x, clip, weights, np.cumsum(COUNTS))
            truth = one_by_one(x[chosen], r, counts, clip, weights[chosen])
            found = linear_clipped_sum(rows, weight, loss.gradients, chosen, counts)
            difference = found.gradients["weight"] - truth
            assert float(difference.norm()) <= 1e-8 * float(truth.norm())


@pytest.mark.parametrize("build", BUILD, ids=["dense", "sparse"])
@pytest.mark.parametrize("has_short_rows", [True, False])
def test_single_precision_is_near_the_loop(
    has_short_rows: bool, build: Callable[..., Rows]
) -> None:
    counts = np.sort(np.random.default_rng(0).integers(1, 21, 100))
    x = torch.randn(int(counts.sum()), 70, generator=torch.Generator().manual_seed(1))
    loss = softmax_loss(np.arange(len(x)) % 4, 4)
    weight = torch.zeros(70, 4)
    ends = np.cumsum(counts) if has_short_rows else None
    rows = build(x, Clip(0.5), None, ends)
    assert len(rows.short) == (len(x) if has_short_rows else 0)
    truth = one_by_one(x, loss.gradients(x @ weight, slice(None)), counts, Clip(0.5))
    found = linear_clipped_sum(rows, weight, loss.gradients, np.arange(len(x)), counts)
    assert float((found.gradients["weight"] - truth).norm()) <= 1e-6 * float(truth.norm())


def test_the_comparison_rejects_row_level_clipping() -> None:
    _, loss = loss_of("softmax")
    x, clip = records(12), Clip(0.3)
    rows, weight = DenseRows(x, clip, None, np.cumsum(COUNTS)), torch.ones(12, 4).double()
    every = np.arange(RECORDS)
    truth = one_by_one(x, loss.gradients(x @ weight, slice(None)), COUNTS, clip)

    def by_rows(rows: Rows, taken: Any, r: Tensor, part: Any, counts: Counts) -> Tensor:
        shares = torch.from_numpy(np.repeat(1.0 / counts, counts))[:, None]
        factors = clip.factors(r.norm(dim=1) * rows.norms[part])[:, None]
        return rows.transposed_matmul(taken, r * factors * shares)

    with patch("dither.clipping.linear.users_sum", by_rows):
        wrong = linear_clipped_sum(rows, weight, loss.gradients, every, COUNTS)
    assert float((wrong.gradients["weight"] - truth).norm()) > 0.1 * float(truth.norm())


def test_users_with_one_row_each_are_records() -> None:
    _, loss = loss_of("softmax")
    rows, weight = DenseRows(records(12), Clip(0.3)), torch.ones(12, 4).double()
    chosen = np.arange(0, RECORDS, 3)
    one, other = (
        linear_clipped_sum(rows, weight, loss.gradients, chosen, *counts).gradients["weight"]
        for counts in ((), (np.ones_like(chosen),))
    )
    assert torch.equal(one, other)


def test_some_rows_of_a_user_are_a_smaller_user() -> None:
    """Short rows are made for all rows of a user, of which a step may take a few."""
    _, loss = loss_of("logistic")
    x, clip = records(70), Clip(0.3)
    rows, weight = DenseRows(x, clip, None, np.cumsum(COUNTS)), torch.ones(70, 1).double()
    counts = np.minimum(COUNTS, 3)
    firsts = np.cumsum(COUNTS) - COUNTS
    pairs = zip(firsts, COUNTS, counts, strict=True)
    chosen = np.concatenate([a + np.arange(n)[-k:] for a, n, k in pairs])
    order = np.argsort(counts, kind="stable")
    assert (order == np.arange(order.size)).all()
    truth = one_by_one(
        x[chosen], loss.gradients(x[chosen] @ weight, torch.from_numpy(chosen)), counts, clip
    )
    found = linear_clipped_sum(rows, weight, loss.gradients, chosen, counts)
    assert torch.allclose(found.gradients["weight"], truth, rtol=1e-8)


def rows_of_user(kind: str, count: int, columns: int, outputs: int) -> tuple[Tensor, Tensor]:
    """Return rows and logit gradients of a user, in double precision."""
    generator = torch.Generator().manual_seed(count)
    x = torch.randn(count, columns, generator=generator).double()
    r = torch.randn(count, outputs, generator=generator).double()
    if kind == "aligned":
        return x[:1].expand(count, -1), r[:1].expand(count, -1) * 5.0
    if kind == "huge":
        return x * 1e12, r * 1e9
    if kind == "too long":
        return x * 1e33, r
    if kind == "tiny":
        return x * 1e-22, r * 1e25
    if kind == "cancelling":  # but for one part in a million
        signs = (-1.0) ** torch.arange(count)
        return 1e4 * (x[:1] * signs[:, None] + 1e-6 * x), r[:1].expand(count, -1)
    bad = torch.zeros(count, 1).double()
    bad[count // 2] = {"nan": torch.nan, "infinite": torch.inf}[kind]
    return x, r + bad


@settings(max_examples=150)
@given(
    st.sampled_from(["aligned", "huge", "too long", "tiny", "cancelling", "nan", "infinite"]),
    st.integers(1, 40),
    st.sampled_from([3, 12, 70]),
    st.sampled_from([1, 3]),
    st.floats(1e-3, 1e3),
    st.sampled_from(CLIPPINGS),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from(BUILD),
    st.booleans(),
)
def test_no_user_moves_the_sum_by_more_than_the_clip_norm(
    kind: str, count: int, columns: int, outputs: int, clip_norm: float, clipping: str,
    dtype: torch.dtype, build: Callable[..., Rows], has_short_rows: bool,
) -> None:  # fmt: skip
    sizes = [1, 1, 2, 5, 5, 9]
    place = int(np.searchsorted(sizes, count))
    counts = np.insert(sizes, place, count)
    parts = [rows_of_user("aligned", size, columns, outputs) for size in sizes]
    parts.insert(place, rows_of_user(kind, count, columns, outputs))
    x, r = (torch.cat(each).to(dtype) for each in zip(*parts, strict=True))
    ends = np.cumsum(counts) if has_short_rows else None
    rows = build(x, Clip(clip_norm, clipping), None, ends)

    def total(chosen: Any, counts: Counts) -> Tensor:
        return linear_clipped_sum(
            rows, torch.zeros(columns, outputs, dtype=dtype), lambda _, i: r[i], chosen, counts
        ).gradients["weight"]

    every = np.arange(len(x))
    owners = np.repeat(np.arange(counts.size), counts)
    change = total(every, counts) - total(every[owners != place], np.delete(counts, place))
    assert torch.isfinite(change).all()
    # `release.margin` pays for 1e-3.
    assert float(change.norm()) <= clip_norm * (1.0 + 1e-4)
    if kind in ("nan", "infinite") and count > 1:
        assert float(change.norm()) <= 1e-5 * clip_norm
    if kind == "aligned":
        norm = float(torch.outer(x[owners == place][0], r[owners == place][0]).norm())
        clipped = min(norm, clip_norm)
        if clipping == "automatic":
            clipped = clip_norm * norm / (norm + STABILIZER)
        assert float(change.norm()) == pytest.approx(clipped, rel=1e-4, abs=1e-5 * clip_norm)


def test_rows_that_cancel_would_be_lost_in_rounding_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, r = (each.float() for each in rows_of_user("cancelling", 20, 70, 3))
    truth = one_by_one(x, r, np.array([20]), Clip(0.01))

    def error() -> float:
        rows = DenseRows(x, Clip(0.01), None, np.array([20]))
        found = linear_clipped_sum(
            rows, torch.zeros(70, 3), lambda _, i: r[i], np.arange(20), np.array([20])
        )
        return float(found.gradients["weight"].norm() / truth.norm() - 1.0)

    assert abs(error()) < 1e-5
    monkeypatch.setattr(linear_users, "_CANCELLING", 1e9)
    assert abs(error()) > 0.1


def test_sums_of_aligned_users_in_single_precision() -> None:
    """Within what `release.margin` pays for."""
    users, count, columns = 4000, 5, 70
    loss = logistic_loss(np.zeros(users * count, np.int64))
    x = 3.0 - 0.3 * torch.rand(users * count, columns, generator=torch.Generator().manual_seed(0))
    weight, ends = torch.ones(columns, 1), np.arange(1, users + 1) * count
    rows = DenseRows(x, Clip(1.0), None, ends)

    def total(users: NDArray[np.int64]) -> Tensor:
        chosen = (users[:, None] * count + np.arange(count)).ravel()
        counts = np.full(users.size, count)
        return linear_clipped_sum(rows, weight, loss.gradients, chosen, counts).gradients["weight"]

    every = np.arange(users)
    for rest in (every[1:], every[:-1], np.delete(every, 1000)):
        assert float((total(every) - total(rest)).norm()) <= 1.0 + margin(users)


def test_an_empty_draw_is_zero() -> None:
    rows = DenseRows(torch.randn(5, 3), Clip(1.0), None, np.array([2, 5]))
    nothing = np.zeros(0, np.int64)
    found = linear_clipped_sum(rows, torch.ones(3, 1), lambda s, _: s, nothing, nothing)
    assert not found.gradients["weight"].any()
