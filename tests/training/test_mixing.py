"""Losses and models in which records depend on each other break the bound: found in the first step.

What is found is refused before anything is released. Honest loops that look alike must run, and
release the sum that is computed record by record.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.loops import (
    CLASSES,
    FEATURES,
    RECORDS,
    data,
    distance,
    losses,
    model,
    noisy_plan,
    private,
    quiet_plan,
    released_sum,
    sum_by_hand,
    take_steps,
)
from torch import Tensor, nn
from torch.nn import functional

import dither
from dither.training import Private

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
WEIGHTS = torch.tensor([1.0, 5.0, 0.2])
OF_LOSSES = "losses must be one per record, each from the model's outputs for its own record"
OF_MODELS = "model must treat every record by itself"


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def contrastive(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    outputs = functional.normalize(module(x))
    return functional.cross_entropy(
        outputs @ outputs.T, torch.arange(len(outputs)), reduction="none"
    )


def two_views(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    one, two = (functional.normalize(module(each)) for each in (x, x.flip(1)))
    return -functional.log_softmax(one @ two.T / 0.5, dim=1).diagonal()


def softmax_over_records(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return -functional.log_softmax(module(x), dim=0).gather(1, y[:, None]).squeeze(1)


def standardised(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    outputs = module(x)
    return cross_entropy((outputs - outputs.mean(0)) / outputs.std(0), y)


def reversed_outputs(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(module(x).flip(0), y)


def neighbours(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    outputs = module(x)
    return cross_entropy(outputs, y) + (outputs - outputs.roll(1, 0)).square().sum(1)


def by_the_spread(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    found = cross_entropy(module(x), y)
    return found / found.std()


def mean_for_everybody(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(module(x), y).mean().expand(len(x))


def of_a_submodule(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    hidden = module[1](module[0](x))
    return cross_entropy(module[2](hidden), y) + (hidden - hidden.mean(0)).square().sum(1)


@pytest.mark.parametrize("microbatch_size", [0, 5])
@pytest.mark.parametrize("loss", [
    contrastive, two_views, softmax_over_records, standardised, reversed_outputs, neighbours,
    by_the_spread, mean_for_everybody, of_a_submodule,
])  # fmt: skip
def test_losses_that_depend_on_other_records(loss: Loss, microbatch_size: int) -> None:
    run = private(noisy_plan())
    before = copy.deepcopy(run.model.state_dict())

    def compute(run: Private, x: Tensor, y: Tensor) -> Tensor:
        return loss(run.model, x, y)

    with pytest.raises(ValueError, match=OF_LOSSES):
        take_steps(run, compute, microbatch_size)
    assert run.step == 0
    assert run.spent().epsilon == 0.0
    assert all(torch.equal(each, before[name]) for name, each in run.model.state_dict().items())


def zeros() -> nn.Module:
    """A model whose outputs are the same for all records, until it has learnt something."""
    last = nn.Linear(8, CLASSES)
    nn.init.zeros_(last.weight)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), last)


@pytest.mark.parametrize("loss", [
    contrastive, softmax_over_records, standardised, reversed_outputs, neighbours,
    mean_for_everybody,
])  # fmt: skip
def test_losses_that_depend_on_other_records_of_a_model_that_begins_with_zeros(loss: Loss) -> None:
    run = with_model(zeros(), plan=noisy_plan())
    with pytest.raises(ValueError, match=OF_LOSSES):
        take_steps(run, lambda run, x, y: loss(run.model, x, y))
    # Where all outputs are equal, differences have no gradient yet, and deviations are 0 / 0.
    assert run.step == (1 if loss in (neighbours, standardised) else 0)


def class_weights(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(module(x), y, weight=WEIGHTS, reduction="none")


def ignored_targets(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(module(x), y, ignore_index=1, reduction="none")


def contrastive_with_constants(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Negatives that are prototypes of the classes, no records."""
    outputs = functional.normalize(module(x))
    return cross_entropy(outputs @ torch.eye(CLASSES), y)


def own_views_compared(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    one, two = (functional.normalize(module(each)) for each in (x, x.flip(1)))
    return 1.0 - (one * two).sum(1)


def standardised_per_record(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    outputs = module(x)
    return cross_entropy(
        (outputs - outputs.mean(1, keepdim=True)) / (1 + outputs.std(1))[:, None], y
    )


def sorted_and_put_back(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    order = y.argsort()
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    return cross_entropy(module(x)[order], y[order])[back]


def records_twice_in_one_call(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    both = module(torch.cat([x, -x]))
    return cross_entropy(both[: len(x)], y) + both[len(x) :].square().sum(1)


def wide_as_the_batch(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Twelve columns, and twelve records in every step."""
    return module(x)[:, :1].expand(len(x), 12).square().sum(1)


def zeros_for_some(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(module(x), y) * (y > 0)


def constants_of_any_size(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(module(x), y) * 12.0 / 3.0e4 + 7.0


@pytest.mark.filterwarnings("ignore::dither.clipping.FallbackWarning")
@pytest.mark.parametrize("make", [model, zeros])
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("loss", [
    class_weights, ignored_targets, contrastive_with_constants, own_views_compared,
    standardised_per_record, sorted_and_put_back, records_twice_in_one_call, wide_as_the_batch,
    zeros_for_some, constants_of_any_size,
])  # fmt: skip
def test_losses_of_single_records(loss: Loss, sampling: str, make: Callable[[], nn.Module]) -> None:
    run = with_model(make(), plan=quiet_plan(steps=3, clip_norm=0.2, sampling=sampling))
    for x, y in run.batches():
        expected = sum_by_hand(run.model, loss, 0.2, x, y)
        run.backward(loss(run.model, x, y))
        assert distance(released_sum(run), expected) < 1e-5


class Model(nn.Module):
    """Two layers with something in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

    def between(self, hidden: Tensor) -> Tensor:
        return hidden.tanh()

    def forward(self, x: Tensor) -> Any:
        return self.last(self.between(self.first(x)))


class Centred(Model):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden - hidden.mean(0)


class CentredOutsideOfTheGraph(Model):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden - hidden.detach().mean(0)


class Normalised(Model):
    def between(self, hidden: Tensor) -> Tensor:
        return functional.batch_norm(hidden, None, None, training=True)


class Attending(Model):
    def between(self, hidden: Tensor) -> Tensor:
        return functional.softmax(hidden @ hidden.T, dim=1) @ hidden


class Shuffling(Model):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden[torch.randperm(len(hidden))]


class ScaledByTheLargest(Model):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden / hidden.abs().max()


class MixingInputs(Model):
    def forward(self, x: Tensor) -> Any:
        return super().forward(0.7 * x + 0.3 * x.flip(0))


class CentredBehindDropout(Model):
    def between(self, hidden: Tensor) -> Tensor:
        hidden = functional.dropout(hidden, 0.3, self.training)
        return hidden - hidden.mean(0)


@pytest.mark.parametrize("kind", [
    Centred, CentredOutsideOfTheGraph, Normalised, Attending, Shuffling, ScaledByTheLargest,
    MixingInputs, CentredBehindDropout,
])  # fmt: skip
def test_models_that_mix_records(kind: type[Model]) -> None:
    run = with_model(kind())
    with pytest.raises(ValueError, match=OF_MODELS):
        take_steps(run)
    assert run.step == 0


def with_model(made: nn.Module, steps: int = 3, **settings: Any) -> Private:
    plan = settings.pop("plan", None) or quiet_plan(steps=steps, clip_norm=0.2)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    return dither.make_private(made, optimizer, plan, data(), seed=7, **settings)


def centre(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output - output.mean(0)


def centre_before(module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    return (inputs[0] - inputs[0].mean(0),)


def observe(module: nn.Module, inputs: Any, output: Tensor) -> None:
    module.get_buffer("code").copy_(output.detach().mean(0))


@pytest.mark.parametrize("hook", [centre, centre_before, observe])
def test_hooks_that_mix_or_keep_records(hook: Any) -> None:
    made = Model()
    made.first.register_buffer("code", torch.zeros(8))
    if hook is centre_before:
        made.first.register_forward_pre_hook(hook)
    else:
        made.first.register_forward_hook(hook)
    run = with_model(made)
    with pytest.raises(ValueError, match=f"{OF_MODELS}|its buffer first.code is"):
        take_steps(run)
    assert run.step == 0


def test_hooks_that_change_every_record_by_itself() -> None:
    made = Model()
    made.first.register_forward_hook(lambda _, __, output: 0.5 * output)
    run = with_model(made)
    for x, y in run.batches():
        expected = sum_by_hand(run.model, first_output, 0.2, x, y)
        run.backward(first_output(run.model, x, y))
        assert distance(released_sum(run), expected) < 1e-5


class OverFeatures(Model):
    def between(self, hidden: Tensor) -> Tensor:
        hidden = hidden - hidden.mean(1, keepdim=True)
        return hidden / hidden.norm(dim=1, keepdim=True)


class OwnAttention(Model):
    def between(self, hidden: Tensor) -> Tensor:
        rows = hidden.view(-1, 4, 2)
        made: Tensor = functional.softmax(rows @ rows.transpose(1, 2), dim=2) @ rows
        return made.flatten(1)


class SplitAndJoined(Model):
    def between(self, hidden: Tensor) -> Tensor:
        return torch.cat([each.tanh() for each in hidden.split(5)])


class WithAMeanThatNobodyUses(Model):
    """As transformers do: a mean beside the outputs, which the loop leaves alone."""

    def forward(self, x: Tensor) -> Any:
        outputs = super().forward(x)
        return outputs, outputs.mean()


def first_output(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    outputs = module(x)
    return cross_entropy(outputs[0] if isinstance(outputs, tuple) else outputs, y)


@pytest.mark.parametrize("kind", [
    OverFeatures, OwnAttention, SplitAndJoined, WithAMeanThatNobodyUses,
])  # fmt: skip
def test_models_of_single_records(kind: type[Model]) -> None:
    run = with_model(kind())
    for x, y in run.batches():
        expected = sum_by_hand(run.model, first_output, 0.2, x, y)
        run.backward(first_output(run.model, x, y))
        assert distance(released_sum(run), expected) < 1e-5


def test_a_mean_of_the_model_is_refused_where_the_loss_uses_it() -> None:
    run = with_model(WithAMeanThatNobodyUses())
    x, y = next(run.batches())
    outputs, mean = run.model(x)
    with pytest.raises(ValueError, match=f"{OF_MODELS}|{OF_LOSSES}"):
        run.backward(cross_entropy(outputs, y) * mean)


class Keeping(Model):
    """Writes a buffer in its forward pass, from the records or not, when it is switched on."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.is_on = what, True
        self.register_buffer("code", torch.zeros(8))
        self.register_buffer("count", torch.zeros(()))

    def between(self, hidden: Tensor) -> Tensor:
        if self.is_on:
            with torch.no_grad():
                if self.what == "mean":
                    self.get_buffer("code").mul_(0.9).add_(0.1 * hidden.mean(0))
                if self.what == "assigned":
                    self.code = hidden.detach().mean(0)
                if self.what == "largest":
                    self.get_buffer("code").copy_(hidden.amax(0))
                if self.what == "count":
                    self.get_buffer("count").add_(1.0)
        return hidden.tanh()


@pytest.mark.parametrize("what", ["mean", "assigned", "largest"])
@pytest.mark.parametrize("since", [0, 1, 6])
def test_buffers_that_keep_something_of_the_records(what: str, since: int) -> None:
    """Refused in the step in which it begins, before that step is released."""
    made = Keeping(what)
    made.is_on = since == 0
    run = with_model(made, steps=8)

    def compute(run: Private, x: Tensor, y: Tensor) -> Tensor:
        made.is_on = run.step >= since
        return losses(run, x, y)

    with pytest.raises(ValueError, match="keep nothing of its records, but its buffer code"):
        take_steps(run, compute)
    assert run.step == since


@pytest.mark.parametrize("what", ["mean", "assigned", "largest"])
@pytest.mark.parametrize("since", [0, 1])
def test_buffers_that_keep_something_of_a_record_that_comes_alone(what: str, since: int) -> None:
    """In microbatches of one record, in a draw of one, and in an empty draw, which shows one."""
    for first, size in ((range(12), 1), (range(1), 0), (range(0), 0)):
        made = Keeping(what)
        run = with_model(made, steps=4)
        run._draws._sampler = Drawn(*[first] * 4)

        def compute(run: Private, x: Tensor, y: Tensor, made: Keeping = made) -> Tensor:
            made.is_on = run.step >= since
            return losses(run, x, y)

        with pytest.raises(ValueError, match="keep nothing of its records, but its buffer code"):
            take_steps(run, compute, size)
        assert run.step == since


@pytest.mark.parametrize("microbatch_size", [0, 1])
@pytest.mark.parametrize("since", [0, 1])
def test_buffers_that_are_the_same_whatever_the_records(since: int, microbatch_size: int) -> None:
    made = Keeping("count")
    run = with_model(made)
    calls = 0
    for batch in run.batches():
        made.is_on = run.step >= since
        for x, y in run.microbatches(batch, microbatch_size or RECORDS):
            run.backward(losses(run, x, y))
            calls += made.is_on
        run.optimizer.step()
    assert float(made.get_buffer("count")) == calls > 0


@pytest.mark.parametrize("microbatch_size", [1, RECORDS])
@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_spectral_norms_run(norm: Any, microbatch_size: int) -> None:
    made = nn.Sequential(norm(nn.Linear(FEATURES, 8)), nn.Tanh(), nn.Linear(8, CLASSES))
    run = with_model(made)
    before = [each.clone() for each in made.buffers()]
    for batch in run.batches():
        for part in run.microbatches(batch, microbatch_size):
            run.backward(losses(run, *part))
        total = released_sum(run)
        assert 0.0 < float(total.norm()) <= 0.2 * len(batch[0]) * 1.001
    assert run.step == 3
    assert not all(torch.equal(a, b) for a, b in zip(made.buffers(), before, strict=True))


class Initialised(Model):
    """Sets a parameter from the first batch that it sees, as activation normalisation does."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.is_ready = nn.Parameter(torch.zeros(FEATURES)), False

    def forward(self, x: Tensor) -> Any:
        if not self.is_ready:
            self.shift.data.copy_(x.mean(0))
            self.is_ready = True
        return super().forward(x - self.shift)


class InitialisedByABuffer(Model):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(FEATURES))
        self.register_buffer("is_ready", torch.tensor(0))

    def forward(self, x: Tensor) -> Any:
        if not int(self.get_buffer("is_ready")):
            self.shift.data.copy_(x.mean(0))
            self.get_buffer("is_ready").fill_(1)
        return super().forward(x - self.shift)


class Overwriting(Model):
    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            self.first.bias.copy_(x.mean() * torch.ones(8))
        return super().forward(x)


@pytest.mark.parametrize("kind", [Initialised, InitialisedByABuffer, Overwriting])
def test_parameters_that_the_forward_pass_sets(kind: type[Model]) -> None:
    run = with_model(kind())
    with pytest.raises(ValueError, match="leave its parameters to the optimizer|by itself"):
        take_steps(run)
    assert run.step == 0


def test_a_layer_that_begins_to_mix_with_another_mode_is_found_then() -> None:
    """A call in another mode is of another kind, and is repeated as the first one was."""

    class InTraining(Model):
        def between(self, hidden: Tensor) -> Tensor:
            return hidden - hidden.mean(0) if self.training else hidden

    run = with_model(InTraining().eval())
    batches = run.batches()
    run.backward(losses(run, *next(batches)))
    run.optimizer.step()
    run.model.train()
    batch = next(batches)
    with pytest.raises(ValueError, match=OF_MODELS):
        run.backward(losses(run, *batch))
    assert run.step == 1


class Drawn:
    """Draws given records, step by step."""

    def __init__(self, *steps: range) -> None:
        self._steps = list(steps)

    def draw(self, length: int, stream: object, step: int = 0) -> Any:
        return np.array(self._steps.pop(0) if self._steps else range(length))


@pytest.mark.parametrize("first", [range(1), range(2), range(3), range(12)])
def test_few_records_in_the_first_steps_hide_nothing_for_long(first: range) -> None:
    """A step of one record cannot show whether records are mixed: a later one must."""
    run = private(noisy_plan())
    run._draws._sampler = Drawn(first, range(3, 15))
    with pytest.raises(ValueError, match=OF_LOSSES):
        take_steps(run, lambda run, x, y: contrastive(run.model, x, y))
    assert run.step <= 1
    run = with_model(Centred(), plan=noisy_plan())
    run._draws._sampler = Drawn(first, range(3, 15))
    with pytest.raises(ValueError, match=OF_MODELS):
        take_steps(run)
    assert run.step <= 1


@pytest.mark.parametrize("kind", ["losses", "model"])
def test_a_record_that_is_not_finite_in_the_first_step_hides_nothing(kind: str) -> None:
    """Where records are mixed, one that is not a number makes all others so, too."""
    inputs, targets = data()
    inputs[0] = float("nan")
    made = Centred() if kind == "model" else Model()
    run = dither.make_private(
        made, torch.optim.SGD(made.parameters(), lr=0.1), noisy_plan(), (inputs, targets), seed=7
    )
    run._draws._sampler = Drawn(range(12), range(1, 13))
    loss = contrastive if kind == "losses" else first_output
    with pytest.raises(ValueError, match=f"{OF_LOSSES}|{OF_MODELS}"):
        take_steps(run, lambda run, x, y: loss(run.model, x, y))
    assert run.step <= 1


def test_what_is_computed_outside_of_the_graph_is_the_callers() -> None:
    """The threat model says so: such loops run, and dither does not look into their values."""

    def compute(run: Private, x: Tensor, y: Tensor) -> Tensor:
        found = losses(run, x, y)
        return found / found.detach().mean()

    assert take_steps(private(noisy_plan()), compute).isfinite().all()
