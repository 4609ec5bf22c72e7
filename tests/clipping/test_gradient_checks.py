"""Losses that mix records are refused, and rules that are wrong are found; no others are."""

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
    refusal_of,
    squares,
    watched,
)
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from dither.clipping import PerRecord, clipped_sum, register
from dither.clipping.recording import CheckCache
from dither.validate import InvalidValueError

RECORDS = 8
OTHERS = "depend on other records"


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


# --- losses of other records --------------------------------------------------------------------


def contrastive(outputs: Tensor, targets: Any) -> Tensor:
    own = F.normalize(outputs, dim=1)
    return F.cross_entropy(own @ own.t() / 0.1, torch.arange(len(own)), reduction="none")


def center_loss(outputs: Tensor, targets: Any) -> Tensor:
    return (outputs - outputs.mean(0)).square().sum(1)


MIXING: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "contrastive": contrastive,
    "centre": center_loss,
    "mean, for every record": lambda o, y: o.square().mean().expand(len(o)),
    "one of them is of all": lambda o, y: torch.cat([o[:-1].sum(1), o.sum().reshape(1)]),
    "triplets": lambda o, y: (o - o.roll(1, 0)).square().sum(1) - (o - o.roll(2, 0)).sum(1),
    "softmax over records": lambda o, y: o.softmax(0).sum(1),
    "covariance": lambda o, y: o.square().sum(1) + (o - o.mean(0)).t().matmul(o).square().sum(),
    "reversed": lambda o, y: o.square().sum(1).flip(0),
    "ranked": lambda o, y: o.square().sum(1).sort().values,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MIXING)
def test_losses_that_mix_records_are_refused(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(16, 4).to(dtype)
    refusal = refusal_of(mlp().to(dtype), MIXING[name], x, None)
    assert refusal is not None
    assert OTHERS in refusal
    assert refusal_of(mlp().to(dtype), squares, x, None) is None


def view_pairs(outputs: Tensor) -> tuple[Tensor, Tensor]:
    one, two = outputs.chunk(2)
    return one, two


def test_losses_between_views_of_one_record_pass_and_between_records_do_not() -> None:
    """Two rows of outputs per record: distances within a pair are its own, all others are not."""
    model, x = mlp(), torch.randn(RECORDS, 4)

    def own(outputs: Tensor) -> Tensor:
        one, two = view_pairs(outputs)
        return (one - two).square().sum(1)

    def all_pairs(outputs: Tensor) -> Tensor:
        one, two = view_pairs(outputs)
        return F.cross_entropy(one @ two.t(), torch.arange(len(one)), reduction="none")

    with watched():
        total = in_a_loop(
            model, lambda: own(model(torch.cat([x, 0.5 * x]))), RECORDS, clip_norm=0.1
        )
    expected, _ = by_losses(
        model, lambda one: own(model(torch.cat([x[one], 0.5 * x[one]]))), 0.1, RECORDS
    )
    assert distance(total.gradients, expected) < 1e-5
    with pytest.raises(InvalidValueError, match=OTHERS):
        in_a_loop(model, lambda: all_pairs(model(torch.cat([x, 0.5 * x]))), RECORDS, clip_norm=0.1)


class Prototypes(nn.Module):
    """Returns features, and one prototype per class: a parameter, not rows of records."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layer, self.prototypes = nn.Linear(4, 3), nn.Parameter(torch.randn(classes, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), self.prototypes * 2.0


@pytest.mark.parametrize("classes", [RECORDS, 5])
def test_losses_may_use_outputs_that_are_the_same_for_all_records(classes: int) -> None:
    def nearest(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        features, prototypes = outputs
        return F.cross_entropy(-torch.cdist(features, prototypes), targets, reduction="none")

    model, x, y = Prototypes(classes), torch.randn(RECORDS, 4), torch.randint(classes, (RECORDS,))
    total = quietly(model, nearest, x, y, clip_norm=0.1)
    expected, _ = by_loop(model, nearest, x, y, 0.1, RECORDS)
    assert distance(total.gradients, expected) < 1e-5


def test_losses_of_outputs_with_the_records_second() -> None:
    model = nn.Linear(4, 3)
    x = torch.randn(RECORDS, 5, 4)

    def loss(outputs: Tensor) -> Tensor:
        return outputs.square().sum((0, 2))

    with watched():
        total = in_a_loop(model, lambda: loss(model(x.transpose(0, 1))), RECORDS, clip_norm=0.1)
    expected, _ = by_losses(model, lambda one: loss(model(x[one].transpose(0, 1))), 0.1, RECORDS)
    assert distance(total.gradients, expected) < 1e-5


def test_losses_may_be_random_or_zero_for_some_records() -> None:
    model, x, y = mlp(), torch.randn(RECORDS, 4), torch.randint(3, (RECORDS,))
    assert refusal_of(model, lambda o, t: F.dropout(cross_entropy(o, t), 0.5), x, y) is None
    assert refusal_of(model, lambda o, t: cross_entropy(o, t) * (t > 0), x, y) is None
    assert refusal_of(mlp(), lambda o, t: cross_entropy(o, t) * 0.0, x, y) is None


def test_losses_are_looked_at_again_after_outputs_that_no_record_changed() -> None:
    """A head that begins at zero gives the same outputs for all records."""
    model, x = mlp(), torch.randn(RECORDS, 4)
    model[2].weight.data.zero_()
    quietly(model, center_loss, x, None, clip_norm=1.0)
    model[2].weight.data.normal_()
    refusal = refusal_of(model, center_loss, x, None)
    assert refusal is not None
    assert OTHERS in refusal


def test_losses_of_no_output_are_refused() -> None:
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    with pytest.raises(InvalidValueError, match="losses without a graph"):
        clipped_sum(models.Twice(), lambda o, t: cross_entropy(o, t).detach(), x, y, clip_norm=1.0)


# --- rules --------------------------------------------------------------------------------------


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def registered(kind: type[nn.Module], rows: Callable[[Tensor, Tensor], Tensor]) -> nn.Sequential:
    """A model with a layer of a kind, whose rule gives these gradients."""

    @register(kind)
    def rule(call: Any, gradient: Tensor) -> list[tuple[Tensor, PerRecord]]:
        return [(call.function.factor, PerRecord(rows(call.args[0], gradient)))]

    return nn.Sequential(kind(), nn.Linear(4, 3))


WRONG: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "half": lambda x, gradient: 0.5 * x * gradient,
    "two percent more": lambda x, gradient: 1.02 * x * gradient,
    "without the input": lambda x, gradient: gradient.clone(),
    "of other records": lambda x, gradient: (x * gradient).roll(1, 0),
    "the mean for everybody": lambda x, gradient: (x * gradient).mean(0).expand(len(x), -1),
    "one record missing": lambda x, gradient: x * gradient * (torch.arange(len(x)) > 0)[:, None],
    "one entry missing": lambda x, gradient: x * gradient * torch.tensor([1.0, 1.0, 1.0, 0.0]),
    "zero": lambda x, gradient: torch.zeros_like(x),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rules_are_found_and_their_parameters_computed_record_by_record(name: str) -> None:
    class Own(Scale):
        pass

    model, x, y = registered(Own, WRONG[name]), torch.randn(6, 4), torch.randint(3, (6,))
    reason = "0.factor: its gradient by rules is not what plain autograd gives"
    assert_right(model, x, y, fallback=reason, slow={"0.factor"})
    with watched() as seen:
        clipped_sum(model, cross_entropy, x, y, clip_norm=1.0)
        clipped_sum(model, cross_entropy, x[:5], y[:5], clip_norm=1.0)
    assert len(seen.fallbacks) == 1
    assert seen.slow == {"0.factor"}


def test_right_rules_are_not_doubted() -> None:
    class Own(Scale):
        pass

    model = registered(Own, lambda x, gradient: x * gradient)
    assert_right(model, torch.randn(6, 4), torch.randint(3, (6,)))


def test_a_rule_that_is_wrong_for_another_kind_of_input_only_is_found() -> None:
    """What was compared for vectors says nothing about sequences."""

    class Own(Scale):
        pass

    def rows(x: Tensor, gradient: Tensor) -> Tensor:
        return x * gradient if x.dim() == 2 else (x * gradient)[:, 0]

    model = registered(Own, rows)
    vectors, sequences = torch.randn(6, 4), torch.randn(6, 5, 4)
    assert_right(model, vectors, None, squares)
    assert_right(
        model, sequences, None, squares, fallback="0.factor", slow={"0.factor"},
        before=(vectors, None),
    )  # fmt: skip


def test_a_rule_is_compared_once_there_is_a_gradient_to_compare() -> None:
    class Own(Scale):
        pass

    model, x, y = registered(Own, WRONG["half"]), torch.randn(6, 4), torch.randint(3, (6,))
    with torch.no_grad():
        model[1].weight.zero_()
    clipped_sum(model, cross_entropy, x, y, clip_norm=1.0)
    model[1].weight.data.normal_()
    with watched() as seen:
        total = clipped_sum(model, cross_entropy, x, y, clip_norm=0.1)
    expected, _ = by_loop(model, cross_entropy, x, y, 0.1, 6)
    assert distance(total.gradients, expected) < 1e-5
    assert seen.slow == {"0.factor"}


def test_a_rule_is_compared_after_a_batch_with_a_record_that_is_not_finite() -> None:
    class Own(Scale):
        pass

    model, x, y = registered(Own, WRONG["half"]), torch.randn(6, 4), torch.randint(3, (6,))
    bad = x.clone()
    bad[1] = torch.nan
    quietly(model, cross_entropy, bad, y, clip_norm=1.0)
    with watched() as seen:
        clipped_sum(model, cross_entropy, x, y, clip_norm=0.1)
    assert seen.slow == {"0.factor"}


def test_the_size_of_what_a_rule_returns_is_checked() -> None:
    class Odd(Scale):
        pass

    @register(Odd)
    def odd(call: Any, gradient: Tensor) -> Any:
        return [(torch.ones(4), PerRecord(torch.ones(1, 4)))]

    with pytest.raises(InvalidValueError, match="rule odd for Odd must"):
        clipped_sum(Odd(), squares, torch.randn(3, 4), None, clip_norm=1.0)


def test_comparisons_cost_nothing_once_they_are_made() -> None:
    """A step is one backward pass: what was compared is not compared again."""
    model, x = mlp(), torch.randn(RECORDS, 4)
    cache = CheckCache()
    passes: list[int] = []

    def count(_: nn.Module, __: Any, output: Tensor) -> None:
        output.register_hook(lambda gradient: passes.append(1))

    for expected in (3, 1, 1):
        passes.clear()
        handle = model[1].register_forward_hook(count)
        in_a_loop(model, lambda: squares(model(x), None), RECORDS, clip_norm=1.0, cache=cache)
        handle.remove()
        assert len(passes) <= expected
