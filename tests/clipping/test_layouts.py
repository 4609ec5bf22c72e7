"""Records that are not just along the first dimension: where they are is found, and right."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.clipping.comparing import assert_right, by_losses, distance, in_a_loop, squares, watched
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dither.clipping.layouts import FIRST, JOINED, Layout, layout_after
from dither.clipping.locate import owners_of_rows


class Function(nn.Module):
    """A function of the inputs and two linear layers, a convolution, and a table."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 4)
        self.norm, self.filters = nn.LayerNorm(4), nn.Conv1d(4, 3, 2)
        self.experts = nn.Parameter(torch.randn(3, 8, 4))
        self.table = nn.Parameter(torch.randn(9, 2))
        self.scale, self.start = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(6, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.function(self, x)
        return result


def windows(m: Any, x: Tensor, shift: int = 0) -> Tensor:
    """Attention within windows of 4 terms, with a bias for every distance."""
    size, parts = 4, x.shape[1] // 4
    x = x.roll(shift, 1).view(len(x), parts, size, 4).reshape(-1, size, 4)
    q = m.two(m.one(x)).view(-1, size, 2, 2).transpose(1, 2)
    places = torch.arange(size)
    bias = m.table[(places[:, None] - places + size).flatten()].view(size, size, 2)
    mask = bias.permute(2, 0, 1).contiguous().unsqueeze(0)
    if shift:
        hidden = torch.zeros(parts, size, size).to(x)
        hidden[0, 0, 1:] = -2.0
        copies = hidden[None, :, None].expand(len(x) // parts, -1, -1, -1, -1)
        mask = mask + copies.reshape(-1, 1, size, size)
    mixed = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    mixed = mixed.transpose(1, 2).reshape(-1, parts * size, 4)
    return m.norm(mixed) * m.scale


def added_to_scores(m: Any, x: Tensor) -> Tensor:
    """The same bias, added to scores of records and windows joined."""
    x = m.norm(x).reshape(-1, 4, 4)
    places = torch.arange(4)
    bias = F.embedding(places[:, None] - places + 4, m.table).permute(2, 0, 1)[None, :1]
    scores = (x @ x.transpose(1, 2))[:, None] + bias
    return (scores.softmax(-1)[:, 0] @ x).reshape(-1, 8, 4)


def padded(m: Any, x: Tensor) -> Tensor:
    """A bias for every distance, to which a mask of every record's own is added."""
    places = torch.arange(8).clamp(max=4)
    bias = F.embedding(places[:, None] - places + 4, m.table).permute(2, 0, 1).unsqueeze(0)
    own = torch.zeros(len(x), 1, 1, 8).to(x)
    own[..., -1] = -3.0
    mask, q = (bias + own)[:, :, -8:], m.norm(x).view(len(x), 8, 2, 2).transpose(1, 2)
    first = F.scaled_dot_product_attention(q, q, q, mask)
    second = F.scaled_dot_product_attention(first, q, q, mask)
    return second.transpose(1, 2).reshape(len(x), 8, 4)


def sequence_first(m: Any, x: Tensor) -> Tensor:
    turned = m.norm(x).transpose(0, 1)[:6] * m.scale + m.start
    flat = turned.reshape(-1, 4)
    return m.two(m.one(flat).tanh()).view(6, -1, 4).transpose(0, 1)


def third(m: Any, x: Tensor) -> Tensor:
    """The records behind two other dimensions."""
    turned = x.view(len(x), 4, 2, 4).permute(1, 2, 0, 3)
    return m.two(m.one(turned).tanh()).permute(2, 0, 1, 3)


def frames(m: Any, x: Tensor) -> Tensor:
    """A convolution of several rows per record."""
    made = m.filters(x.view(-1, 4, 4))
    return made.view(-1, 2, *made.shape[1:])


def routed(m: Any, x: Tensor) -> Tensor:
    """Tokens that go to one of two layers, by their values."""
    flat = m.norm(x).reshape(-1, 4)
    total = torch.zeros_like(flat)
    for k, sign in enumerate((1.0, -1.0)):
        places = torch.where(sign * flat[:, 0] > 0.0)[0]
        made = m.two(m.one(flat[places])) if k else m.one(flat[places])[:, :4] * m.scale
        total.index_add_(0, places, made)
    return total.view(x.shape)


def sorted_rows(m: Any, x: Tensor) -> Tensor:
    """Records in another order, through layers that have the records first."""
    order = x[:, 0, 0].argsort(descending=True)
    made = m.filters(m.norm(x[order]).transpose(1, 2))
    return made[order.argsort()]


def sorted_groups(m: Any, x: Tensor) -> Tensor:
    """Tokens sorted by their matrix of three, transposed views of a parameter."""
    flat = m.norm(x).reshape(-1, 4)
    choice = (flat[:, 0] > 0.0).long() + (flat[:, 1] > 0.0).long()
    order, matrices = choice.argsort(), m.experts.transpose(1, 2)
    ends = torch.bincount(choice, minlength=3).cumsum(0)
    if flat.dtype == torch.float64:  # for which there is no such function
        of_all = torch.stack([flat[order] @ each for each in matrices], 1)
        made = of_all[range(len(flat)), choice[order]]
    else:
        made = F.grouped_mm(flat[order], matrices, offs=ends.to(torch.int32))
    return made[order.argsort()].view(*x.shape[:2], -1)


def own_constants(m: Any, x: Tensor) -> Tensor:
    """What is known of every record besides goes through layers before it meets the records."""
    hints = torch.as_tensor(x.detach().numpy()[:, 0])
    return m.norm(x) + m.two(m.one(hints).tanh())[:, None]


def slices(m: Any, x: Tensor) -> Tensor:
    """Parts of a weight, apart, the same and overlapping, and a transposed one."""
    x = torch.stack([F.linear(x[:, t], m.one.weight).tanh() @ m.one.weight for t in range(4)], 1)
    low, high = m.two.weight.chunk(2)
    first = F.linear(x @ m.two.weight, low) @ high + x @ m.two.weight
    return first @ m.two.weight.t()[:, 1:3] + F.linear(x, m.two.weight[1:3, 1:5])


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "windows": windows,
    "shifted windows": lambda m, x: windows(m, x, 2),
    "added to scores": added_to_scores,
    "padded": padded,
    "sequence first": sequence_first,
    "third": third,
    "frames": frames,
    "routed": routed,
    "sorted": sorted_rows,
    "sorted groups": sorted_groups,
    "own constants": own_constants,
    "slices": slices,
}


@pytest.mark.parametrize("records", [4, 5, 2, 1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_records_are_found(name: str, records: int) -> None:
    """Also where a window, or another dimension, is as long as the batch."""
    torch.manual_seed(0)
    assert_right(Function(FUNCTIONS[name]), torch.randn(records, 8, 4), None, squares)


def test_a_batch_that_is_given_with_its_terms_first() -> None:
    torch.manual_seed(0)
    model = Function(lambda m, x: m.two(m.one(m.norm(x)).tanh())).double()
    x = torch.randn(5, 8, 4).double()

    def losses(rows: slice) -> Tensor:
        return squares(model(x[rows].transpose(0, 1)).transpose(0, 1), None)

    expected, _ = by_losses(model, losses, 1.0, 5)
    with watched() as seen:
        total = in_a_loop(model, lambda: losses(slice(None)), 5, clip_norm=1.0)
    assert distance(total.gradients, expected) < 1e-10
    assert not seen.slow


def test_more_records_than_one_digit_has() -> None:
    torch.manual_seed(0)
    assert_right(Function(routed), torch.randn(70, 2, 4), None, squares)


def test_layouts_follow_functions_that_move_dimensions() -> None:
    records = 3
    x = torch.arange(records).view(records, 1, 1).expand(records, 4, 2)
    seconds = x.transpose(0, 1)
    for function, given, layout, args in (
        (Tensor.reshape, x, FIRST, (-1, 2)),
        (Tensor.reshape, x, FIRST, (records, 2, 2, 2)),
        (Tensor.reshape, x.reshape(-1, 2), JOINED, (-1, 8)),
        (Tensor.transpose, x, FIRST, (0, 1)),
        (torch.permute, x, FIRST, ((2, 1, 0),)),
        (Tensor.reshape, seconds, Layout(1), (-1, 2)),
        (Tensor.reshape, seconds.reshape(-1, 2), Layout(0, "before"), (2, 2, records, 2)),
        (Tensor.unsqueeze, seconds, Layout(1), (0,)),
    ):
        output = function(given, *args)
        found = layout_after(function, ((given, *args), {}), given, layout, output, records)
        assert found is not None
        of_records = found.record_first(output, records).reshape(records, -1)
        assert torch.equal(of_records, torch.arange(records)[:, None].expand_as(of_records))


def test_rows_that_two_records_share_are_not_taken_for_one_of_them() -> None:
    torch.manual_seed(0)
    of_records = torch.randn(70, 12, 3)
    digits = torch.arange(70) % 64, torch.arange(70) // 64
    powers = [torch.exp2(each.float() - 32.0)[:, None, None] for each in digits]
    own = torch.arange(12) * 5
    alone = torch.zeros(70, 12, 1).index_put_((own, torch.arange(12)), torch.tensor(1.0))
    shared = alone.clone()
    shared[9, 3] = 0.01
    for share, expected in ((alone, own), (shared, None)):
        plain, *coded = ((of_records * share * power).sum(0) for power in (1.0, *powers))
        found = owners_of_rows(plain, coded, 1, 70)
        assert (found is None) if expected is None else torch.equal(torch.as_tensor(found), own)
