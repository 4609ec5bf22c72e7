"""Loops that would tell more of a record than its clipped gradient: refused, or kept apart.

Each is run on a dataset and on the same without one record. Either it is refused before anything of
the step is released, or the sums differ by no more than the clip norm.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.loops import CLASSES, FEATURES, losses, model
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Subset, TensorDataset

import dither
from dither import Plan, Private
from dither.training import StepError

Compute = Callable[[Private, Tensor, Tensor, dict[str, Any]], Tensor]
RECORDS, CLIP = 16, 0.1


def sums_of(compute: Compute, inputs: Tensor, targets: Tensor, **settings: Any) -> Tensor:
    """Return the clipped sum of the second step, with the first step's parameters."""
    made = settings.pop("model", model)()
    plan = Plan.from_noise_multipliers(
        [1.0] * 2, delta=1e-3, dataset_size=RECORDS, batch_size=RECORDS, clip_norm=CLIP
    )
    optimizer = torch.optim.SGD(made.parameters(), lr=1e-30)
    run = dither.make_private(made, optimizer, plan, (inputs, targets), seed=1, **settings)
    state: dict[str, Any] = {}
    for x, y in run.batches():
        run.backward(compute(run, x, y, state))
        assert run._step is not None
        found = torch.cat([each.flatten() for each in run._step.sums.values()])
        run.optimizer.step()
    return found


def excess(compute: Compute, **settings: Any) -> float:
    """Return by how many clip norms the sum changes when the first record is left out."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(RECORDS, FEATURES, generator=generator)
    targets = torch.randint(CLASSES, (RECORDS,), generator=generator)
    inputs[0] *= 50.0
    whole = sums_of(compute, inputs, targets, **settings)
    return float((whole - sums_of(compute, inputs[1:], targets[1:], **settings)).norm()) / CLIP


def excess_or_refusal(compute: Compute, **settings: Any) -> float:
    """Return the excess, or 0 if the loop is refused."""
    try:
        return excess(compute, **settings)
    except (StepError, ValueError):
        return 0.0


def honest(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    return losses(run, x, y)


def test_an_honest_loop_keeps_to_the_clip_norm_and_comes_near_it() -> None:
    assert 0.9 < excess(honest) < 1.001


def centred(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    outputs = run.model(x)
    centre = state.get("centre", run.public(torch.zeros(CLASSES)))
    state["centre"] = outputs.detach().mean(0) * 50.0
    return functional.cross_entropy(outputs - centre, y, reduction="none")


def by_a_count(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    return losses(run, x, y) / max(1, len(y[y == 1]))


def by_nonzero(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    return losses(run, x, y) / max(1, (y == 1).nonzero().shape[0])


def by_classes(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    return losses(run, x, y) / y.unique().numel()


def written(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    counts = torch.zeros(CLASSES)
    counts.index_add_(0, y, run.public(torch.ones(len(y))))
    return losses(run, x, y) * (1.0 / counts.clamp(min=1.0))[y]


def written_to_public(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    counts = run.public(torch.zeros(CLASSES))
    counts.index_add_(0, y, run.public(torch.ones(len(y))))
    return losses(run, x, y)


def copied_out(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    outputs = run.model(x)
    centre = outputs.detach().mean(0).as_subclass(Tensor).clone()
    return functional.cross_entropy(outputs - centre, y, reduction="none")


def hooked(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    outputs = run.model(x)
    outputs.register_hook(lambda g: g / g.abs().max())
    return functional.cross_entropy(outputs, y, reduction="none")


def by_places(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    return losses(run, x, y) / max(1, len(torch.where(y == 1)[0]))


def by_repeating(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    return losses(run, x, y) / max(1, len(y.repeat_interleave((y == 1).long())))


def by_numpy(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    found = losses(run, x, y)
    return found * np.float32(1.0 / float(found.as_subclass(Tensor).detach().sum()))


def penalised(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    penalty = sum(p.square().sum() for p in run.model.parameters())
    return losses(run, x, y) + 0.01 * penalty


@pytest.mark.parametrize("compute", [
    centred, by_a_count, by_nonzero, by_classes, written, written_to_public, copied_out, penalised,
    hooked, by_places, by_repeating, by_numpy,
])  # fmt: skip
def test_loops_that_are_refused(compute: Compute) -> None:
    words = "declare|hook|values of the batch|earlier batch|write to|parameter|that record alone"
    with pytest.raises((StepError, ValueError), match=words):
        excess(compute)


class Normalised(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(_: Any, *g: Tensor) -> Tensor:
        return g[0] / g[0].norm()


def own_backward(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    outputs = Normalised.apply(run.model(x))  # type: ignore[no-untyped-call]
    return functional.cross_entropy(outputs, y, reduction="none")


def tiny(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    outputs = run.model(x) * 1e-12
    return outputs[:, 0] * outputs.detach().mean() * 1e12


def switched_on(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    outputs = run.model(x)
    weight = run.public(torch.tensor(float(state.setdefault("on", 0))))
    state["on"] = 1
    own = functional.cross_entropy(outputs, y, reduction="none")
    return own + weight * (outputs.detach().mean(0) * outputs).sum(1)


@pytest.mark.parametrize("compute", [own_backward, tiny, switched_on])
def test_loops_that_are_refused_or_kept_apart(compute: Compute) -> None:
    assert excess_or_refusal(compute) < 1.001


def pairs(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    outputs = run.model(x)
    return (outputs[0::2] - outputs[1::2]).square().sum(1).mean()


def hidden_in_the_gradient(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    outputs = run.model(x)
    shared = outputs.mean().square()
    return functional.cross_entropy(outputs, y) + 100.0 * (shared - shared.detach())


@pytest.mark.parametrize("compute", [pairs, hidden_in_the_gradient, hooked])
def test_single_numbers_for_a_batch(compute: Compute) -> None:
    def mean(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
        found = compute(run, x, y, state)
        return found.mean() if found.dim() else found

    assert excess_or_refusal(mean, reduction="mean") < 1.001


def test_a_number_that_follows_the_size_of_the_batch_is_found_when_it_changes() -> None:
    inputs, targets = torch.randn(200, FEATURES), torch.randint(CLASSES, (200,))
    made = model()
    plan = Plan.from_noise_multipliers([1.0] * 5, delta=1e-3, dataset_size=200, batch_size=20)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    run = dither.make_private(made, optimizer, plan, (inputs, targets), seed=1)
    batches = run.batches()
    x, y = next(batches)
    run.backward(losses(run, x, y) * (20.0 / len(x)))
    run.optimizer.step()
    x, y = next(batches)
    found = losses(run, x, y) * (20.0 / len(x))
    with pytest.raises(StepError, match=r"a number in the losses has changed.*private.public"):
        run.backward(found)
    assert run.step == 1


def test_public_numbers_may_change() -> None:
    def warmed(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
        state["step"] = state.get("step", 0) + 1
        return losses(run, x, y) * run.public(0.5 * state["step"])

    assert excess(warmed) < 1.001


@dataclass
class Answer:
    logits: Tensor


class Answering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return Answer(self.layer(x))


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.layer(x)
        return self.seen


class Initialised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift, self.layer = nn.Parameter(torch.zeros(FEATURES)), nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not getattr(self, "is_ready", False):
            self.shift.data.copy_(x.mean(0))
        made: Tensor = self.layer(x - self.shift)
        return made


def from_answer(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    logits = run.model(x).logits
    return functional.cross_entropy(logits - logits.detach().mean(0), y, reduction="none")


def from_memory(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
    outputs = run.model(x)
    return functional.cross_entropy(
        outputs - run.model.seen.detach().mean(0),
        y,
        reduction="none",
    )


@pytest.mark.parametrize(
    ("kind", "compute", "words"),
    [
        (Answering, from_answer, "model must return tensors"),
        (Remembering, from_memory, "declare it with private.public"),
        (Initialised, honest, "its forward pass writes to shift"),
    ],
)
def test_models_that_pass_records_around_their_output(
    kind: type[nn.Module], compute: Compute, words: str
) -> None:
    with pytest.raises((StepError, ValueError), match=words):
        excess(compute, model=kind)


def test_a_model_that_is_changed_from_records_between_steps() -> None:
    def moved(run: Private, x: Tensor, y: Tensor, state: dict[str, Any]) -> Tensor:
        found = losses(run, x, y)
        with torch.no_grad():
            run.model[0].bias += 1.0
        return found

    with pytest.raises(StepError, match=r"changed, and not by the optimizer.*accept_model"):
        excess(moved)


@pytest.mark.parametrize(
    "augment",
    [
        lambda x: ((x - x.mean(0)) / (x.std(0) + 1e-3))[:, None],
        lambda x: torch.stack([x, x.flip(0)], 1),
    ],
)
def test_views_that_mix_records(augment: Any) -> None:
    with pytest.raises(ValueError, match="views of a record from that record alone"):
        excess(honest, augment=augment)


def test_random_views_of_single_records_are_fine() -> None:
    def jittered(x: Tensor) -> Tensor:
        return x[:, None] + 0.1 * torch.randn(len(x), 3, FEATURES)

    inputs, targets = torch.randn(RECORDS, FEATURES), torch.randint(CLASSES, (RECORDS,))
    assert sums_of(honest, inputs, targets, augment=jittered).isfinite().all()


def test_one_record_many_times() -> None:
    data = TensorDataset(torch.randn(4, FEATURES), torch.zeros(4, dtype=torch.int64))
    made = model()
    plan = Plan.unsafe_without_noise(steps=1, dataset_size=4, batch_size=2)
    with pytest.raises(ValueError, match="repeated indices"):
        dither.make_private(
            made, torch.optim.SGD(made.parameters(), lr=1.0), plan, Subset(data, [0] * 3 + [1])
        )


def test_more_rows_than_single_precision_can_add_up() -> None:
    made = model()
    data = torch.zeros(5000, FEATURES), torch.zeros(5000, dtype=torch.int64)
    plan = Plan.unsafe_without_noise(steps=1, dataset_size=5000, batch_size=5000)
    run = dither.make_private(made, torch.optim.SGD(made.parameters(), lr=1.0), plan, data)
    batch = next(run.batches())
    with pytest.raises(StepError, match="at most 4096 rows, got 5000.*pieces"):
        run.model(batch[0])
    for x, y in run.pieces(batch, 1024):
        run.backward(losses(run, x, y))
    run.optimizer.step()


def test_the_same_rows_in_two_rounds_of_pieces() -> None:
    made = model()
    data = torch.randn(8, FEATURES), torch.zeros(8, dtype=torch.int64)
    plan = Plan.unsafe_without_noise(steps=1, dataset_size=8, batch_size=8)
    run = dither.make_private(made, torch.optim.SGD(made.parameters(), lr=1.0), plan, data)
    batch = next(run.batches())
    one, two = run.pieces(batch, 4), run.pieces(batch, 4)
    next(one), next(two)
    x, y = next(one)
    run.backward(losses(run, x, y))
    x, y = next(two)
    found = losses(run, x, y)
    with pytest.raises(StepError, match="twice for the same records"):
        run.backward(found)


def test_measuring_on_the_training_data_itself() -> None:
    data = torch.randn(8, FEATURES), torch.zeros(8, dtype=torch.int64)
    plan = Plan.unsafe_without_noise(steps=1, dataset_size=8, batch_size=8)
    with pytest.raises(ValueError, match="the private training data itself"):
        dither.train(model(), data, plan, evaluate=dither.Public(data), progress=False)
