"""No record contributes more than its clip norm, whatever rounding does."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clipping.comparing import by_loop, cross_entropy, distance, quietly
from torch import Tensor, nn

from dither.clipping import clipped_sum
from dither.types import CLIPPINGS

PAID = 1e-4
"""What a record may contribute beyond the clip norm: a tenth of what `release.margin` pays for."""


BOTH = pytest.mark.parametrize("clipping", CLIPPINGS)


def contribution(model: nn.Module, x: Tensor, clip_norm: float, clipping: str = "flat") -> float:
    """What one record contributes in truth: its clip factor times its gradient in float64."""
    ordinary = torch.randn(2, *x.shape[1:])
    how: dict[str, Any] = {"clip_norm": clip_norm, "clipping": clipping}
    clipped_sum(model, weighted_outputs, ordinary, None, **how)
    total = clipped_sum(model, weighted_outputs, x, None, **how)
    exact = copy.deepcopy(model).double()
    value = weighted_outputs(exact(x.double()), None).sum()
    gradients = torch.autograd.grad(value, list(exact.parameters()))
    whole = torch.cat([g.flatten() for g in gradients])
    found = torch.cat([t.flatten().double() for t in total.gradients.values()])
    return float(found @ whole / whole.norm()) / clip_norm


def weighted_outputs(outputs: Tensor, targets: None) -> Tensor:
    """The gradient with respect to term t of the outputs is ±1: large terms cancel."""
    terms = outputs.shape[1]
    signs = torch.ones(terms, dtype=outputs.dtype)
    signs[terms // 2 :] = -1.0
    return (outputs * signs[:, None]).sum((1, 2))


@settings(max_examples=60)
@given(
    st.integers(1, 700),
    st.sampled_from([(3, 2), (60, 3), (90, 80), (1500, 2)]),
    st.floats(0.3, 2.0),
    st.floats(-6.0, 0.0),
    st.booleans(),
    st.sampled_from(CLIPPINGS),
)
def test_no_record_contributes_more_than_the_clip_norm(
    terms: int,
    shape: tuple[int, int],
    value: float,
    closeness: float,
    noisy: bool,
    clipping: str,
) -> None:
    """Equal terms, whose rounding errors pile up, and halves that all but cancel each other."""
    torch.manual_seed(terms)
    model = nn.Linear(*shape, bias=False)
    x = torch.full((1, terms, shape[0]), value)
    x = x + 0.1 * torch.randn_like(x) if noisy else x
    half = terms // 2
    x[:, terms - half :] = x[:, :half] * (1.0 - 10.0**closeness)
    assert contribution(model, x, 0.5, clipping) <= 1.0 + PAID


@pytest.mark.parametrize("shape", [(60, 3), (20, 3), (8, 8), (12, 300), (16, 16), (100, 200)])
@pytest.mark.parametrize(("terms", "value"), [(491, 0.625), (1468, 1.375), (5816, 1.51766943)])
@BOTH
def test_equal_terms_do_not_pile_up(
    shape: tuple[int, int], terms: int, value: float, clipping: str
) -> None:
    """Narrow products add up all of their terms in a single run: thousands of roundings."""
    model = nn.Linear(*shape, bias=False)
    x = torch.full((1, terms, shape[0]), value)
    half = terms // 2
    x[:, terms - half :] = x[:, :half] * 0.9
    assert contribution(model, x, 0.5, clipping) <= 1.0 + PAID


def test_a_single_run_of_a_narrow_product_would_be_found() -> None:
    left, right = torch.ones(5816, 3), torch.full((5816, 20), 1.51766943)
    left[2908:], right[2908:] = -1.0, 0.9 * right[2908:]
    exact = left.double().t() @ right.double()
    single_run = torch.zeros(3, 20)
    for one, two in zip(left, right, strict=True):
        single_run += torch.outer(one, two)
    assert float((single_run - exact).norm() / exact.norm()) > 2.0 * PAID


@BOTH
def test_the_constructed_record_of_which_inner_products_lose_the_norm(clipping: str) -> None:
    """In float32, T × T inner products of this record give a negative squared norm."""
    torch.manual_seed(3)
    base, tiny = torch.randn(1, 1, 512) * 300.0, torch.randn(1, 2, 512) * 0.1
    x = torch.cat([base, base], dim=1) + tiny
    model = nn.Linear(512, 256, bias=False)
    left = torch.ones(2, 256) * torch.tensor([[1.0], [-1.0]])
    naive = ((x[0] @ x[0].t()) * (left @ left.t())).sum()
    assert abs(float(naive) - 256 * float((x[0, 0] - x[0, 1]).double().square().sum())) > 100.0
    norm = 16.0 * float((x[0, 0] - x[0, 1]).double().norm())
    expected = 1.0 if clipping == "flat" else norm / (norm + 0.01)
    assert contribution(model, x, 1.0, clipping) == pytest.approx(expected, abs=1e-5)


def test_the_rounding_test_would_find_a_naive_norm() -> None:
    """A norm of float32 inner products lets a record of the kind above through."""
    torch.manual_seed(3)
    base, tiny = torch.randn(1, 1, 512) * 300.0, torch.randn(1, 2, 512) * 0.1
    x = torch.cat([base, base], dim=1) + tiny
    left = (torch.ones(2, 256) * torch.tensor([[1.0], [-1.0]]))[None]
    gradient = left.transpose(1, 2).double() @ x.double()
    naive = ((x @ x.transpose(1, 2)) * (left @ left.transpose(1, 2))).sum((1, 2))
    factor = (1.0 / naive.clamp(min=0.0).sqrt()).clamp(max=1.0)
    assert abs(float(factor) * float(gradient.norm()) - 1.0) > 1e-2


def share(
    model: nn.Module, loss: Any, ordinary: Any, inputs: Any, clip_norm: float, clipping: str
) -> float:
    """What one record contributes, relative to the clip norm, after an ordinary batch."""
    how = {"clip_norm": clip_norm, "clipping": clipping}
    quietly(model, loss, ordinary, None, **how)
    total = quietly(model, loss, inputs, None, **how)
    exact = copy.deepcopy(model).double()
    wide = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    gradients = torch.autograd.grad(loss(exact(*wide), None).sum(), list(exact.parameters()))
    true = float(torch.cat([g.flatten() for g in gradients]).norm())
    assert true > clip_norm
    found = float(torch.cat([t.flatten().double() for t in total.gradients.values()]).norm())
    return found / clip_norm


class Scaled(nn.Module):
    def __init__(self, width: int, height: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, height, bias=False)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.layer(x) * scale


def summed(outputs: Tensor, targets: None) -> Tensor:
    return outputs.flatten(1).sum(1)


@pytest.mark.parametrize(
    ("large", "small", "clip_norm"),
    [(9e18, 2.6e-23, 1e-3), (1e15, 1e-21, 1e-5), (1.0, 1e-12, 1e-11)],
)
@BOTH
def test_squares_that_vanish_in_float32_are_not_forgotten(
    large: float, small: float, clip_norm: float, clipping: str
) -> None:
    model = Scaled(4, 1000)
    ordinary = torch.randn(4, 4), torch.rand(4, 1000) + 0.5
    record = torch.full((1, 4), large), torch.full((1, 1000), small)
    assert share(model, summed, ordinary, record, clip_norm, clipping) <= 1.0 + PAID


class Bag(nn.Module):
    """Rows of a table, times weights that may cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 6)

    def forward(self, ids: Tensor, weights: Tensor) -> Tensor:
        return (self.table(ids) * weights).sum(1)


@pytest.mark.parametrize("size", [1e3, 1e5, 1e7])
@BOTH
def test_a_token_whose_gradients_cancel(size: float, clipping: str) -> None:
    torch.manual_seed(0)
    weights = size * torch.randn(1, 2, 6)
    weights[:, 1] = torch.randn(6) - weights[:, 0]
    ids = torch.zeros(1, 2).long()
    ordinary = torch.randint(5, (4, 2)), torch.randn(4, 2, 6)
    assert share(Bag(), summed, ordinary, (ids, weights), 0.5, clipping) <= 1.0 + PAID


@pytest.mark.parametrize("terms", [1734, 20_000])
@BOTH
def test_a_token_that_is_repeated_very_often(terms: int, clipping: str) -> None:
    weights = torch.full((1, terms, 6), 0.3)
    ordinary = torch.randint(5, (4, terms)), torch.rand(4, terms, 6)
    record = torch.ones(1, terms).long(), weights
    assert share(Bag(), summed, ordinary, record, 0.5, clipping) <= 1.0 + PAID


class Difference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(30, 20, bias=False)

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        return self.layer(one) - self.layer(two)


@pytest.mark.parametrize("offset", [1e3, 1e5])
@BOTH
def test_a_layer_used_twice_whose_gradients_cancel(offset: float, clipping: str) -> None:
    torch.manual_seed(0)
    one = offset + torch.randn(1, 30)
    ordinary = torch.randn(4, 30), torch.randn(4, 30)
    record = one, one + torch.randn(1, 30)
    assert share(Difference(), summed, ordinary, record, 0.5, clipping) <= 1.0 + PAID


@pytest.mark.parametrize("offset", [1e3, 1e5])
def test_a_convolution_beside_a_record_that_is_not_finite(offset: float) -> None:
    torch.manual_seed(0)

    class Convolved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv1d(4, 4, 3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            out = self.layer(x)
            return out * torch.cos(3.1 * torch.arange(out.shape[2], dtype=out.dtype))

    model = Convolved()
    x = offset + torch.randn(2, 4, 64)
    quietly(model, summed, torch.randn(3, 4, 64), None, clip_norm=0.5)
    alone = clipped_sum(model, summed, x[:1], None, clip_norm=0.5)
    x[1] = torch.nan
    beside = clipped_sum(model, summed, x, None, clip_norm=0.5)
    assert distance(beside.gradients, alone.gradients) < 1e-5


def test_float64_keeps_its_precision_when_terms_cancel() -> None:
    torch.manual_seed(0)
    model = nn.Linear(300, 200, bias=False).double()
    x = 1.0 + 0.1 * torch.randn(3, 20, 300).double()

    def alternating(outputs: Tensor, targets: None) -> Tensor:
        signs = 1.0 - 2.0 * (torch.arange(20) % 2)
        return (outputs * signs[:, None]).sum((1, 2))

    total = clipped_sum(model, alternating, x, None, clip_norm=0.1)
    expected, _ = by_loop(model, alternating, x, None, 0.1, 3)
    assert distance(total.gradients, expected) < 1e-10


def test_autocast_around_the_call_does_not_reach_the_sums() -> None:
    torch.manual_seed(0)
    model = nn.Linear(64, 10)
    x, y = torch.randn(300, 64), torch.randint(10, (300,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        quietly(model, cross_entropy, x, y, clip_norm=0.1)
        for record in range(20):
            one = slice(record, record + 1)
            for engine in ("fast", "reference"):
                total = quietly(model, cross_entropy, x[one], y[one], clip_norm=0.1, engine=engine)
                norm = torch.cat([t.flatten() for t in total.gradients.values()]).norm()
                assert float(norm) <= 0.1 * (1.0 + PAID)
