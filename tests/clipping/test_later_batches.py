"""What one batch has shown must not be taken for granted in another one."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.clipping.comparing import by_loop, distance, quietly, squares
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from dither.clipping import clipped_sum


def assert_right(model: nn.Module, *batches: Tensor, clip_norm: float = 0.1) -> None:
    for x in batches:
        total = quietly(model, squares, x, None, clip_norm=clip_norm)
        expected, _ = by_loop(model, squares, x, None, clip_norm, len(x))
        assert distance(total.gradients, expected) < 1e-4


class Siamese(nn.Module):
    """Both halves of a record through one layer, in one call."""

    def __init__(self) -> None:
        super().__init__()
        self.code = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.code(torch.cat([x[:, :3], x[:, 3:]])).chunk(2)
        return (one - two).tanh()


def test_a_single_record_verifies_nothing() -> None:
    torch.manual_seed(0)
    assert_right(Siamese(), torch.randn(1, 6), torch.randn(12, 6), torch.randn(1, 6))


class OnTheLeft(nn.Module):
    """Has no rule for its weight, which is seen when the rules are applied."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight @ x.transpose(1, 2)).mean(2)


def test_a_single_record_without_a_rule() -> None:
    torch.manual_seed(0)
    assert_right(OnTheLeft(), torch.randn(1, 4, 3), torch.randn(5, 4, 3), torch.randn(1, 4, 3))


class Scaled(nn.Module):
    """A time-first layer behind a small gate, whose first gradients are negligible."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        self.inner, self.gate, self.head = (
            nn.Linear(3, 3),
            nn.Parameter(torch.full((3,), gate)),
            nn.Linear(3, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        flat = self.inner(x.transpose(0, 1).reshape(-1, 3)).tanh()
        inner = flat.reshape(x.shape[1], x.shape[0], 3).transpose(0, 1)
        return self.head((x + self.gate * inner).mean(1))


@pytest.mark.parametrize("gate", [1e-8, 1e-4, 1.0])
def test_a_negligible_gradient_verifies_nothing(gate: float) -> None:
    torch.manual_seed(0)
    model = Scaled(gate)
    quietly(model, squares, torch.randn(8, 4, 3), None, clip_norm=0.1)
    with torch.no_grad():
        model.gate.fill_(1.0)
    assert_right(model, torch.randn(8, 4, 3))


class Sorted(nn.Module):
    """Sorts the records by their first entries, and puts them back."""

    def __init__(self, pick: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.pick, self.code, self.head = pick, nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].round().argsort(stable=True)
        return self.head(self.pick(self.code(self.pick(x, order)).tanh(), order.argsort()))


def written(x: Tensor, order: Tensor) -> Tensor:
    rows = torch.zeros(x.shape)
    rows[order.argsort()] = x
    return rows


@pytest.mark.parametrize(
    "pick",
    [
        lambda x, order: x[order],
        lambda x, order: x[order.numpy()],
        lambda x, order: x[order.tolist()],
        lambda x, order: torch.stack([x[i] for i in order]),
        lambda x, order: torch.cat([x[i : i + 1] for i in order.tolist()]),
        lambda x, order: nn.functional.one_hot(order, len(order)).to(x) @ x,
        lambda x, order: torch.stack([x.unbind()[i] for i in order.tolist()]),
        lambda x, order: x.index_select(0, order),
        lambda x, order: torch.zeros(x.shape).to(x).index_add_(0, order.argsort(), x),
        lambda x, order: written(x, order),
        lambda x, order: torch.zeros(x.shape).index_put((order.argsort(),), x),
        lambda x, order: torch.zeros(x.shape).index_copy_(0, order.argsort(), x),
        lambda x, order: torch.zeros(x.shape).scatter_(0, order.argsort()[:, None].expand_as(x), x),
    ],
    ids=[
        *("tensor", "numpy", "list", "stack", "cat", "product", "unbind", "index_select"),
        *("index_add", "setitem", "index_put", "index_copy", "scatter"),
    ],
)
def test_rows_that_are_moved_in_a_later_batch(pick: Callable[[Tensor, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    same_order = torch.randn(9, 4)
    same_order[:, 0] = 0.0
    assert_right(Sorted(pick), same_order, 3.0 * torch.randn(9, 4))


class SortedSecond(Sorted):
    """The same with the records second in memory: more or fewer terms than records first."""

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0, 0].round().argsort(stable=True)
        inner = self.code(self.pick(x.transpose(0, 1), order)).tanh()
        return self.head(self.pick(inner, order.argsort()).sum(0))


@pytest.mark.parametrize("terms", [4, 6, 12])
@pytest.mark.parametrize(
    "pick",
    [
        lambda x, order: x[:, order],
        lambda x, order: x[:, order.tolist()],
        lambda x, order: x[:, order, ...],
        lambda x, order: torch.stack([x[:, i] for i in order], 1),
        lambda x, order: torch.stack([x.unbind(1)[i] for i in order.tolist()], dim=1),
        lambda x, order: x.index_select(1, order),
        lambda x, order: x.gather(1, order[None, :, None].expand_as(x)),
    ],
    ids=["tensor", "list", "ellipsis", "stack", "unbind", "index_select", "gather"],
)
def test_second_rows_that_are_moved_in_a_later_batch(
    pick: Callable[[Tensor, Tensor], Tensor], terms: int
) -> None:
    torch.manual_seed(0)
    same_order = torch.randn(6, terms, 4)
    same_order[:, 0, 0] = 0.0
    assert_right(SortedSecond(pick), same_order, 3.0 * torch.randn(6, terms, 4))


class PackedByList(nn.Module):
    """Packs sequences, their steps first in memory, by lengths that are not tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.layer, self.head = nn.LSTM(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        words = x.long().t()
        lengths = words[0].clamp(1, len(words)).tolist()
        steps = pack_padded_sequence(self.words(words), lengths, enforce_sorted=False)
        return self.head(self.layer(steps)[1][0][-1])


def test_packed_sequences_in_a_batch_as_large_as_they_are_long() -> None:
    torch.manual_seed(0)
    same_length = 9.0 * torch.rand(6, 6)
    same_length[:, 0] = 6.0
    others = (9.0 * torch.rand(n, 6) for n in (5, 7, 6, 6, 9))
    assert_right(PackedByList(), same_length, *others)


class BothWays(nn.Module):
    """One layer, with the records first and with the records second."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        first = self.layer(x).tanh()
        second = self.layer(x.transpose(0, 1)).sigmoid().transpose(0, 1)
        return (first * second).mean(1)


def test_a_batch_as_large_as_the_sequence_is_long() -> None:
    torch.manual_seed(0)
    assert_right(BothWays(), torch.randn(7, 5, 3), torch.randn(5, 5, 3), torch.randn(9, 5, 3))


@pytest.mark.parametrize("clip_norm", [1e-6, 1e-4, 1e-2])
def test_clip_factors_too_small_for_single_precision(clip_norm: float) -> None:
    model = nn.Linear(1, 1, bias=False)
    for size in np.geomspace(1e30, 3e38, 30):
        x = torch.tensor([[float(size)]])
        total = clipped_sum(model, lambda out, _: out[:, 0], x, None, clip_norm=clip_norm)
        found = abs(float(total.gradients["weight"]))
        assert found == 0.0 or found <= clip_norm * (1.0 + 1e-4)
