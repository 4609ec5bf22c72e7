"""Weights multiply clipped gradients: against a loop over single records, for any weights."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.loops import CLASSES, FEATURES, losses, model, own_losses, released_sum
from torch import Tensor

import dither
from dither import Plan
from dither.clipping.clip import STABILIZER, Clip, sum_clipped
from dither.clipping.contributions import PerRecord
from dither.clipping.linear import linear_clipped_sum
from dither.clipping.linear_rows import DenseRows
from dither.training.linear import train_linear
from dither.training.linear_losses import softmax_loss
from dither.types import CLIPPINGS

RECORDS = 8
GENERATOR = torch.Generator().manual_seed(0)
SIZES = torch.logspace(-2, 2, RECORDS)[:, None]
INPUTS = SIZES * torch.randn(RECORDS, FEATURES, generator=GENERATOR)
TARGETS = torch.arange(RECORDS) % CLASSES
WEIGHTS = st.lists(
    st.one_of(
        st.floats(0.0, 1.0),
        st.sampled_from([0.0, 1.0, 1e-30, -2.0, 7.0, math.nan, math.inf, -math.inf]),
    ),
    min_size=RECORDS,
    max_size=RECORDS,
)
HOW = given(WEIGHTS, st.floats(1e-2, 1e2), st.sampled_from(CLIPPINGS))


def weighted_by_hand(gradients: list[Tensor], weights: list[float], C: float, mode: str) -> Tensor:
    """Return Σ w·clip(g), with weights from 0 to 1; what is no number counts as 0."""
    total = torch.zeros_like(gradients[0])
    for g, w in zip(gradients, weights, strict=True):
        bounded = 0.0 if math.isnan(w) else min(max(w, 0.0), 1.0)
        norm = float(g.norm())
        total += bounded * g * (min(1.0, C / norm) if mode == "flat" else C / (norm + STABILIZER))
    return total


def linear_sum(weights: list[float], clip: Clip, records: Any) -> Tensor:
    return linear_clipped_sum(
        DenseRows(INPUTS.double(), clip, torch.tensor(weights)),
        torch.ones(FEATURES, CLASSES).double(),
        softmax_loss(TARGETS.numpy(), CLASSES).gradients, records,
    ).gradients["weight"]  # fmt: skip


@HOW
def test_the_linear_path_adds_weighted_clipped_gradients(
    weights: list[float], C: float, mode: str
) -> None:
    gradients = []
    for x, y in zip(INPUTS.double(), TARGETS, strict=True):
        r = torch.softmax(x @ torch.ones(FEATURES, CLASSES).double(), 0)
        r[y] -= 1.0
        gradients.append(torch.outer(x, r))
    every = np.arange(RECORDS)
    total = linear_sum(weights, Clip(C, mode), every)
    by_hand = weighted_by_hand(gradients, weights, C, mode)
    # Both are sums of eight terms of at most C in float64, but the weights are float32.
    assert float((total - by_hand).norm()) <= 1e-6 * RECORDS * C
    for record in every:
        change = total - linear_sum(weights, Clip(C, mode), np.delete(every, record))
        assert float(change.norm()) <= C * (1.0 + 1e-9)


@settings(max_examples=15)
@HOW
def test_a_loop_adds_weighted_clipped_gradients(weights: list[float], C: float, mode: str) -> None:
    made, of_records = model(), []
    for i in range(RECORDS):
        loss = own_losses(made, INPUTS[i : i + 1], TARGETS[i : i + 1]).sum()
        found = torch.autograd.grad(loss, [*made.parameters()])
        of_records.append(torch.cat([each.flatten() for each in found]).double())
    plan = Plan.unsafe_without_noise(
        steps=1, dataset_size=RECORDS, batch_size=RECORDS, clip_norm=C, clipping=mode
    )

    def total(chosen: Tensor, size: int) -> Tensor:
        run = dither.make_private(
            made, torch.optim.SGD(made.parameters(), lr=1e-30), plan,
            (INPUTS[chosen], TARGETS[chosen], torch.tensor(weights)[chosen]), seed=1,
        )  # fmt: skip
        for batch in run.batches():
            for x, y, w in run.microbatches(batch, size):
                run.backward(losses(run, x, y), w)
            found = released_sum(run)
        run.close()
        return found.double()

    every = torch.arange(RECORDS)
    by_hand = weighted_by_hand(of_records, weights, C, mode)
    in_parts = total(every, 3)
    assert float((in_parts - by_hand).norm()) <= 1e-5 * RECORDS * C
    change = in_parts - total(every[1:], RECORDS)
    assert float(change.norm()) <= C * (1.0 + 1e-4)  # a tenth of what `release.margin` pays for


def test_records_that_are_computed_again_in_double_precision_keep_their_weights() -> None:
    rows = torch.tensor([[3.0, 4.0], [1e25, 0.0], [0.0, 2e30], [math.nan, 0.0]])  # squares overflow
    weights = torch.tensor([0.5, 0.25, 1.0, 0.5])
    sums, _ = sum_clipped({"w": PerRecord(rows)}, Clip(1.0), weights)
    assert torch.allclose(sums["w"], torch.tensor([0.5 * 0.6 + 0.25, 0.5 * 0.8 + 1.0]))


@pytest.mark.parametrize("clip_norm", [0.1, 100.0])
def test_integer_weights_are_repeated_records_without_noise(clip_norm: float) -> None:
    counts = torch.tensor([0, 1, 2, 4, 3, 0, 1, 4])
    more = torch.repeat_interleave(torch.arange(RECORDS), counts)
    x, scale = INPUTS.double(), 4.0 * RECORDS / len(more)  # means divide by other numbers

    def fit(chosen: Tensor, stepsize: float, weights: Tensor | None) -> list[Tensor]:
        plan = Plan.unsafe_without_noise(
            steps=5, dataset_size=len(chosen), batch_size=len(chosen), clip_norm=clip_norm,
            stepsizes=[stepsize] * 5,
        )  # fmt: skip
        direct = train_linear(
            x[chosen], softmax_loss(TARGETS[chosen].numpy(), CLASSES), plan, outputs=CLASSES,
            record_weights=weights,
        )  # fmt: skip
        targets = TARGETS[chosen] if weights is None else (TARGETS[chosen], weights)
        made = dither.train(
            model().double(), (x[chosen], targets), plan, progress=False,
            loss=lambda o, t: torch.nn.functional.cross_entropy(
                o, t if weights is None else t[0], reduction="none"
            ),
            record_weights=None if weights is None else lambda t: t[1],
        )  # fmt: skip
        return [p.detach() for result in (direct, made) for p in result.model.parameters()]

    repeated = fit(more, 0.3, None)
    weighted = fit(torch.arange(RECORDS), 0.3 * scale, counts / 4.0)
    plain = fit(torch.arange(RECORDS), 0.3 * scale, None)
    assert all(torch.allclose(a, b, rtol=1e-9) for a, b in zip(repeated, weighted, strict=True))
    assert not any(torch.allclose(a, b, rtol=1e-3) for a, b in zip(repeated, plain, strict=True))


def test_copies_of_a_record_have_its_weight() -> None:
    made = model()
    plan = Plan.unsafe_without_noise(steps=1, dataset_size=RECORDS, batch_size=RECORDS)

    def total(weights: Tensor, augment: Any) -> Tensor:
        run = dither.make_private(
            made, torch.optim.SGD(made.parameters(), lr=1e-30), plan, (INPUTS, TARGETS, weights),
            seed=1, augment=augment,
        )  # fmt: skip
        for x, y, w in run.batches():
            run.backward(losses(run, x, y), w)
            found = released_sum(run)
        run.close()
        return found

    weights = torch.linspace(0.0, 1.0, RECORDS)
    twice = total(weights, lambda x: torch.stack([x, x], 1))
    assert torch.allclose(twice, total(weights, None), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(twice, total(weights.flip(0), None), rtol=1e-2)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (lambda t: t / t.sum(), "record_weights must give every record its own value"),
        (lambda t: t.float().mean(), "record_weights must be one number per record.*0 dimensions"),
        (lambda t: [1.0], "record_weights must be one number per record.*got list"),
    ],
)
def test_weights_that_mix_records_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dither.train(
            model(), (INPUTS, TARGETS), epsilon=1.0, steps=2, batch_size=RECORDS, progress=False,
            record_weights=weights,
        )  # fmt: skip
