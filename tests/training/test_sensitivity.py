"""One record more or less moves the sum by no more than the clip norm, whatever the loop does.

Every loop runs on a dataset and on the same without its first record, which is an outlier. The sums
are what the steps release without noise.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from tests.training.loops import CLASSES, FEATURES, losses, model, released_sum
from torch import Tensor, nn
from torch.nn import functional

import dither
from dither import Plan
from dither.release import margin
from dither.training import Private
from dither.types import CLIPPINGS

RECORDS, CLIP = 16, 0.1
BOTH = pytest.mark.parametrize("clipping", CLIPPINGS)
Compute = Callable[[Private, Any], None]

pytestmark = pytest.mark.filterwarnings("ignore::dither.clipping.FallbackWarning")


def records(outlier: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(RECORDS, FEATURES, generator=generator)
    targets = torch.randint(CLASSES, (RECORDS,), generator=generator)
    inputs[0] *= outlier
    return inputs, targets


def sums_of(
    compute: Compute,
    dataset: Any,
    make: Callable[[], nn.Module] = model,
    clipping: str = "flat",
    **settings: Any,
) -> list[Tensor]:
    """Return the sums of three steps in which all records take part, and the model stays."""
    torch.manual_seed(0)
    made = make()
    plan = Plan.unsafe_without_noise(
        steps=3, dataset_size=RECORDS, batch_size=RECORDS, clip_norm=CLIP, clipping=clipping
    )
    optimizer = torch.optim.SGD(made.parameters(), lr=1e-30)
    run = dither.make_private(made, optimizer, plan, dataset, seed=1, **settings)
    found = []
    for batch in run.batches():
        compute(run, batch)
        found.append(released_sum(run))
    return found


def changes(compute: Compute, outlier: float = 50.0, **settings: Any) -> list[float]:
    """Return by how many clip norms the first record changes the sum of every step."""
    inputs, targets = records(outlier)
    whole = sums_of(compute, (inputs, targets), **settings)
    rest = sums_of(compute, (inputs[1:], targets[1:]), **settings)
    assert all(total.isfinite().all() for total in (*whole, *rest))
    return [float((a - b).norm()) / CLIP for a, b in zip(whole, rest, strict=True)]


def plain(run: Private, batch: Any) -> None:
    run.backward(losses(run, *batch))


def in_microbatches(run: Private, batch: Any) -> None:
    for x, y in run.microbatches(batch, 5):
        run.backward(losses(run, x, y))


def in_microbatches_of_one(run: Private, batch: Any) -> None:
    for x, y in run.microbatches(batch, 1):
        run.backward(losses(run, x, y))


def by_submodules(run: Private, batch: Any) -> None:
    x, y = batch
    outputs = run.model[2](run.model[1](run.model[0](x)))
    run.backward(functional.cross_entropy(outputs, y, reduction="none"))


def called_twice(run: Private, batch: Any) -> None:
    x, y = batch
    run.backward(losses(run, x, y) + run.model(2.0 * x).square().sum(1))


def with_a_parameter_in_the_loop(run: Private, batch: Any) -> None:
    x, y = batch
    run.backward(losses(run, x, y) + (x @ run.model[0].weight.T).square().sum(1))


def with_a_penalty(run: Private, batch: Any) -> None:
    squares = sum(p.square().sum() for p in run.model.parameters())
    run.backward(losses(run, *batch) + 10.0 * squares)


def with_double_backward(run: Private, batch: Any) -> None:
    x = batch[0].clone().requires_grad_()
    outputs = run.model(x)
    (slope,) = torch.autograd.grad(outputs.square().sum(), x, create_graph=True)
    own = functional.cross_entropy(outputs, batch[1], reduction="none")
    run.backward(own + slope.square().sum(1))


def with_changed_inputs(run: Private, batch: Any) -> None:
    x, y = batch
    x[:, 0] = 0.0
    x.clamp_(-100.0, 100.0)
    run.backward(losses(run, x, y))


def enlarged(run: Private, batch: Any) -> None:
    run.backward(1e6 * losses(run, *batch))


COMPUTES = [
    plain, in_microbatches, in_microbatches_of_one, by_submodules, called_twice,
    with_a_parameter_in_the_loop, with_a_penalty, with_double_backward, with_changed_inputs,
    enlarged,
]  # fmt: skip


@BOTH
@pytest.mark.parametrize("compute", COMPUTES)
def test_an_outlier_changes_every_sum_by_the_clip_norm_and_no_more(
    compute: Compute, clipping: str
) -> None:
    for change in changes(compute, clipping=clipping):
        assert 0.8 < change < 1.0 + 1e-5


def test_without_clipping_it_would_change_the_sum_by_much_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test above does see what it is for."""
    from dither.clipping import clip

    monkeypatch.setattr(
        "dither.clipping.engine.sum_clipped",
        lambda parts, *_: clip.sum_clipped(parts, clip.Clip(float("inf"))),
    )
    assert min(changes(plain)) > 10.0


@BOTH
@pytest.mark.parametrize("outlier", [float("nan"), float("inf"), 1e20, 1e38])
@pytest.mark.parametrize("compute", [
    plain, in_microbatches, by_submodules, called_twice, enlarged,
])  # fmt: skip
def test_records_that_are_not_finite_or_overflow(
    compute: Compute, outlier: float, clipping: str
) -> None:
    for change in changes(compute, outlier, clipping=clipping):
        assert change < 1.0 + 1e-5


@pytest.mark.parametrize("outlier", [float("nan"), float("inf"), 1e20])
@pytest.mark.parametrize("compute", [
    with_a_parameter_in_the_loop, with_double_backward, with_a_penalty,
])  # fmt: skip
def test_records_that_are_not_finite_where_gradients_are_computed_one_by_one(
    compute: Compute, outlier: float
) -> None:
    """Either they count as zero, or they are refused: never are others lost for them."""
    refused = False
    try:
        found = changes(compute, outlier)
    except ValueError as refusal:
        found, refused = [0.0], "makes all of them NaN" in str(refusal)
    assert refused or 0.0 < max(found) < 1.0 + 1e-5


def views(x: Tensor) -> Tensor:
    return torch.stack([x, -x, 0.5 * x], 1)


def random_views(x: Tensor) -> Tensor:
    return x[:, None] + 0.01 * torch.randn(1, 4, FEATURES)


@BOTH
@pytest.mark.parametrize("augment", [views, random_views])
@pytest.mark.parametrize("outlier", [50.0, float("nan")])
@pytest.mark.parametrize("compute", [plain, in_microbatches])
def test_a_record_with_several_views_is_one_record(
    compute: Compute, outlier: float, augment: Any, clipping: str
) -> None:
    for change in changes(compute, outlier, augment=augment, clipping=clipping):
        assert change < 1.0 + 1e-5
        assert outlier != 50.0 or change > 0.5


def test_views_made_record_by_record_are_the_same() -> None:
    def stacked(x: Tensor) -> Tensor:
        return torch.stack([torch.stack([each, -each, 0.5 * each]) for each in x])

    one, two = (sums_of(plain, records(50.0), augment=each) for each in (views, stacked))
    assert all(float((a - b).abs().max()) < 1e-6 for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize(
    "augment",
    [
        lambda x: ((x - x.mean(0)) / (x.std(0) + 1e-3))[:, None],
        lambda x: torch.stack([x, x.flip(0)], 1),
        lambda x: (x / x.abs().amax())[:, None],
        lambda x: 0.5 * (x + x[torch.randperm(len(x))])[:, None],
    ],
    ids=["standardised", "of others", "by the largest", "mixed up"],
)
def test_augmented_copies_that_mix_records_are_refused(augment: Any) -> None:
    with pytest.raises(ValueError, match="copies of a record from that record alone"):
        sums_of(plain, records(50.0), augment=augment)


class Sequences(nn.Module):
    """A recurrent network with an embedding, whose sequences are as long as the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(5, 4), nn.GRU(4, 6, batch_first=True)
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        words = (x[:, :1] + torch.arange(RECORDS)).long().remainder(5)
        return self.last(self.layer(self.table(words))[0].mean(1))


@pytest.mark.parametrize("compute", [plain, in_microbatches, called_twice])
def test_sequences_as_long_as_the_batch(compute: Compute) -> None:
    for change in changes(compute, 1.0, make=Sequences):
        assert 0.0 < change < 1.0 + 1e-5


@BOTH
def test_more_records_than_single_precision_can_add_up(clipping: str) -> None:
    """Five thousand records of the clip norm: rounding stays within what the noise pays for."""

    def total(count: int) -> float:
        made = nn.Linear(1, 1, bias=False)
        plan = Plan.unsafe_without_noise(
            steps=1, dataset_size=5000, batch_size=5000, clip_norm=CLIP, clipping=clipping
        )
        optimizer = torch.optim.SGD(made.parameters(), lr=1.0)
        run = dither.make_private(made, optimizer, plan, torch.full((count, 1), 3.0), seed=1)
        run.backward(run.model(next(run.batches()))[:, 0])
        return float(released_sum(run))

    found = [total(count) for count in (5000, 4999, 4998)]
    for one, two in pairwise(found):
        assert abs(one - two) <= CLIP * (1.0 + margin(5000))
