"""Every rule on random shapes, against a loop over single records."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clipping.comparing import assert_right, squares
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

few = settings(max_examples=8)
fewer = settings(max_examples=3)
sizes = st.integers(1, 5)
records = st.integers(1, 5)


def check(model: nn.Module, *inputs: Tensor, fallback: str | None = None) -> None:
    assert_right(model, inputs if len(inputs) > 1 else inputs[0], None, squares, fallback=fallback)


class Applied(nn.Module):
    """A function of a parameter and the inputs."""

    def __init__(self, function: Any, *shape: int) -> None:
        super().__init__()
        self.function = function
        self.p = nn.Parameter(torch.rand(shape) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.function(x, self.p)
        return result


@few
@given(records, st.lists(sizes, max_size=3), sizes, sizes, st.booleans())
def test_linear(count: int, between: list[int], width: int, height: int, bias: bool) -> None:
    check(nn.Linear(width, height, bias=bias), torch.randn(count, *between, width))


@few
@given(records, st.integers(1, 3), st.data())
def test_linear_with_long_and_narrow_inputs_by_both_ways(
    count: int, long: int, data: st.DataObject
) -> None:
    """Few terms of wide layers go by inner products, many terms of narrow ones by forming."""
    terms, width = data.draw(st.sampled_from([(2, 40), (130, 3)]))
    check(nn.Linear(width * long, width), torch.randn(count, terms, width * long))


@few
@given(records, st.integers(1, 3), st.data())
def test_convolutions(count: int, dims: int, data: st.DataObject) -> None:
    kind: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    groups = data.draw(st.integers(1, 2))
    stride = data.draw(st.integers(1, 2))
    kernel = [data.draw(st.integers(1, 3)) for _ in range(dims)]
    dilation = data.draw(st.integers(1, 2))
    paddings: list[Any] = [0, 1, tuple(k // 2 for k in kernel), "valid"]
    padding = data.draw(st.sampled_from([*paddings, "same"] if stride == 1 else paddings))
    layer = kind(
        2 * groups,
        data.draw(st.integers(1, 2)) * groups,
        tuple(kernel),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=data.draw(st.booleans()),
        padding_mode=data.draw(st.sampled_from(["zeros", "circular"])) if padding == 1 else "zeros",
    )
    length = [data.draw(st.integers(5, 7)) for _ in range(dims)]
    check(layer, torch.randn(count, 2 * groups, *length))


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_convolutions_that_keep_the_size() -> None:
    """Padding to the same size is not the same on both sides if the kernel is even."""
    check(nn.Conv2d(2, 3, (2, 4), padding="same", dilation=(1, 2)), torch.randn(3, 2, 5, 8))


@few
@given(records, st.integers(2, 9), st.integers(0, 40))
def test_convolutions_with_few_positions_by_inner_products(
    count: int, channels: int, more: int
) -> None:
    check(nn.Conv2d(channels + more, 40, 3), torch.randn(count, channels + more, 3, 4))


@few
@given(records, st.integers(1, 6), sizes, st.sampled_from([None, 0, -1]))
def test_embedding(count: int, terms: int, width: int, padding: int | None) -> None:
    layer = nn.Embedding(4, width, padding_idx=padding)
    check(nn.Sequential(layer, nn.Tanh()), torch.randint(4, (count, terms)))
    check(nn.Sequential(layer, nn.Tanh()), torch.randint(4, (count,)))


@few
@given(records, st.lists(sizes, max_size=2), st.lists(st.integers(2, 4), min_size=1, max_size=2))
def test_layer_and_rms_norm(count: int, between: list[int], shape: list[int]) -> None:
    for layer in (nn.LayerNorm(shape), nn.RMSNorm(shape, eps=1e-5)):
        check(scrambled(layer), torch.randn(count, *between, *shape))


@few
@given(records, st.integers(1, 3), st.integers(1, 2), st.integers(1, 3))
def test_group_and_instance_norm(count: int, groups: int, per_group: int, dims: int) -> None:
    channels = groups * per_group
    x = torch.randn(count, channels, *[3] * dims)
    kind = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[dims - 1]
    check(scrambled(nn.GroupNorm(groups, channels)), x)
    check(scrambled(kind(channels, affine=True)), x)


@few
@given(records, st.integers(1, 4), st.integers(1, 2), st.booleans(), st.booleans(), st.data())
def test_multi_head_attention(
    count: int, terms: int, heads: int, weights: bool, batch_first: bool, data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(["self", "masked", "cross", "separate"]))
    width = 4
    keys = 3 if kind == "separate" else width
    layer = nn.MultiheadAttention(
        width, heads, batch_first=True, kdim=keys, vdim=keys, bias=data.draw(st.booleans())
    )

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor, other: Tensor) -> Tensor:
            if kind == "self":
                return torch.as_tensor(self.layer(x, x, x, need_weights=weights)[0])
            if kind == "masked":
                causal = torch.ones(terms, terms).triu(1).bool()
                padding = torch.zeros(len(x), terms).bool()
                settings = {"attn_mask": causal, "key_padding_mask": padding}
                return torch.as_tensor(self.layer(x, x, x, need_weights=weights, **settings)[0])
            return torch.as_tensor(self.layer(x, other, other, need_weights=weights)[0])

    check(Attention(), torch.randn(count, terms, width), torch.randn(count, 3, keys))


@fewer
@given(records, st.integers(2, 4), sizes)
def test_bare_parameters_entry_by_entry(count: int, terms: int, width: int) -> None:
    x = torch.rand(count, terms, width) + 0.5
    functions: list[Any] = [
        lambda x, p: x + p,
        lambda x, p: p - x,
        lambda x, p: x * p,
        lambda x, p: x / p,
        lambda x, p: torch.pow(x, p),
        lambda x, p: torch.where(x > 1.0, x, p),
        lambda x, p: x.clone().add_(p),
        lambda x, p: torch.maximum(x, p) * p,
    ]
    for function in functions:
        for shape in ((width,), (terms, width), (1, terms, width), (1, 1, 1), ()):
            check(Applied(function, *shape), x)


@fewer
@given(records, st.integers(2, 4), st.integers(2, 5))
def test_bare_parameters_that_are_spread_or_derived(count: int, terms: int, width: int) -> None:
    x = torch.randn(count, terms, width)
    functions: list[tuple[Any, tuple[int, ...]]] = [
        (lambda x, p: torch.cat([p.expand(len(x), -1, -1), x], 1), (1, 1, width)),
        (lambda x, p: torch.cat([p.repeat(len(x), 1, 1), x], 1), (1, 2, width)),
        (lambda x, p: x + p.expand_as(x), (width,)),
        (lambda x, p: x + p[: x.shape[1]], (terms + 2, width)),
        (lambda x, p: x + p.unsqueeze(0)[:, -x.shape[1] :], (terms + 2, width)),
        (lambda x, p: x @ p.t(), (3, width)),
        (lambda x, p: x @ p, (width, 3)),
        (lambda x, p: F.linear(x, F.normalize(p)), (3, width)),
        (lambda x, p: F.linear(x, p) + F.linear(x, p.tanh()), (3, width)),
        (lambda x, p: torch.addmm(p[0], x.flatten(0, 1), p[1:]).view(*x.shape), (width + 1, width)),
    ]
    for function, shape in functions:
        check(Applied(function, *shape), x)


@few
@given(records, sizes)
def test_other_functions_are_repeated_for_every_record(count: int, width: int) -> None:
    function = lambda x, p: torch.einsum("bi,oi->bo", x, p)  # noqa: E731
    check(Applied(function, 3, width), torch.randn(count, width), fallback="einsum with p")
    bag = lambda x, p: F.embedding_bag((x[:, None] > 0).long().flatten(1), p)  # noqa: E731
    check(Applied(bag, 2, 3), torch.randn(count, width), fallback="embedding_bag with p")
    loop = lambda x, p: F.prelu(x, p) * float(len(x) > 0)  # noqa: E731
    check(Applied(loop, 1), torch.randn(count, width), fallback="prelu with p")


def scrambled(layer: nn.Module) -> nn.Module:
    """Give a layer weights that are not all alike."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter))
    return layer
