"""Automatic clipping: every record is scaled, and none contributes as much as the clip norm."""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp
from tests.clipping.comparing import by_loop, by_losses, cross_entropy, distance, quietly
from torch import Tensor, nn

from dither.clipping import PerRecord, clip, clipped_sum
from dither.clipping.clip import Clip, sum_clipped
from dither.clipping.contributions import Contribution, Lookup, Outer
from dither.clipping.engine import clip_recording
from dither.clipping.recording import CheckCache, ModelHooks, RecordedBatch
from dither.validate import InvalidValueError

PAID = 1e-4
"""What a record may contribute beyond the clip norm: a tenth of what `release.margin` pays for."""


class Pair(nn.Module):
    """Its gradient for a record is the outer product of both inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, bias=False)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return (self.layer(right) * left).flatten(1).sum(1)


class Normalised(nn.Module):
    """Its gradients are stored, one per record."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.norm(right).sum(1) * left[:, 0]


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        ids = torch.arange(2).expand(len(left), 2)
        return (self.table(ids) * left[:, :, None] * right[:, None, :]).flatten(1).sum(1)


class Twice(nn.Module):
    """One layer in two calls, whose gradients cancel where both inputs are alike."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, bias=False)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return ((self.layer(right) - self.layer(right.flip(1))) * left).sum(1)


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(1, 2, 2, bias=False)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return (self.layer(right[:, None]) * left[:, :, None]).flatten(1).sum(1)


KINDS: dict[str, Callable[[], nn.Module]] = {
    "outer": Pair, "stored": Normalised, "table": Table, "twice": Twice, "convolution": Convolved,
}  # fmt: skip


def own(outputs: Tensor, targets: None) -> Tensor:
    return outputs


def batch(*sizes: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Records whose two factors have the given sizes."""
    generator = torch.Generator().manual_seed(4)
    left = torch.randn(len(sizes), 2, generator=generator, dtype=torch.float64)
    right = torch.randn(len(sizes), 3, generator=generator, dtype=torch.float64)
    scale = torch.tensor(sizes, dtype=torch.float64)
    return left * scale[:, :1], right * scale[:, 1:]


def total_of(model: nn.Module, inputs: tuple[Tensor, Tensor], clip_norm: float) -> Tensor:
    """The sum as one vector in float64, after a batch in which everything was compared."""
    dtype = next(model.parameters()).dtype
    ordinary = tuple(each.to(dtype) for each in batch(*[(1.0, 1.0)] * 8))
    how: Any = {"clip_norm": clip_norm, "clipping": "automatic"}
    quietly(model, own, ordinary, None, **how)
    found = quietly(model, own, tuple(each.to(dtype) for each in inputs), None, **how)
    return torch.cat([each.double().flatten() for each in found.gradients.values()])


# --- the sensitivity ----------------------------------------------------------------------------

SIZES = st.floats(-36.0, 36.0).map(lambda power: 10.0**power)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([*KINDS]),
    st.lists(st.tuples(SIZES, SIZES), min_size=3, max_size=4),
    st.floats(-12.0, 8.0),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_no_record_moves_the_sum_by_the_clip_norm(
    kind: str, sizes: list[tuple[float, float]], power: float, dtype: torch.dtype
) -> None:
    """Tiny, huge and cancelling gradients: one record more, or another in its place."""
    model, C = KINDS[kind]().to(dtype), 10.0**power
    rows = batch(*sizes)
    whole, first, second = (
        total_of(model, tuple(each[index] for each in rows), C)  # type: ignore[arg-type]
        for index in ([*range(len(sizes))], [*range(len(sizes) - 1)], [*range(1, len(sizes))])
    )
    assert all(each.isfinite().all() for each in (whole, first, second))
    assert float((whole - first).norm()) <= C * (1.0 + PAID)
    assert float((whole - second).norm()) <= C * (1.0 + PAID)
    assert float((first - second).norm()) <= 2.0 * C * (1.0 + PAID)


def exact_sum(left: Tensor, right: Tensor, C: float) -> list[Any]:
    """Σ C·l⊗r/(‖l⊗r‖ + γ) in fifty digits."""
    with mp.workdps(50):
        total = [mp.mpf(0)] * (left.shape[1] * right.shape[1])
        for l_row, r_row in zip(left.tolist(), right.tolist(), strict=True):
            gradient = [mp.mpf(one) * mp.mpf(two) for one in l_row for two in r_row]
            norm = mp.sqrt(sum(each**2 for each in gradient))
            factor = mp.mpf(C) / (norm + mp.mpf("0.01"))
            total = [a + factor * b for a, b in zip(total, gradient, strict=True)]
        return total


@pytest.mark.parametrize("C", [1e-12, 1e-4, 0.03, 1.0, 1e6, 1e30])
@pytest.mark.parametrize(
    "sizes",
    [(1.0, 1.0), (1e-18, 1.0), (1e-25, 1e20), (1e30, 1e-32), (1e37, 1e-37), (1e18, 1e18)],
)
def test_equals_the_definition_in_fifty_digits(C: float, sizes: tuple[float, float]) -> None:
    rows = batch((1.0, 0.3), sizes, (1e-3, 1.0))
    for dtype, tolerance in ((torch.float32, 2e-6), (torch.float64, 1e-13)):
        inputs = rows[0].to(dtype), rows[1].to(dtype)
        found = total_of(Pair().to(dtype), inputs, C).tolist()
        expected = exact_sum(*inputs, C)
        worst = max(abs(float(a - b)) for a, b in zip(expected, found, strict=True))
        assert worst <= tolerance * 3.0 * C


@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("sizes", [(1e38, 1e-40), (3e37, 3e-38), (1e-40, 1e38)])
def test_a_large_factor_does_not_overflow(C: float, sizes: tuple[float, float]) -> None:
    """The gradient is short, so its factor is above 1, and one of its two inputs is the largest."""
    left, right = torch.full((1, 2), sizes[0]), torch.full((1, 3), sizes[1])
    found = total_of(Pair(), (left, right), C)
    assert found.isfinite().all()
    assert float(found.norm()) < C
    expected = [float(each) for each in exact_sum(left, right, C)]
    assert found.tolist() == pytest.approx(expected, rel=1e-2)  # of numbers with few digits


def test_a_factor_that_is_not_split_would_overflow() -> None:
    left, right = torch.full((1, 2), 1e38), torch.full((1, 3), 1e-40)
    factor = 1.0 / (float(left.double().norm() * right.double().norm()) + 0.01)
    assert factor > 1.0
    assert not ((left * factor).T @ right).isfinite().all()


@given(st.floats(1e-50, 1e50), st.floats(0.0, 1e300))
def test_factors_are_at_most_one_and_their_product_with_the_scale_is_the_factor(
    C: float, norm: float
) -> None:
    made = Clip(C, "automatic")
    (factor,) = made.factors(torch.tensor([norm], dtype=torch.float64)).tolist()
    assert 0.0 <= factor <= 1.0
    assert math.frexp(made.scale)[0] == 0.5  # a power of two: the product is exact
    assert factor * made.scale == pytest.approx(C / (norm + 0.01), rel=1e-15, abs=1e-250)
    assert factor * made.scale * norm < C * (1.0 + 1e-15)


def test_numbers_with_few_digits_times_factors_do_not_exceed_the_clip_norm() -> None:
    made, plain = Clip(1.0, "automatic"), []
    for size in np.geomspace(1e-44, 1e-37, 50):
        part = Outer(torch.full((1, 2, 40), size), torch.full((1, 2, 48), 2.9e38))
        assert part.inner_products_are_cheaper()
        assert largest_share({"weight": part}) < 1.0
        norm = float(part.left.double().norm() * part.right.values.double().norm())
        factors = made.factors(torch.tensor([norm]).double())
        plain.append(float(made.scale * part.weighted_sum(factors.float()).double().norm()))
    assert max(plain) > 1.0  # in single precision such products are rounded upwards


@pytest.mark.parametrize("C", [1e-7, 1e-5, 1e-3, 1.0])
@pytest.mark.parametrize("mode", ["flat", "automatic"])
def test_large_inputs_and_small_gradients_do_not_exceed_the_clip_norm(mode: str, C: float) -> None:
    """A gradient times its factor is then a number with few digits, times a large input."""
    generator, worst = torch.Generator().manual_seed(0), 0.0
    for size in np.geomspace(1e-44, 1e-13, 200):
        left = size * torch.rand(1, 2, 40, generator=generator)
        sums, _ = sum_clipped({"w": Outer(left, torch.full((1, 2, 48), 2.9e38))}, Clip(C, mode))
        worst = max(worst, float(sums["w"].double().norm()) / C)
    assert 0.9 < worst < 1.0 + 1e-5


# --- what the tests above are for is found ------------------------------------------------------


def largest_share(contributions: dict[str, Contribution], C: float = 1.0) -> float:
    """The contribution of a single record, relative to the clip norm."""
    sums, _ = sum_clipped({**contributions}, Clip(C, "automatic"))
    return float(torch.stack([each.double().norm() for each in sums.values()]).norm()) / C


def parts() -> dict[str, Contribution]:
    torch.manual_seed(0)
    ids, values = torch.tensor([[1, 1, 2]]), 30.0 * torch.randn(1, 3, 4)
    return {
        "outer": Outer(30.0 * torch.randn(1, 5, 3), torch.randn(1, 5, 2)),
        "table": Lookup(ids, values, size=4),
        "stored": PerRecord(20.0 * torch.randn(1, 6)),
    }


def test_a_norm_that_is_too_small_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0.99 < largest_share(parts()) < 1.0
    right = clip._totals
    monkeypatch.setattr(
        "dither.clipping.clip._totals",
        lambda given: tuple(0.995 * each for each in right(given)),
    )
    assert largest_share(parts()) > 1.0 + 10.0 * PAID


def test_the_bound_is_used_and_not_the_estimate() -> None:
    """Terms that cancel: the norm alone is too small by what rounding has hidden of it."""

    class Doubtful(PerRecord):
        def norms(self) -> tuple[Tensor, Tensor | None]:
            squared, _ = super().norms()
            return 0.5 * squared, (1.0 if self.dtype == torch.float32 else 0.5) * squared

    made: dict[str, Contribution] = {"weight": Doubtful(torch.full((1, 4), 50.0))}
    assert 0.99 < largest_share(made) < 1.0


def test_without_gamma_a_gradient_of_zeros_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = {"weight": PerRecord(torch.zeros(2, 3))}
    sums, norms = sum_clipped({**zeros}, Clip(1.0, "automatic"))
    assert not sums["weight"].any()
    assert not norms.any()
    monkeypatch.setattr("dither.clipping.clip.STABILIZER", 0.0)
    sums, _ = sum_clipped({**zeros}, Clip(1.0, "automatic"))
    assert sums["weight"].isnan().all()


# --- records, microbatches, augmentation --------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_records_that_are_not_finite_count_as_zero(engine: str, bad: float) -> None:
    model, x, y = network(), torch.randn(9, 4), torch.randint(3, (9,))
    how: Any = {"clip_norm": 0.5, "clipping": "automatic", "engine": engine}
    good = torch.arange(9) != 2
    expected, _ = by_loop(model, cross_entropy, x[good], y[good], 0.5, 8, "automatic")
    x[2] = bad
    total = clipped_sum(model, cross_entropy, x, y, **how)
    assert distance(total.gradients, expected) < 1e-5
    assert math.isinf(float(total.norms[2]))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_microbatches_give_the_same_result(size: int) -> None:
    model, x, y = network(), torch.randn(5, 4), torch.randint(3, (5,))
    how: Any = {"clip_norm": 0.5, "clipping": "automatic"}
    whole = clipped_sum(model, cross_entropy, x, y, **how)
    found = clipped_sum(model, cross_entropy, x, y, microbatch_size=size, **how)
    assert distance(found.gradients, whole.gradients) < 1e-6


def test_copies_of_a_record_are_averaged_before_they_are_scaled() -> None:
    model, x, y = network(), torch.randn(6, 4), torch.randint(3, (3,)).repeat_interleave(2)
    recording, hooks = RecordedBatch(model, 6, CheckCache()), ModelHooks(model)
    hooks.begin(recording)
    losses = cross_entropy(model(x), y)
    hooks.begin(None)
    total = clip_recording(recording, losses, Clip(0.5, "automatic"), torch.tensor([2, 2, 2]))
    hooks.remove()
    single = copy.deepcopy(model)
    expected, _ = by_losses(
        single,
        lambda one: cross_entropy(
            single(x[2 * one.start : 2 * one.stop]), y[2 * one.start : 2 * one.stop]
        ).mean(),
        0.5,
        3,
        "automatic",
    )
    assert distance(total.gradients, expected) < 1e-5


def test_settings_that_are_refused() -> None:
    arguments: Any = (network(), cross_entropy, torch.randn(3, 4), torch.zeros(3).long())
    with pytest.raises(InvalidValueError, match="clipping must be one of automatic, flat, got 'a'"):
        clipped_sum(*arguments, clip_norm=1.0, clipping="a")
    with pytest.raises(InvalidValueError, match="clip_norm must be finite where clipping is 'auto"):
        clipped_sum(*arguments, clip_norm=math.inf, clipping="automatic")
