"""Every rule on random shapes, against a loop over single records."""

from functools import partial
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


@fewer
@given(records, st.integers(2, 4), st.integers(2, 5))
def test_sums_of_products(count: int, terms: int, width: int) -> None:
    x, heads = torch.randn(count, terms, width), torch.randn(count, terms, 2, width)
    cases: list[tuple[str, Tensor, tuple[int, ...]]] = [
        ("bti,io->bto", x, (width, 3)),
        ("bti,oi->bot", x, (3, width)),
        ("...i,io->...o", x, (width, 3)),
        ("bti,i", x, (width,)),
        ("bti,ti->bt", x, (terms, width)),
        ("bti,s->bsi", x, (3,)),
        ("bthd,hde->bthe", heads, (2, width, 3)),
        ("bthd,hdo->bto", heads, (2, width, 3)),
        ("bthd,ehd->heb", heads, (3, 2, width)),
        ("bthd,h...->tb...", heads, (2, 3, 2)),
        ("bti,bti,ot->bo", x, (3, terms)),
        ("bti,bsi,tsi->bi", x, (terms, terms, width)),
    ]
    for equation, inputs, shape in cases:
        check(Applied(partial(summed, equation), *shape), inputs)


def summed(equation: str, x: Tensor, p: Tensor) -> Tensor:
    """A sum of products of the inputs, perhaps more than once, and a parameter; records first."""
    inputs, _, output = equation.partition("->")
    made = torch.einsum(equation, *[x] * inputs.count(","), p)
    return made.movedim(output.index("b"), 0) if "b" in output else made


@fewer
@given(records, st.integers(2, 4), st.integers(2, 5))
def test_batches_of_matrix_products(count: int, terms: int, width: int) -> None:
    x = torch.randn(count, terms, width)
    functions: list[tuple[Any, tuple[int, ...]]] = [
        (lambda x, p: p @ x, (3, terms)),
        (lambda x, p: torch.einsum("bti,ij,jk,kl->btl", x, p, p, p), (width, width)),
        (lambda x, p: x[:, :, None] @ p, (terms, width, 2)),
        (lambda x, p: torch.bmm(x.transpose(0, 1), p).transpose(0, 1), (terms, width, 2)),
        (lambda x, p: torch.bmm(p, x.permute(1, 2, 0)).permute(2, 0, 1), (terms, 2, width)),
        (lambda x, p: experts(x, p), (2, width, 3)),
        (lambda x, p: x @ p, (width,)),
        (lambda x, p: torch.mv(x.flatten(1), p[: x[0].numel()])[:, None], (20,)),
    ]
    for function, shape in functions:
        check(Applied(function, *shape), x)


def experts(x: Tensor, p: Tensor) -> Tensor:
    """Every token through every matrix, with tokens and records joined."""
    copies = x.reshape(1, -1, x.shape[-1]).expand(len(p), -1, -1)
    return torch.bmm(copies, p).view(len(p), *x.shape[:2], -1).transpose(0, 1)


@few
@given(records, st.integers(1, 3), st.data())
def test_transposed_convolutions(count: int, dims: int, data: st.DataObject) -> None:
    kind: Any = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
    groups, stride = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    dilation = data.draw(st.integers(1, 2))
    layer = kind(
        2 * groups,
        data.draw(st.integers(1, 2)) * groups,
        tuple(data.draw(st.integers(2, 3)) for _ in range(dims)),
        stride=stride,
        padding=data.draw(st.integers(0, 1)),
        output_padding=data.draw(st.integers(0, max(stride, dilation) - 1)),
        groups=groups,
        bias=data.draw(st.booleans()),
        dilation=dilation,
    )
    check(layer, torch.randn(count, 2 * groups, *(data.draw(st.integers(3, 5)),) * dims))


@few
@given(
    records,
    st.integers(1, 6),
    st.sampled_from(["sum", "mean", "max"]),
    st.sampled_from([None, 0, -1]),
    st.booleans(),
)
def test_embedding_bags(count: int, terms: int, mode: Any, padding: int | None, last: bool) -> None:
    layer = nn.EmbeddingBag(4, 3, mode=mode, padding_idx=padding, include_last_offset=last)
    ids = torch.randint(4, (count, terms))

    class Bags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = layer, nn.Linear(3, 2)

        def forward(self, ids: Tensor, weights: Tensor) -> Tensor:
            shares = {"per_sample_weights": weights} if mode == "sum" else {}
            counts = torch.full((len(ids),), ids.shape[1]).cumsum(0)
            starts = torch.cat([torch.zeros_like(counts[:1]), counts if last else counts[:-1]])
            flat = {name: each.flatten() for name, each in shares.items()}
            by_offsets = self.layer(ids.flatten(), starts, **flat)
            self.layer.include_last_offset = False
            halves = self.layer(ids.repeat_interleave(2, 0)).view(len(ids), 2, -1).tanh().sum(1)
            together = self.layer(ids, **shares) + by_offsets.tanh() + halves
            self.layer.include_last_offset = last
            return torch.as_tensor(self.head(together))

    check(Bags(), ids, torch.rand(count, terms))


@fewer
@given(records, sizes, sizes)
def test_other_layers(count: int, terms: int, width: int) -> None:
    x = torch.randn(count, terms, width)
    check(nn.PReLU(), x)
    check(scrambled(nn.PReLU(terms)), x)
    check(scrambled(nn.BatchNorm1d(terms)).eval(), x)
    both = nn.Bilinear(width, width, 3)
    check(Applied(lambda x, p: F.bilinear(x, x.cos(), p), *both.weight.shape), x)
    picked = lambda x, p: p[(x > 0).long(), (x < 1).long()]  # noqa: E731
    check(Applied(picked, 2, 2), x)
    check(Applied(lambda x, p: p[(x > 0).long()], 2, 3), x)


@few
@given(records, sizes)
def test_other_functions_are_repeated_for_every_record(count: int, width: int) -> None:
    distances = lambda x, p: torch.cdist(x[:, None], p)[:, 0]  # noqa: E731
    check(Applied(distances, 3, width), torch.randn(count, width), fallback="cdist with p")


def scrambled(layer: nn.Module) -> nn.Module:
    """Give a layer weights that are not all alike."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter))
    return layer
