"""Where parameters meet records: what is seen is fast, and only what is not seen is slow."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.clipping import models
from tests.clipping.comparing import (
    assert_right,
    by_loop,
    by_losses,
    cross_entropy,
    distance,
    in_a_loop,
    quietly,
    squares,
    watched,
)
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dither.clipping import clipped_sum
from dither.clipping.recording import CheckCache
from dither.validate import InvalidValueError

VECTORS = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
CLASSES = torch.arange(8) % 3
UNSEEN = "it is used where the engine cannot see it"


def assert_like_the_loop(
    model: nn.Module, loss: Any, inputs: Any, records: int, clip_norm: float = 0.1
) -> None:
    total = quietly(model, loss, inputs, None, clip_norm=clip_norm)
    expected, norms = by_loop(model, loss, inputs, None, clip_norm, records)
    assert distance(total.gradients, expected) < 1e-4
    torch.testing.assert_close(total.norms.double(), norms, rtol=1e-4, atol=1e-12)


# --- only what is not seen is slow --------------------------------------------------------------


def test_a_weight_inside_a_custom_function_is_slow_alone() -> None:
    reason = f"weight: {UNSEEN}"
    assert_right(models.Opaque(), VECTORS, CLASSES, fallback=reason, slow={"weight"})


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(_, weight):  # type: ignore[no-untyped-def]
        return torch.round(weight * 16.0) / 16.0

    @staticmethod
    def backward(_, gradient):  # type: ignore[no-untyped-def]
        return gradient


rounded: Any = Rounded.apply


class Quantised(nn.Module):
    """A weight that goes through a function of the user's own before it meets the records."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, rounded(self.weight), self.bias)


def test_a_weight_behind_a_custom_function_is_slow_alone() -> None:
    assert_right(Quantised(), 1e-3 * VECTORS, CLASSES, fallback=UNSEEN, slow={"weight"})


class Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return gradient * (x.sigmoid() * (1.0 + x * (1.0 - x.sigmoid())))


swish: Any = Activation.apply


def test_a_custom_function_without_parameters_is_no_obstacle() -> None:
    class Swish(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return swish(x)

    model = nn.Sequential(nn.Linear(4, 6), Swish(), nn.Linear(6, 3))
    assert_right(model, VECTORS, CLASSES)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def test_a_parameter_with_a_hook_is_slow_alone() -> None:
    """The hook is called for each record's gradient, as by a loop over the records."""
    model = mlp()
    model[0].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    with watched() as seen:
        total = clipped_sum(model, cross_entropy, VECTORS, CLASSES, clip_norm=0.1)
    expected, _ = by_loop(model, cross_entropy, VECTORS, CLASSES, 0.1, 8)
    assert distance(total.gradients, expected) < 1e-5
    assert seen.slow == {"0.weight"}
    assert seen.fallbacks[0].startswith("0.weight: it has a hook")


def test_hooks_on_modules_and_hidden_tensors_are_no_obstacle() -> None:
    model = mlp()
    model[0].register_forward_hook(lambda _, __, output: 2.0 * output)
    model[2].register_forward_pre_hook(lambda _, args: (args[0] + 0.5,))

    def halve_gradients(_: nn.Module, __: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: 0.5 * gradient)

    model[1].register_forward_hook(halve_gradients)
    with watched() as seen:
        total = clipped_sum(model, cross_entropy, VECTORS, CLASSES, clip_norm=0.1)
    expected, _ = by_loop(model, cross_entropy, VECTORS, CLASSES, 0.1, 8)
    assert distance(total.gradients, expected) < 1e-5
    assert not seen.slow


@pytest.mark.parametrize(
    ("loss", "slow"),
    [
        (lambda m, o, y: cross_entropy(o / m.temperature, y), {"temperature"}),
        (lambda m, o, y: cross_entropy(o, y) + m[0].weight.square().sum(), {"0.weight"}),
        (lambda m, o, y: cross_entropy(o @ m[2].weight @ m[2].weight.t(), y), {"2.weight"}),
    ],
    ids=["temperature", "penalty", "borrowed"],
)
def test_a_parameter_in_the_loss_is_slow_alone(loss: Callable[..., Tensor], slow: set[str]) -> None:
    model = mlp()
    model.temperature = nn.Parameter(torch.tensor(0.7))

    def of_model(outputs: Tensor, targets: Tensor) -> Tensor:
        return loss(model, outputs, targets)

    with watched() as seen:
        total = clipped_sum(model, of_model, VECTORS, CLASSES, clip_norm=0.1)
    expected, _ = by_loop(model, of_model, VECTORS, CLASSES, 0.1, 8)
    assert distance(total.gradients, expected) < 1e-5
    assert seen.slow == slow
    assert all(UNSEEN in each for each in seen.fallbacks)


def test_a_parameter_that_was_seen_before_and_is_now_also_hidden_is_right() -> None:
    """Each path of the graph is looked at on every batch."""
    model = mlp()
    factor = [0.0]

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        found = cross_entropy(outputs, targets)
        return found + factor[0] * model[0].weight.square().sum() if factor[0] else found

    with watched() as seen:
        clipped_sum(model, loss, VECTORS, CLASSES, clip_norm=0.1)
        assert not seen.slow
        factor[0] = 1.0
        total = clipped_sum(model, loss, VECTORS, CLASSES, clip_norm=0.1)
    expected, _ = by_loop(model, loss, VECTORS, CLASSES, 0.1, 8)
    assert distance(total.gradients, expected) < 1e-5
    assert seen.slow == {"0.weight"}


# --- changes in place ---------------------------------------------------------------------------


def test_an_input_that_is_changed_in_place_makes_its_parameter_slow() -> None:
    model = models.ChangedInPlace()
    reason = "changed in place after it was used"
    assert_right(model, VECTORS, None, squares, fallback=reason, slow={"shift"})


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


def test_a_copy_of_a_parameter_that_is_changed_in_place() -> None:
    model = ChangedCopy()
    assert_like_the_loop(model, squares, VECTORS, 8)
    model.mask[:, :2] = 0.0
    assert_like_the_loop(model, squares, VECTORS, 8)


def test_residuals_and_activations_in_place_are_fast() -> None:
    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x)
            hidden += self.second(F.relu_(self.first(x)))
            hidden[:, 0] = 0.5
            return self.head(hidden)

    assert_right(Blocks(), VECTORS, None, squares)


# --- shapes that look like records --------------------------------------------------------------


class Positions(nn.Module):
    """Tokens and positions, as language models have them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.tokens, self.head = nn.Embedding(20, 4), nn.Linear(4, 3)
        self.table = nn.Embedding(12, 4)
        self.ids = nn.Buffer(torch.arange(12))

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        ids = {
            "arange": torch.arange(length),
            "buffer": self.ids[:length],
            "ids per record": self.ids[:length].expand(len(tokens), -1),
        }
        if self.kind == "time first":
            places = self.table(torch.arange(length))[:, None]
            return self.head(torch.tanh(self.tokens(tokens.t()) + places).mean(0))
        places = self.table(ids[self.kind]) if self.kind in ids else self.table.weight[:length]
        return self.head(torch.tanh(self.tokens(tokens) + places).mean(1))


@pytest.mark.parametrize("kind", ["arange", "buffer", "slice", "ids per record", "time first"])
@pytest.mark.parametrize("first", [5, 6, 12, 24])
def test_twelve_positions_meet_twelve_records_on_a_later_batch(kind: str, first: int) -> None:
    """Right sums and no refusal, whatever the numbers of records are in the batches before."""
    model, cache = Positions(kind).double(), CheckCache()
    for records in (first, 12, 6, 24, 12):
        tokens = torch.randint(20, (records, 12))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            total = in_a_loop(
                model,
                lambda tokens=tokens: squares(model(tokens), None),  # type: ignore[misc]
                records,
                clip_norm=0.1,
                cache=cache,
            )
        expected, _ = by_loop(model, squares, tokens, None, 0.1, records)
        assert distance(total.gradients, expected) < 1e-10


@pytest.mark.parametrize("before", [6, 10, 20, 4])
@pytest.mark.parametrize("time_first", [False, True])
def test_sequences_as_long_as_the_batch_on_a_later_batch(before: int, time_first: bool) -> None:
    model = models.SequenceFirst() if time_first else models.GPT(length=10)
    shape = (10, 10, 4) if time_first else (10, 10)
    earlier = (before, *shape[1:])
    if time_first:
        inputs, first = torch.randn(shape), torch.randn(earlier)
        targets, others = torch.randint(3, (10,)), torch.randint(3, (before,))
    else:
        inputs, first = torch.randint(11, shape), torch.randint(11, earlier)
        targets, others = torch.randint(11, shape), torch.randint(11, earlier)
    quietly(model, cross_entropy, first, others, clip_norm=0.1)
    total = quietly(model, cross_entropy, inputs, targets, clip_norm=0.1)
    expected, _ = by_loop(model, cross_entropy, inputs, targets, 0.1, 10)
    assert distance(total.gradients, expected) < 1e-5


def test_the_wrong_dimension_would_be_found() -> None:
    """Sums over the positions' rows in place of the records' are far from right."""
    model, tokens = Positions("arange"), torch.randint(20, (12, 12))
    total = quietly(model, squares, tokens, None, clip_norm=0.1)
    wrong = quietly(model, squares, tokens.t().contiguous(), None, clip_norm=0.1)
    assert distance(wrong.gradients, total.gradients) > 0.01


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_records_in_a_loop_or_in_groups_inside(size: int) -> None:
    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.cat([torch.tanh(self.layer(part)) for part in x.split(size)]))

    assert_like_the_loop(Grouped(), squares, VECTORS, 8)
    assert_like_the_loop(Grouped(), squares, VECTORS[:5], 5)


# --- records that are moved ---------------------------------------------------------------------


class Masked(nn.Module):
    """Only the terms under a mask go through the layer: each record has another number of them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        values = self.head(x[mask]).square().sum(1)
        return torch.zeros(len(x)).index_add(0, mask.nonzero()[:, 0], values)


def itself(outputs: Tensor, targets: None) -> Tensor:
    return outputs


def test_a_mask_does_not_spread_a_record_over_the_others() -> None:
    """As many terms as records, first one of each, then all of the first record."""
    records, model = 8, Masked()
    one_each = torch.zeros(records, records, dtype=torch.bool)
    one_each[:, 0] = True
    x = torch.randn(records, records, 4)
    assert_like_the_loop(model, itself, (x, one_each), records)
    all_by_one = torch.zeros(records, records, dtype=torch.bool)
    all_by_one[0] = True
    total = quietly(model, itself, (x, all_by_one), None, clip_norm=0.1)
    norm = torch.cat([t.flatten() for t in total.gradients.values()]).norm()
    assert float(norm) <= 0.1 * (1.0 + 1e-4)
    assert_like_the_loop(model, itself, (x, all_by_one), records)


class Moved(nn.Module):
    """Puts records into another order, and back."""

    def __init__(self, order: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        order = self.order(x)
        hidden = torch.tanh(self.layer(x[order]))
        return self.head(hidden[order.argsort()])


@pytest.mark.parametrize(
    "order",
    [
        lambda x: torch.arange(len(x)).flip(0),
        lambda x: torch.randperm(len(x)),
        lambda x: x[:, 0].argsort(),
    ],
    ids=["flipped", "at random", "sorted"],
)
def test_records_in_another_order_inside(order: Callable[[Tensor], Tensor]) -> None:
    """Also where the first batch happens to be in order."""
    model = Moved(order)
    assert_like_the_loop(model, squares, torch.zeros(3, 4) + torch.arange(3)[:, None], 3)
    for _ in range(10):
        assert_like_the_loop(model, squares, 2.0 * torch.randn(3, 4), 3)


def test_ragged_records_joined_into_one_row_of_terms() -> None:
    """Graphs and points: all terms of a batch in a row, with the number of the record of each."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    cache = CheckCache()
    for sizes in ([2, 1, 3], [2, 2, 2], [1, 1, 1], [1, 3, 2], [3, 1, 2, 2], [2, 2, 2, 2]):
        x = torch.randn(sum(sizes), 4)
        owners = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))

        def pooled(x: Tensor, owners: Tensor, records: int) -> Tensor:
            found = torch.zeros(records, 3).index_add(0, owners, model(x))
            return found.square().sum(1)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            total = in_a_loop(
                model,
                lambda x=x, owners=owners, sizes=sizes: pooled(x, owners, len(sizes)),  # type: ignore[misc]
                len(sizes),
                clip_norm=0.1,
                cache=cache,
            )

        def alone(one: slice, x: Tensor = x, owners: Tensor = owners) -> Tensor:
            own = owners == one.start
            return pooled(x[own], torch.zeros(int(own.sum())).long(), 1)

        expected, _ = by_losses(model, alone, 0.1, len(sizes))
        assert distance(total.gradients, expected) < 1e-5


# --- several calls ------------------------------------------------------------------------------


def test_a_loop_may_call_the_model_twice_and_parts_of_it() -> None:
    model, x, y = mlp(), torch.randn(8, 4), torch.randn(8, 4)

    def losses(x: Tensor, y: Tensor) -> Tensor:
        return (model(x) - model(y)).square().sum(1) + model[0](y).square().sum(1)

    with watched() as seen:
        total = in_a_loop(model, lambda: losses(x, y), 8, clip_norm=0.1)
    expected, _ = by_losses(model, lambda one: losses(x[one], y[one]), 0.1, 8)
    assert distance(total.gradients, expected) < 1e-5
    assert not seen.slow


def test_calls_without_gradients_and_frozen_teachers_are_no_calls() -> None:
    model, teacher, x = mlp(), mlp().requires_grad_(False), torch.randn(8, 4)

    def losses(x: Tensor) -> Tensor:
        with torch.no_grad():
            target = model(x.flip(0)).flip(0)
        return (model(x) - 0.5 * teacher(x) - 0.1 * target).square().sum(1)

    with watched() as seen:
        total = in_a_loop(model, lambda: losses(x), 8, clip_norm=0.1)
    expected, _ = by_losses(model, lambda one: losses(x[one]), 0.1, 8)
    assert distance(total.gradients, expected) < 1e-5
    assert not seen.slow


def test_reentrant_checkpointing_and_rewritten_tables_are_refused() -> None:
    for model, x, match in (
        (models.Checkpointed(reentrant=True), torch.randn(3, 5, 4), "use_reentrant=False"),
        (RewrittenTable(), torch.randint(9, (3, 5)), "max_norm"),
    ):
        with pytest.raises(InvalidValueError, match=match):
            clipped_sum(model, squares, x, None, clip_norm=1.0)


class RewrittenTable(nn.Module):
    """An embedding by a function, which rewrites the rows that are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, 4))

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.table, max_norm=0.5)
