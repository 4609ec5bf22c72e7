"""The direct path of linear models against the reference, record by record."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from torch import Tensor, nn
from torch.nn import functional

from dither.clipping import clipped_sum
from dither.clipping.clip import Clip
from dither.clipping.linear import DenseRows, LogitGradients, SparseRows, linear_clipped_sum
from dither.training import linear as by_score
from dither.types import CLIPPINGS

RECORDS, COLUMNS = 300, 7


def hinge(scores: Tensor, signs: Tensor) -> Tensor:
    margin = signs * scores
    between = (1.5 - margin).square() / 2.0
    return torch.where(margin > 1.5, 0.0, torch.where(margin < 0.5, 1.0 - margin, between)).sum(1)


def cross_entropy(scores: Tensor, classes: Tensor) -> Tensor:
    return functional.cross_entropy(scores, classes, reduction="none")


def logistic(scores: Tensor, classes: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(
        scores[:, 0], classes.double(), reduction="none"
    )


def half_squares(scores: Tensor, values: Tensor) -> Tensor:
    return (scores - values).square().sum(1) / 2.0


def targets(kind: str) -> tuple[int, Tensor, LogitGradients, Callable[[Tensor, Tensor], Tensor]]:
    """Return outputs, targets, the logit_gradients that are tested, and the loss for autograd."""
    rng = np.random.default_rng(5)
    if kind == "softmax":
        y = rng.integers(4, size=RECORDS)
        return 4, torch.from_numpy(y), by_score.softmax_logit_gradients(y), cross_entropy
    if kind == "logistic":
        y = rng.integers(2, size=RECORDS)
        return 1, torch.from_numpy(y), by_score.logistic_logit_gradients(y), logistic
    if kind == "hinge":
        signs = rng.choice([-1.0, 1.0], size=(RECORDS, 3))
        return 3, torch.from_numpy(signs), by_score.hinge_logit_gradients(signs), hinge
    values = rng.normal(size=(RECORDS, 2))
    return 2, torch.from_numpy(values), by_score.squared_logit_gradients(values), half_squares


def records() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(RECORDS, COLUMNS, dtype=torch.float64, generator=generator)
    return x * torch.logspace(-3, 2, RECORDS).double()[:, None]  # short and long ones


@pytest.mark.parametrize("kind", ["softmax", "logistic", "hinge", "squares"])
@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("clip_norm", [1e-4, 0.1, 3.0, 1e9])
def test_equals_the_reference(kind: str, clip_norm: float, clipping: str) -> None:
    outputs, y, logit_gradients, loss = targets(kind)
    x = records()
    model = nn.Linear(COLUMNS, outputs, bias=False).double()
    how: Any = {"clip_norm": clip_norm, "clipping": clipping, "engine": "reference"}
    clip = Clip(clip_norm, clipping)
    drawn = np.flatnonzero(np.arange(RECORDS) % 3 != 1)
    weight = model.weight.detach().T
    for chosen in (np.arange(RECORDS), drawn):
        some = torch.from_numpy(chosen)
        truth = clipped_sum(model, loss, x[some], y[some], **how)
        scale = float(truth.gradients["weight"].abs().max())
        for rows in (DenseRows(x), SparseRows(sparse.csr_array(x.numpy()))):
            found = linear_clipped_sum(rows, weight, logit_gradients, chosen, clip)
            difference = found.gradients["weight"].T - truth.gradients["weight"]
            assert float(difference.abs().max()) <= 1e-10 * max(1.0, scale)
            assert torch.allclose(found.norms, truth.norms, rtol=1e-10, atol=1e-12)


def test_the_comparison_finds_gradients_that_are_not_clipped() -> None:
    outputs, y, logit_gradients, loss = targets("softmax")
    x = records()
    model = nn.Linear(COLUMNS, outputs, bias=False).double()
    truth = clipped_sum(model, loss, x, y, clip_norm=0.1, engine="reference")
    every = np.arange(RECORDS)
    loose = linear_clipped_sum(
        DenseRows(x), model.weight.detach().T, logit_gradients, every, Clip(0.11)
    )
    assert float((loose.gradients["weight"].T - truth.gradients["weight"]).abs().max()) > 1e-3


@given(
    st.integers(0, 9),
    st.floats(1e-3, 1e3),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from(CLIPPINGS),
)
def test_no_record_adds_more_than_the_clip_norm(
    record: int, clip_norm: float, dtype: torch.dtype, clipping: str
) -> None:
    x = records()[::30].to(dtype)
    y = np.arange(10) % 3
    weight = torch.ones(COLUMNS, 3, dtype=dtype)

    def total(chosen: Any) -> Tensor:
        logit_gradients = by_score.softmax_logit_gradients(y)
        found = linear_clipped_sum(
            DenseRows(x), weight, logit_gradients, chosen, Clip(clip_norm, clipping)
        )
        return found.gradients["weight"]

    change = total(np.arange(10)) - total(np.delete(np.arange(10), record))
    # `release.margin` pays for 1e-3; sums of ten in float32 err by less than 1e-5.
    assert float(change.norm()) <= clip_norm * (1.0 + 1e-5) + 1e-9


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_one_bad_record_leaves_the_others_alone(bad: float, clipping: str) -> None:
    clip = Clip(0.5, clipping)
    x = torch.randn(20, 3)
    x[7, 1] = bad
    y = np.arange(20) % 2
    weight = torch.randn(3, 1)
    good = np.delete(np.arange(20), 7)
    logit_gradients = by_score.logistic_logit_gradients(y)
    alone = linear_clipped_sum(DenseRows(x), weight, logit_gradients, good, clip).gradients[
        "weight"
    ]
    for rows in (DenseRows(x), SparseRows(sparse.csr_array(x.numpy()))):
        found = linear_clipped_sum(rows, weight, logit_gradients, np.arange(20), clip)
        assert torch.isfinite(found.gradients["weight"]).all()
        assert float((found.gradients["weight"] - alone).norm()) <= 0.5 * (1.0 + 1e-5)


def test_an_empty_draw_is_zero() -> None:
    rows = DenseRows(torch.randn(5, 3))
    logit_gradients = by_score.squared_logit_gradients(np.zeros((5, 1)))
    none = linear_clipped_sum(
        rows, torch.ones(3, 1), logit_gradients, np.zeros(0, np.int64), Clip(1.0)
    )
    assert none.gradients["weight"].shape == (3, 1)
    assert not none.gradients["weight"].any()


def test_many_microbatches_are_one_sum() -> None:
    x, y = torch.randn(10_000, 3, dtype=torch.float64), np.zeros((10_000, 1))
    logit_gradients, weight = (
        by_score.squared_logit_gradients(y),
        torch.ones(3, 1, dtype=torch.float64),
    )
    found = linear_clipped_sum(DenseRows(x), weight, logit_gradients, np.arange(10_000), Clip(1e9))
    assert torch.allclose(found.gradients["weight"], x.T @ (x @ weight), rtol=1e-11)


@pytest.mark.parametrize("tiny", [1e-25, 1e-22, 1e-19])
@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_squares_that_vanish_in_single_precision_are_not_missed(tiny: float, clipping: str) -> None:
    x = torch.full((1, 3), tiny)
    for rows in (DenseRows(x), SparseRows(sparse.csr_array(x.numpy()))):
        found = linear_clipped_sum(
            rows,
            torch.zeros(3, 1),
            lambda s, _: torch.full_like(s, 1e30),
            np.arange(1),
            Clip(1.0, clipping),
        )
        assert float(found.gradients["weight"].norm()) <= 1.0 + 1e-5


def test_norms_of_a_million_columns_do_not_stagnate() -> None:
    rows = DenseRows(torch.full((1, 10**6), 0.1))
    logit_gradients = by_score.squared_logit_gradients(np.ones((1, 1)))
    found = linear_clipped_sum(
        rows, torch.zeros(10**6, 1), logit_gradients, np.arange(1), Clip(1.0)
    )
    assert float(found.gradients["weight"].norm()) <= 1.0 + 1e-5


@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize(
    ("dtype", "row", "residual"),
    [
        (torch.float32, 1e22, 1e23),  # the factor, 1e-45, is no number of float32
        (torch.float32, 1e30, 1e-30),
        (torch.float32, 1e-40, 1e38),  # the residual times 100 overflows
        (torch.float32, 3e38, 3e38),
        (torch.float64, 1e200, 1e-200),  # squares of the residual vanish in float64
        (torch.float64, 1e-200, 1e200),
    ],
)
def test_products_of_large_and_small_numbers(
    dtype: torch.dtype, row: float, residual: float, clipping: str
) -> None:
    """Clipped like any others, and another record is left as it is."""
    x = torch.tensor([[row, -row], [0.6, 0.8]], dtype=dtype)
    residuals = torch.tensor([[residual], [1.0]], dtype=dtype)
    for C in (1e-8, 1e-2, 1.0, 1e3):
        found = linear_clipped_sum(
            DenseRows(x), x.new_zeros(2, 1), lambda s, i: residuals[i], np.arange(2),
            Clip(C, clipping),
        )  # fmt: skip
        other = min(C, 1.0) if clipping == "flat" else C / 1.01
        rest = found.gradients["weight"][:, 0] - other * x[1]
        assert float(rest.norm()) <= C * (1.0 + 1e-4)  # a tenth of what `release.margin` pays for


def test_a_factor_in_float32_alone_would_be_found() -> None:
    factor = torch.tensor(1.0 / (2**0.5 * 1e45), dtype=torch.float64).float()
    row, residual = torch.tensor([1e22, -1e22]).double(), 1e23
    assert float((row * residual * factor.double()).norm()) > 1.5
