"""Models that try to get a record past its clip norm, and records that do so by rounding."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.clipping import models
from tests.clipping.comparing import (
    assert_right,
    by_loop,
    cross_entropy,
    distance,
    quietly,
    squares,
)
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dither.clipping import PerRecord, clipped_sum, register
from dither.validate import InvalidTypeError, InvalidValueError


def assert_like_the_loop(
    model: nn.Module, loss: Any, inputs: Any, records: int, clip_norm: float = 0.1
) -> None:
    total = quietly(model, loss, inputs, None, clip_norm=clip_norm)
    expected, norms = by_loop(model, loss, inputs, None, clip_norm, records)
    assert distance(total.gradients, expected) < 1e-4
    torch.testing.assert_close(total.norms.double(), norms, rtol=1e-4, atol=1e-12)


# --- records that are moved about ---------------------------------------------------------------


class Masked(nn.Module):
    """Only the terms under a mask go through the layer: their number a record varies."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        values = self.head(x[mask]).square().sum(1)
        return torch.zeros(len(x)).index_add(0, mask.nonzero()[:, 0], values)


def itself(outputs: Tensor, targets: None) -> Tensor:
    return outputs


def test_a_mask_cannot_spread_a_record_over_the_others() -> None:
    torch.manual_seed(0)
    records, model = 8, Masked()
    one_each = torch.zeros(records, records, dtype=torch.bool)
    one_each[:, 0] = True
    x = torch.randn(records, records, 4)
    assert_like_the_loop(model, itself, (x, one_each), records)
    all_by_one = torch.zeros(records, records, dtype=torch.bool)
    all_by_one[0] = True
    total = quietly(model, itself, (x, all_by_one), None, clip_norm=0.1)
    norm = torch.cat([t.flatten() for t in total.gradients.values()]).norm()
    assert float(norm) <= 0.1 * (1.0 + 1e-5)
    assert_like_the_loop(model, itself, (x, all_by_one), records)


class Moved(nn.Module):
    def __init__(self, move: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.order = move

    def forward(self, x: Tensor) -> Tensor:
        order = self.order(x)
        hidden = torch.tanh(self.layer(x[order]))
        return self.head(hidden[order.argsort()])


@pytest.mark.parametrize(
    "order",
    [
        lambda x: torch.arange(len(x)).flip(0),
        lambda x: torch.randperm(len(x)),
        lambda x: x[:, 0].round().argsort(),
    ],
    ids=["flipped", "at random", "sorted"],
)
def test_records_in_another_order_inside(order: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model = Moved(order)
    assert_like_the_loop(model, squares, torch.zeros(3, 4) + torch.arange(3)[:, None], 3)
    for _ in range(10):
        assert_like_the_loop(model, squares, 2.0 * torch.randn(3, 4), 3)


def test_a_model_that_may_move_records_says_what_that_costs() -> None:
    model = Moved(lambda x: x[:, 0].argsort())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        clipped_sum(model, squares, torch.arange(12.0).view(3, 4), None, clip_norm=1.0)
    assert any("argsort may move records" in str(each.message) for each in told)


# --- records that mix ---------------------------------------------------------------------------


class Mixes(nn.Module):
    def __init__(self, mix: Callable[[Tensor], Tensor], zero: bool = False) -> None:
        super().__init__()
        self.mix, self.head = mix, nn.Linear(4, 3)
        if zero:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.mix(x), 0.1, training=self.training))


def refused(model: nn.Module, loss: Any, x: Tensor, y: Tensor) -> bool:
    try:
        quietly(model, loss, x, y, clip_norm=1.0)
    except InvalidValueError as error:
        return "every record by itself" in str(error)
    return False


def test_mixing_is_found_behind_dropout_and_zero_weights() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    assert refused(Mixes(lambda x: x - x.mean(0)), cross_entropy, x, y)
    zero = Mixes(lambda x: x - x.mean(0), zero=True).eval()
    assert refused(zero, cross_entropy, x, y) or like_the_loop(zero, x, y)
    assert refused(Mixes(lambda x: 0.5 * (x + x.flip(0))), cross_entropy, x, y)
    assert not refused(Mixes(lambda x: x), cross_entropy, x, y)
    assert not refused(Mixes(lambda x: x, zero=True), cross_entropy, x, y)


def test_mixing_that_begins_later_is_found() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(8, 4), torch.arange(8) % 3
    sometimes = Mixes(lambda x: x - x.mean(0) if len(x) > 4 else x)
    assert not refused(sometimes, cross_entropy, x[:4], y[:4])
    assert refused(sometimes, cross_entropy, x, y)
    axis = [1]
    other_axis = Mixes(lambda x: x - x.mean(axis[0], keepdim=True))
    assert not refused(other_axis, cross_entropy, x, y)
    axis[0] = 0
    assert refused(other_axis, cross_entropy, x, y)
    by_value = Mixes(lambda x: x - x.mean(0) if x.abs().max() > 5.0 else x)
    assert refused(by_value, cross_entropy, x, y)
    gate = torch.zeros(())
    gated = Mixes(lambda x: x + gate * x.mean(0))
    assert not refused(gated, cross_entropy, x, y)
    gate += 1.0
    assert refused(gated, cross_entropy, x, y)


def like_the_loop(model: nn.Module, x: Tensor, y: Tensor) -> bool:
    total = quietly(model, cross_entropy, x, y, clip_norm=0.1)
    expected, _ = by_loop(model, cross_entropy, x, y, 0.1, len(x))
    return distance(total.gradients, expected) < 1e-4


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x - x[:1],
        lambda x: x / x.abs().max(),
        lambda x: x / x.detach().abs().amax(0),
        lambda x: torch.minimum(x, 0.9 * x.max()),
        lambda x: torch.where(x.sum(1, keepdim=True) > x.sum(1).median(), x, 2.0 * x),
        lambda x: torch.cat([x[1:2], x[:1], x[2:]]),
        lambda x: torch.cat([x[:6], x[6:] - x[6:].mean(0)]),
        lambda x: x * (100.0 / x.norm()).clamp(max=1.0),
        lambda x: torch.where(x.min() < -5.0, x.roll(1, 0), x),
        lambda x: x / len(x),
        lambda x: x.cumsum(0),
    ],
)
def test_every_kind_of_mixing_is_found(mix: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    model = Mixes(mix).eval()
    assert refused(model, cross_entropy, x, y) or like_the_loop(model, x, y)


def test_mixing_by_chance_is_found_with_the_chances_of_the_batch() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    sometimes = Mixes(lambda x: x.flip(0) if torch.rand(()) < 0.4 else x).eval()
    for seed in range(10):
        torch.manual_seed(seed)
        if float(torch.rand(())) < 0.4:
            torch.manual_seed(seed)
            assert refused(sometimes, cross_entropy, x, y)


def test_half_precision_does_not_hide_a_permutation() -> None:
    torch.manual_seed(0)

    class Swapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            h, n = self.first(x), len(x) // 4
            return self.second(torch.cat([h[:n].flip(0), h[n:]]))

    model = Swapped().bfloat16()
    x, y = torch.randn(64, 8).bfloat16(), torch.arange(64) % 3
    assert refused(model, cross_entropy, x, y)


def test_losses_divided_by_the_size_of_the_batch_are_refused() -> None:
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    assert refused(models.Adapter(), lambda o, t: cross_entropy(o, t) / len(o), x, y)


def test_what_a_model_keeps_of_its_records_is_refused_before_it_does() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.layer = nn.Buffer(torch.zeros(4)), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            self.mean.mul_(0.5).add_(0.5 * x.detach().mean(0))
            return self.layer(x)

    model = Keeps()
    with pytest.raises(InvalidValueError, match="its buffer mean is computed from them"):
        clipped_sum(model, squares, torch.randn(4, 4), None, clip_norm=1.0)
    assert not model.mean.any()


def test_embeddings_that_rewrite_their_rows_are_refused() -> None:
    model = nn.Sequential(nn.Embedding(9, 4, max_norm=0.5), nn.Flatten(), nn.Linear(12, 3))
    table: Any = model[0]
    before = table.weight.detach().clone()
    with pytest.raises(InvalidValueError, match=r"0 \(Embedding\) has max_norm"):
        clipped_sum(model, squares, torch.randint(9, (4, 3)), None, clip_norm=1.0)
    assert torch.equal(table.weight, before)


def test_losses_without_a_graph_are_refused() -> None:
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    with pytest.raises(InvalidValueError, match="losses without a graph"):
        clipped_sum(models.Twice(), lambda o, t: cross_entropy(o, t).detach(), x, y, clip_norm=1.0)


def test_a_wrong_rule_is_told_by_its_name() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    results: list[Any] = [None, [(torch.ones(4), torch.ones(3, 4))], [torch.ones(4)]]
    for result in [*results, [(torch.ones(4), PerRecord(torch.ones(1, 4)))]]:

        @register(Odd)
        def odd(call: Any, gradient: Tensor, result: Any = result) -> Any:
            return result

        with pytest.raises((InvalidTypeError, InvalidValueError), match="rule odd for Odd must"):
            clipped_sum(Odd(), squares, torch.randn(3, 4), None, clip_norm=1.0)


def test_mixing_in_another_loss_is_found() -> None:
    torch.manual_seed(0)
    model = models.Adapter()
    x, y = torch.randn(8, 4), torch.arange(8) % 3

    def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
        weights = torch.tensor([1.0, 2.0, 3.0])[targets]
        return cross_entropy(outputs, targets) * weights / weights.mean()

    assert not refused(model, cross_entropy, x, y)
    assert refused(model, weighted, x, y)


# --- paths that are hidden ----------------------------------------------------------------------


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(_, weight):  # type: ignore[no-untyped-def]
        return torch.round(weight * 16.0) / 16.0

    @staticmethod
    def backward(_, gradient):  # type: ignore[no-untyped-def]
        return gradient


rounded: Any = Rounded.apply


class Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, rounded(self.weight), self.bias)


def test_a_parameter_behind_a_function_of_ones_own_is_found() -> None:
    x, y = 1e-3 * torch.randn(4, 4), torch.randint(3, (4,))
    assert_right(Quantised(), x, y, fallback="weight is used where")


class ChangedCopy(nn.Module):
    """A copy of the weight is changed in place before it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))
        self.mask = nn.Buffer(torch.ones(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.clone()
        weight.mul_(self.mask)
        return F.linear(x, weight)


def test_a_copy_of_a_parameter_changed_in_place_is_found() -> None:
    torch.manual_seed(0)
    model = ChangedCopy()
    x = torch.randn(4, 4)
    assert_like_the_loop(model, squares, x, 4)
    model.mask[:, :2] = 0.0
    assert_like_the_loop(model, squares, x, 4)


def test_a_model_that_changes_its_inputs_gets_copies_for_trials() -> None:
    class Shifts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.sub_(0.5))

    torch.manual_seed(0)
    model, x = Shifts(), torch.randn(4, 4)
    expected, _ = by_loop(model, squares, x.clone(), None, 0.1, 4)
    given = x.clone()
    total = quietly(model, squares, given, None, clip_norm=0.1)
    assert distance(total.gradients, expected) < 1e-4
    torch.testing.assert_close(given, x - 0.5)


def test_the_last_state_of_a_recurrent_layer() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[1][0][-1])

    assert_right(Last(), torch.randn(5, 5, 4), torch.randint(3, (5,)), fallback="lstm with")


def test_buffers_are_left_alone_by_trials() -> None:
    class Counts(nn.Module):
        def __init__(self, kind: type[nn.Module]) -> None:
            super().__init__()
            self.inner = kind()
            self.calls = nn.Buffer(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1.0)
            return self.inner(x)

    for kind in (models.Twice, models.Opaque):
        model = Counts(kind)
        quietly(model, cross_entropy, torch.randn(4, 4), torch.zeros(4).long(), clip_norm=1.0)
        assert float(model.calls) == 1.0


def test_complex_parameters_are_refused() -> None:
    model = nn.Linear(4, 3, dtype=torch.complex64)
    with pytest.raises(InvalidValueError, match="complex parameters"):
        clipped_sum(model, squares, torch.randn(4, 4), None, clip_norm=1.0)


class Counted(nn.Module):
    """Turns its outputs around by the parity of the batch's size, or of a record's place in it."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.linear, self.by = nn.Linear(3, 2), by

    def forward(self, x: Tensor) -> Tensor:
        if self.by == "size":
            return self.linear(x) * float(1 - 2 * (len(x) % 2))
        return self.linear(x * torch.tensor([1.0 - 2.0 * (i % 2) for i in range(len(x))])[:, None])


@pytest.mark.parametrize("by", ["size", "place"])
@pytest.mark.parametrize("records", [2, 8, 9, 32, 33])
def test_models_that_count_their_records_are_refused(by: str, records: int) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(records, 3), torch.randint(2, (records,))
    with pytest.raises(ValueError, match="or with their number"):
        clipped_sum(Counted(by), cross_entropy, x, y, clip_norm=1.0)


class Placed(nn.Module):
    """Looks a table up by a record's place, or by the number of records."""

    def __init__(self, places: Callable[[int], Tensor]) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(64, 3), places

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, None] * self.table(self.places(len(x)))).sum(1)


@pytest.mark.parametrize("records", [8, 9, 33])
@pytest.mark.parametrize(
    "places",
    [
        lambda n: torch.arange(n)[:, None].expand(-1, 2).contiguous() % 2,
        lambda n: torch.arange(2 * n).view(2, n).t() % 64,
        lambda n: torch.full((n, 2), n % 64),
        lambda n: torch.full((1, 2), n % 64).expand(n, 2),
        lambda n: torch.full((n, 2), n % 2),
    ],
    ids=range(5),
)
def test_tables_looked_up_by_place_or_number_move_no_other_record(
    places: Callable[[int], Tensor], records: int
) -> None:
    """The sum without a record differs by at most the clip norm, or the model is refused."""
    torch.manual_seed(0)
    model = Placed(places)
    x, y = torch.randn(records, 3), torch.randint(3, (records,))
    try:
        whole = quietly(model, cross_entropy, x, y, clip_norm=1.0).gradients
        fewer = quietly(model, cross_entropy, x[1:], y[1:], clip_norm=1.0).gradients
    except InvalidValueError:
        return
    moved = sum(float((whole[name] - fewer[name]).square().sum()) for name in whole) ** 0.5
    assert moved <= 1.0 + 1e-4
