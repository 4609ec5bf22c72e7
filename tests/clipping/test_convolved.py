"""Gradients of convolutions by PyTorch's own backward pass, against outer products."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dither.clipping.contributions import Convolved, Factor
from dither.clipping.contributions.base import unit_roundoff
from dither.clipping.contributions.convolved import CHAIN, MIN_WORK
from dither.clipping.rules.convolution import ShiftedInputs, convolution
from dither.clipping.rules.registry import Call

RECORDS = 6


def convolved(layer: nn.Conv2d, inputs: Tensor, gradient: Tensor | None = None) -> Convolved:
    if gradient is None:
        gradient = torch.randn_like(layer(inputs))
    settings = layer.stride, layer.padding, layer.dilation, layer.groups
    call = Call(
        torch.conv2d, (inputs, layer.weight, None, *settings), {}, len(inputs), (layer.weight,)
    )
    found = convolution(call, gradient.detach())[0][1]
    assert isinstance(found, Convolved)
    return found


SHAPES = {
    "kept": (nn.Conv2d(16, 32, 5, padding=2), 24),
    "kept, with groups": (nn.Conv2d(32, 64, 5, 2, dilation=2, groups=2), 32),
    "not kept": (nn.Conv2d(128, 256, 3, padding=1), 4),
}


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("rows", [1, 2])
def test_they_are_the_same_as_outer_products(kind: str, rows: int) -> None:
    torch.manual_seed(0)
    layer, size = SHAPES[kind]
    found = convolved(layer, torch.randn(RECORDS, layer.in_channels, size, size))
    found = found if rows == 1 else found.join(rows)
    assert found.direct is not None
    assert found.products.terms * found.size * CHAIN >= MIN_WORK
    weights = torch.rand(RECORDS // rows)
    exact = copy.copy(found.products).double()
    assert torch.allclose(found.norms()[0], exact.norms()[0], rtol=1e-5)
    assert found.is_kept == kind.startswith("kept")
    total, truth = found.weighted_sum(weights), exact.weighted_sum(weights.double())
    assert total.shape == layer.weight.shape
    assert float((total - truth).norm() / truth.norm()) < 1e-6
    some = torch.tensor([0, len(weights) - 1])
    part, of_some = found.select(some).weighted_sum(weights[some]), torch.zeros_like(weights)
    of_some[some] = weights[some]
    assert torch.allclose(part, found.weighted_sum(of_some), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(8, 4, 3, padding=1),
        nn.Conv2d(8, 4, 3, 2, padding=2, groups=4),
        nn.Conv2d(8, 4, (1, 3), padding=(0, 2), dilation=(1, 2)),
    ],
)
@pytest.mark.parametrize("rows", [1, 3])
def test_inner_products_need_no_copies(layer: nn.Conv2d, rows: int) -> None:
    torch.manual_seed(1)
    inputs = torch.randn(RECORDS, 8, 5, 6, dtype=torch.float64)
    part = convolved(copy.deepcopy(layer).double(), inputs).join(rows).products.right
    assert isinstance(part, ShiftedInputs)
    part._work_without_copies = lambda: 0  # type: ignore[method-assign]
    quick, slow = part.gram(0, RECORDS // rows), Factor.gram(part, 0, RECORDS // rows)
    assert torch.allclose(quick, slow, rtol=0.0, atol=1e-12 * float(slow.abs().max()))


def test_the_chain_of_terms_rounds_as_little_as_its_bound_says() -> None:
    """Sums of equal terms are off the most; a chain of all terms would be off by more."""
    layer = nn.Conv2d(256, 256, 3, bias=False)
    inputs = torch.full((32, 256, 10, 10), 1.375)
    gradient = torch.full((32, 256, 8, 8), 0.1)
    found = convolved(layer, inputs, gradient)
    found.norms()
    assert not found.is_kept
    terms = found.products.terms
    exact = 1.375 * float(torch.tensor(0.1)) * terms * len(inputs)
    total = found.weighted_sum(torch.ones(len(inputs)))
    error = float((total.double() - exact).abs().max()) / exact
    records = len(inputs) * unit_roundoff(torch.float32)
    assert error <= (16.0 + terms / 256.0) * unit_roundoff(torch.float32) + records
    assert found.direct is not None
    whole = found.direct.of(0, len(inputs))
    assert float((whole.double() - exact).abs().max()) / exact > error


def test_a_sum_that_is_too_small_for_a_call_is_an_outer_product() -> None:
    found = convolved(nn.Conv2d(2, 3, 3), torch.randn(4, 2, 5, 5))
    assert found.direct is not None
    found.direct = replace(found.direct, settings=())
    assert found.weighted_sum(torch.ones(4)).shape == (3, 2, 3, 3)
