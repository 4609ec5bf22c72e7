"""Replacements equal PyTorch's own: maxima over windows to the last bit, and attention."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from dither.clipping import clipped_sum
from dither.clipping.replacements import MaxPool2d, attention, attention_arguments, max_pool2d


def inputs(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return values with many ties: zeros, and few different numbers."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(-2, 4, shape, generator=generator).relu().to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", [2, 3, (1, 2), (2, 1), (3, 4), (4, 4)])
@pytest.mark.parametrize("shape", [(5, 3, 8, 9), (1, 1, 4, 4), (300, 16, 14, 14)])
def test_values_and_gradients(dtype: torch.dtype, kernel: Any, shape: tuple[int, ...]) -> None:
    x = inputs(*shape, dtype=dtype)
    mine, theirs = max_pool2d(x, kernel, 1), functional.max_pool2d(x, kernel, 1)
    assert isinstance(mine.grad_fn, MaxPool2d._backward_cls)
    assert torch.equal(mine, theirs)
    weights = torch.randn(mine.shape, dtype=dtype, generator=torch.Generator().manual_seed(2))
    mine, theirs = (torch.autograd.grad(each, x, weights)[0] for each in (mine, theirs))
    assert torch.equal(mine, theirs)


@pytest.mark.parametrize("settings", [
    {"stride": 2}, {"stride": 1, "padding": 1}, {"stride": 1, "dilation": 2}, {"stride": None},
    {"stride": 2, "ceil_mode": True}, {"stride": 1, "return_indices": True},
])  # fmt: skip
def test_everything_else_is_left_to_pytorch(settings: dict[str, Any]) -> None:
    x = inputs(4, 3, 9, 9)
    mine, theirs = max_pool2d(x, 3, **settings), functional.max_pool2d(x, 3, **settings)
    if settings.get("return_indices"):
        mine, theirs = torch.cat([*mine]), torch.cat([*theirs])
    assert torch.equal(mine, theirs)


def test_infinities_stay_and_what_is_no_number_spreads() -> None:
    x = inputs(2, 1, 4, 4).detach()
    x[0, 0, 1, 1], x[1, 0, 2, 2] = torch.nan, -torch.inf
    mine, theirs = max_pool2d(x, 2, 1), functional.max_pool2d(x, 2, 1)
    assert torch.equal(mine.isnan(), theirs.isnan())
    assert torch.equal(mine.nan_to_num(), theirs.nan_to_num())


def test_the_engine_uses_it_and_agrees_with_the_reference() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(75, 4)
    )
    x, y = torch.randn(6, 1, 8, 8), torch.randint(4, (6,))

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs, targets, reduction="none")

    fast, slow = (
        clipped_sum(model, loss, x, y, clip_norm=0.5, engine=engine)
        for engine in ("fast", "reference")
    )
    for name, gradient in slow.gradients.items():
        assert torch.allclose(fast.gradients[name], gradient, atol=1e-5)


def test_attention_is_pytorchs_own() -> None:
    """What the engine runs in place of PyTorch's function gives the same outputs."""
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2).double()
    x, y = torch.randn(5, 3, 8).double(), torch.randn(4, 3, 8).double()
    mask = torch.randn(3 * 2, 5, 4).double()
    padding = torch.tensor([[0.0, 0.0, -torch.inf, -1.0]] * 3).double()
    for average in (True, False):
        own = (layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.0)
        args = (x, y, y, 8, 2, *own, layer.out_proj.weight, layer.out_proj.bias)
        options: dict[str, Any] = {
            "attn_mask": mask,
            "key_padding_mask": padding,
            "average_attn_weights": average,
        }
        found = attention(attention_arguments(args, options))
        expected = functional.multi_head_attention_forward(*args, **options)
        for output, expected_output in zip(found, expected, strict=True):
            torch.testing.assert_close(output, expected_output)
