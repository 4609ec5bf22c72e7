"""Errors and warnings reveal nothing of the batch: not its size, and no values.

A size that is drawn at random is private. Every mistake is made with batches of a size that no
other number in the test has, and with records of a value that is found nowhere else.
"""

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.loops import CLASSES, FEATURES, model
from torch import Tensor, nn
from torch.nn import functional

import dither
from dither import Plan
from dither.clipping import Call, FallbackWarning, PerRecord, register
from dither.clipping.rules import registry
from dither.training import Private

DRAWN, RECORDS, BATCH_SIZE = 37, 4000, 53
VALUE = 8121.0
Mistake = Callable[[Private, Tensor, Tensor], Any]


class Drawn:
    """Draws that many records in every step."""

    def draw(self, length: int, stream: object, step: int = 0) -> Any:
        return np.arange(DRAWN)


def run_of(made: nn.Module, **settings: Any) -> Private:
    plan = Plan.from_noise_multipliers(
        [1.0] * 3, delta=1e-6, dataset_size=RECORDS, batch_size=BATCH_SIZE
    )
    inputs = torch.randn(RECORDS, FEATURES)
    inputs[:, 0] += VALUE
    targets = torch.randint(CLASSES, (RECORDS,))
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    run = dither.make_private(made, optimizer, plan, (inputs, targets), **settings)
    run._draws._sampler = Drawn()
    return run


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def tells_of_the_batch(text: str) -> bool:
    """Return whether a text has the size that was drawn, a number made from it, or values."""
    numbers = {float(found) for found in re.findall(r"\d+(?:\.\d+)?", text.replace(",", ""))}
    sizes = {DRAWN - 1, DRAWN, DRAWN + 1, 2 * DRAWN, 3 * DRAWN, DRAWN // 2, DRAWN - DRAWN // 2}
    return bool(numbers & sizes) or any(abs(each - VALUE) < 100.0 for each in numbers)


def test_texts_that_tell_are_found() -> None:
    assert tells_of_the_batch("expected 37 records, got 36")
    assert tells_of_the_batch("shape (37, 6)")
    assert tells_of_the_batch("a gradient of norm 8,120.52")
    assert not tells_of_the_batch("step 3 of 53, with 4,000 records and 6 features")


def fewer(run: Private, x: Tensor, y: Tensor) -> None:
    run.backward(cross_entropy(run.model(x[:-1]), y[:-1]))


def more(run: Private, x: Tensor, y: Tensor) -> None:
    run.backward(cross_entropy(run.model(torch.cat([x, x])), torch.cat([y, y])))


def one_number(run: Private, x: Tensor, y: Tensor) -> None:
    run.backward(functional.cross_entropy(run.model(x), y))


def a_matrix(run: Private, x: Tensor, y: Tensor) -> None:
    run.backward((run.model(x)[:, :1] - y).square())


def numbers(run: Private, x: Tensor, y: Tensor) -> None:
    run.backward(cross_entropy(run.model(x), y).tolist())  # type: ignore[arg-type]


def without_a_graph(run: Private, x: Tensor, y: Tensor) -> None:
    run.backward(cross_entropy(run.model(x), y).detach())


def contrastive(run: Private, x: Tensor, y: Tensor) -> None:
    outputs = run.model(x)
    run.backward(cross_entropy(outputs @ outputs.T, torch.arange(len(x))))


def not_all_microbatches(run: Private, x: Tensor, y: Tensor) -> None:
    part = next(run.microbatches((x, y), 5))
    run.backward(cross_entropy(run.model(part[0]), part[1]))
    run.optimizer.step()


def microbatches_again(run: Private, x: Tensor, y: Tensor) -> None:
    for _ in range(2):
        for part in run.microbatches((x, y), 5):
            run.backward(cross_entropy(run.model(part[0]), part[1]))


def twice(run: Private, x: Tensor, y: Tensor) -> None:
    for _ in range(2):
        run.backward(cross_entropy(run.model(x), y))


def no_backward(run: Private, x: Tensor, y: Tensor) -> None:
    cross_entropy(run.model(x), y).mean().backward()
    run.optimizer.step()


def no_step(run: Private, x: Tensor, y: Tensor) -> None:
    run.backward(cross_entropy(run.model(x), y))
    next(run._loop)  # type: ignore[arg-type]


def another_rate(run: Private, x: Tensor, y: Tensor) -> None:
    run.backward(cross_entropy(run.model(x), y))
    run.optimizer.param_groups[0]["lr"] = 0.05
    run.optimizer.step()


def a_closure(run: Private, x: Tensor, y: Tensor) -> None:
    run.backward(cross_entropy(run.model(x), y))
    run.optimizer.step(lambda: float(cross_entropy(run.model(x), y).sum()))


def not_finite_in_the_loop(run: Private, x: Tensor, y: Tensor) -> None:
    x[0] = float("nan")
    weight = run.model[0].weight
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        run.backward(functional.linear(x, weight).sum(1))


@pytest.mark.parametrize("mistake", [
    fewer, more, one_number, a_matrix, numbers, without_a_graph, contrastive, not_all_microbatches,
    microbatches_again, twice, no_backward, no_step, another_rate, a_closure,
    not_finite_in_the_loop,
])  # fmt: skip
def test_mistakes_of_a_loop(mistake: Mistake) -> None:
    run = run_of(model())
    batch = next(run.batches())
    with pytest.raises((ValueError, TypeError, RuntimeError)) as refusal:
        mistake(run, *batch)
    text = str(refusal.value)
    assert type(refusal.value).__module__.startswith("dither.")
    assert "\n" not in text
    assert not tells_of_the_batch(text)


class Centred(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class Keeping(nn.Linear):
    def __init__(self, width: int, height: int) -> None:
        super().__init__(width, height)
        self.register_buffer("mean", torch.zeros(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = x.detach().mean(0)
        return super().forward(x)


class Writing(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.bias.copy_(x.mean() * torch.ones(CLASSES))
        return super().forward(x)


@pytest.mark.parametrize("kind", [Centred, Keeping, Writing])
def test_models_that_mix_or_keep_records(kind: type[nn.Linear]) -> None:
    run = run_of(kind(FEATURES, CLASSES))
    x, y = next(run.batches())
    with pytest.raises(ValueError, match="model must") as refusal:
        run.backward(cross_entropy(run.model(x), y))
    assert not tells_of_the_batch(str(refusal.value))


@pytest.mark.parametrize("augment", [
    lambda x: x[:-1, None], lambda x: torch.stack([x, x.flip(0)], 1), lambda x: [x],
    lambda x: x.sum(0),
])  # fmt: skip
def test_views(augment: Any) -> None:
    run = run_of(model(), augment=augment)
    with pytest.raises(ValueError, match="augment must") as refusal:
        next(run.batches())
    assert not tells_of_the_batch(str(refusal.value))


@pytest.mark.parametrize("loss", [
    lambda o, y: cross_entropy(o, y) / len(y),
    lambda o, y: functional.cross_entropy(o, y),
    lambda o, y: cross_entropy(o, y)[:-1],
    lambda o, y: o,
], ids=["divided", "mean", "fewer", "outputs"])  # fmt: skip
def test_losses_of_train(loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dither.training.records.sampler_for", lambda *_, **__: Drawn())
    plan = Plan.from_noise_multipliers(
        [1.0] * 3, delta=1e-6, dataset_size=RECORDS, batch_size=BATCH_SIZE
    )
    dataset = torch.randn(RECORDS, FEATURES), torch.randint(CLASSES, (RECORDS,))
    with pytest.raises(ValueError, match="loss must") as refusal:
        dither.train(model(), dataset, plan, loss=loss, progress=False)
    assert not tells_of_the_batch(str(refusal.value))


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


@pytest.mark.parametrize(
    ("rows", "entries"), [(slice(None), slice(1, None)), (slice(1, None), ...)]
)
def test_rules_that_return_something_else(
    rows: slice, entries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    monkeypatch.setattr(registry, "_LAYERS", {*registry._LAYERS})

    @register(Scale)
    def wrong(call: Call, gradient: Tensor) -> Any:
        own = (gradient * call.args[0])[rows]
        return [(call.function.factor, PerRecord(own[:, entries]))]  # type: ignore[attr-defined]

    run = run_of(nn.Sequential(Scale(), nn.Linear(FEATURES, CLASSES)))
    x, y = next(run.batches())
    with pytest.raises(ValueError, match="must return one gradient per record") as refusal:
        run.backward(cross_entropy(run.model(x), y))
    assert not tells_of_the_batch(str(refusal.value))


def in_the_loop(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(functional.linear(x, module[0].weight)[:, :CLASSES], y)


def with_a_penalty(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(module(x), y) + sum(p.square().sum() for p in module.parameters())


@pytest.mark.parametrize("loss", [in_the_loop, with_a_penalty])
def test_warnings(loss: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> None:
    run = run_of(model())
    batch = next(run.batches())
    with pytest.warns(FallbackWarning) as seen:
        run.backward(loss(run.model, *batch))
    assert not any(tells_of_the_batch(str(each.message)) for each in seen)


def test_what_a_run_says_of_itself() -> None:
    run = run_of(model())
    x, y = next(run.batches())
    run.backward(cross_entropy(run.model(x), y))
    for _ in range(2):
        for text in (repr(run), str(run.spent()), str(run.state_dict())):
            assert not tells_of_the_batch(text)
        if run.step == 0:
            run.optimizer.step()
