"""Models and loops that mix records only when a certain record comes, long after they were proven.

Each takes a first step without an outlier and a second step with it. Either something is refused
before the second release, or the outlier changes the sum by no more than the clip norm.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.training.loops import CLASSES, FEATURES, losses, model
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import ConcatDataset, TensorDataset

import dither
from dither import Plan, Private
from dither.training import StepError

Compute = Callable[[Private, Any, dict[str, Any]], None]
RECORDS, CLIP = 16, 0.1


class FromTheSecondStep:
    """Draws all records, but the last one not in the first step."""

    def __init__(self, has_outlier: bool) -> None:
        self._has_outlier, self._step = has_outlier, 0

    def draw(self, length: int, stream: object) -> Any:
        self._step += 1
        late = self._has_outlier and self._step == 1
        return torch.arange(length - 1 if late else length).numpy()


def sum_of(compute: Compute, has_outlier: bool, **settings: Any) -> Tensor:
    """Return the clipped sum of the second step."""
    torch.manual_seed(0)
    made = settings.pop("model", model)()
    outlier = settings.pop("outlier", 50.0)
    generator = torch.Generator().manual_seed(3)
    inputs = torch.rand(RECORDS + 1, FEATURES, generator=generator)
    targets = torch.randint(CLASSES, (RECORDS + 1,), generator=generator)
    inputs[-1] = outlier
    if not has_outlier:
        inputs, targets = inputs[:-1], targets[:-1]
    plan = Plan.from_noise_multipliers(
        [1.0] * 2, delta=1e-3, dataset_size=RECORDS, batch_size=RECORDS, clip_norm=CLIP
    )
    optimizer = torch.optim.SGD(made.parameters(), lr=1e-30)
    run = dither.make_private(made, optimizer, plan, (inputs, targets), seed=1, **settings)
    run._sampler = FromTheSecondStep(has_outlier)
    state: dict[str, Any] = {}
    for batch in run.batches():
        compute(run, batch, state)
        assert run._step is not None
        found = torch.cat([each.flatten() for each in run._step.sums.values()])
        run.optimizer.step()
    return found


def change(compute: Compute, **settings: Any) -> float:
    """Return by how many clip norms the outlier changes the sum; 0 if it is refused."""
    without = sum_of(compute, has_outlier=False, **settings)
    try:
        return float((sum_of(compute, has_outlier=True, **settings) - without).norm()) / CLIP
    except (StepError, ValueError):
        return 0.0


def by(loss: Callable[..., Tensor]) -> Compute:
    """Return a loop over whole batches."""
    return lambda run, batch, state: run.backward(loss(run, *batch, state))


def honest(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    return losses(run, x, y)


def test_an_honest_loop_comes_near_the_clip_norm() -> None:
    assert 0.9 < change(by(honest)) < 1.001


def scaled_by_the_largest(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    return losses(run, x / x.max().clamp(min=1.0), y)


def imputed(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    x = x.clone()
    mean: Any = x.nanmean()
    x[x.isnan()] = mean
    return losses(run, x, y)


def written_targets(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    y[y == 1] = y.max()
    return losses(run, x, y)


def rolled_in_place(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    x.lerp_(x.roll(1, 0), 0.5)
    return losses(run, x, y)


def behind_the_tape(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    x.data.sub_(x.data.mean())
    return losses(run, x, y)


def branching_on_the_size(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    found = losses(run, x, y)
    return found / 4.0 if len(x) > RECORDS else found


def carried_into_the_model(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    shift = state.get("shift", run.public(torch.zeros(FEATURES)))
    found = losses(run, x + shift, y)
    state["shift"] = x.mean(0)
    return found


def formatted(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    return losses(run, x, y) / (4.0 if float(f"{x.max():.3f}") > 2.0 else 1.0)


def printed(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    return losses(run, x, y) / (4.0 if "50" in str(x.max()) else 1.0)


@pytest.mark.parametrize("loss", [
    scaled_by_the_largest, imputed, written_targets, rolled_in_place, behind_the_tape,
    branching_on_the_size, carried_into_the_model, formatted, printed,
])  # fmt: skip
def test_loops(loss: Any) -> None:
    try:
        assert change(by(loss)) < 1.001
    except (StepError, ValueError):  # refused even without the outlier
        return


def read_outside_the_pieces(run: Private, batch: Any, state: dict[str, Any]) -> None:
    many = bool((batch[0] > 2.0).any())
    for x, y in run.pieces(batch, 8):
        found = losses(run, x, y)
        run.backward(found / 4.0 if many else found)


def public_until_changed(run: Private, batch: Any, state: dict[str, Any]) -> None:
    x, y = batch
    shift = state.setdefault("shift", run.public(torch.zeros(1)))
    run.backward(losses(run, x + shift, y))
    shift.add_(x.max())


@pytest.mark.parametrize("compute", [read_outside_the_pieces, public_until_changed])
def test_loops_that_are_refused(compute: Compute) -> None:
    with pytest.raises((StepError, ValueError), match="values of the batch|declare it again"):
        sum_of(compute, has_outlier=True)


class Model(nn.Module):
    """A linear layer with something before it, or after it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("code", torch.zeros(FEATURES))
        self.calls = 0

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        return self.layer(x)


class Masking(Model):
    def forward(self, x: Tensor) -> Any:
        outputs = self.layer(x)
        return outputs, outputs[:, 0] <= outputs[:, 0].mean() + 0.5


class Shifting(Model):
    def forward(self, x: Tensor) -> Any:
        return self.layer(x - torch.where(x.isnan().any() | (x > 9.0).any(), 0.9, 0.0))


class Imputing(Model):
    def forward(self, x: Tensor) -> Any:
        return self.layer(torch.where(x > 9.0, torch.where(x > 9.0, 0.0, x).sum(0), x))


class Counting(Model):
    def forward(self, x: Tensor) -> Any:
        return self.layer(x * (1.0 if len(x) <= RECORDS else 0.1))


class CountingWithDropout(Model):
    def forward(self, x: Tensor) -> Any:
        return self.layer(torch.sin(functional.dropout(x, 0.1, self.training) * len(x)))


class Keeping(Model):
    def forward(self, x: Tensor) -> Any:
        if self.calls > 40:
            with torch.no_grad():
                self.get_buffer("code").copy_(x.mean(0))
        return super().forward(x)


def masked(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    outputs, kept = run.model(x)
    return functional.cross_entropy(outputs, y, reduction="none") * kept


@pytest.mark.filterwarnings("ignore::dither.clipping.FallbackWarning")
@pytest.mark.parametrize(("kind", "loss"), [
    (Masking, masked), (Shifting, honest), (Imputing, honest), (Counting, honest),
])  # fmt: skip
def test_models(kind: Any, loss: Any) -> None:
    try:
        assert change(by(loss), model=kind) < 1.001
    except (StepError, ValueError):
        return


def test_a_size_behind_dropout_is_found() -> None:
    with pytest.raises(ValueError, match="or with their number"):
        sum_of(by(honest), has_outlier=False, model=CountingWithDropout)


def test_what_is_kept_late_is_refused_and_wiped() -> None:
    kept = Keeping()

    def again(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
        kept.calls = 41 if run.step else 0
        return losses(run, x, y)

    with pytest.raises(StepError, match="must keep nothing of its records"):
        sum_of(by(again), has_outlier=True, model=lambda: kept)
    assert not kept.get_buffer("code").any()


def test_views_scaled_by_the_largest() -> None:
    def scaled(x: Tensor) -> Tensor:
        return (x / x.amax().clamp(min=1.0))[:, None]

    with pytest.raises(ValueError, match="views of a record from that record alone"):
        sum_of(by(honest), has_outlier=True, augment=scaled)


def test_views_made_record_by_record() -> None:
    def stacked(x: Tensor) -> Tensor:
        return torch.stack([torch.stack([each, -each]) for each in x])

    def at_once(x: Tensor) -> Tensor:
        return torch.stack([x, -x], 1)

    both = [sum_of(by(honest), has_outlier=True, augment=each) for each in (stacked, at_once)]
    assert float((both[0] - both[1]).abs().max()) < 1e-6


def test_a_batch_that_was_left_comes_again() -> None:
    made = model()
    data = torch.randn(200, FEATURES), torch.randint(CLASSES, (200,))
    plan = Plan.from_noise_multipliers([1.0] * 2, delta=1e-3, dataset_size=200, batch_size=50)
    run = dither.make_private(made, torch.optim.SGD(made.parameters(), lr=1.0), plan, data)
    batches = [next(run.batches())[0].as_subclass(Tensor) for _ in range(3)]
    assert all(torch.equal(batches[0], each) for each in batches)
    x, y = next(run.batches())
    run.backward(losses(run, x, y))
    run.optimizer.step()
    following = next(run.batches())[0].as_subclass(Tensor)
    assert following.shape != batches[0].shape or not torch.equal(following, batches[0])


def test_the_same_dataset_twice() -> None:
    data = TensorDataset(torch.randn(4, FEATURES), torch.zeros(4, dtype=torch.int64))
    made, plan = model(), Plan.unsafe_without_noise(steps=1, dataset_size=8, batch_size=2)
    twice: ConcatDataset[Any] = ConcatDataset([data, data])
    with pytest.raises(ValueError, match="the same dataset twice"):
        dither.make_private(made, torch.optim.SGD(made.parameters(), lr=1.0), plan, twice)


def test_loops_that_change_by_the_number_of_the_step() -> None:
    def warmed(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
        found = losses(run, x, y)
        if run.step < 1:
            return found
        run.accept_loop()
        return found * 0.5

    assert change(by(warmed)) < 1.001


def test_the_number_of_rows_for_the_model() -> None:
    class Divided(Model):
        def forward(self, x: Tensor, rows: int = 1) -> Any:
            return self.layer(x / (1.0 + rows))

    def with_rows(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
        return functional.cross_entropy(run.model(x, len(x)), y, reduction="none")

    with pytest.raises(StepError, match="called with the number of rows"):
        sum_of(by(with_rows), has_outlier=True, model=Divided)
