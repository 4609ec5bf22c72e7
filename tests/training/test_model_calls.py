"""The ways in which a loop may call its model, each against the gradient of every record alone."""

import copy
import gc
import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from tests.training.loops import (
    CLASSES,
    FEATURES,
    data,
    distance,
    flat,
    losses,
    model,
    noisy_plan,
    own_losses,
    private,
    quiet_plan,
    released_sum,
    sum_by_hand,
    take_steps,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint

import dither
from dither.clipping import FallbackWarning
from dither.training import Private

CLIP = 0.3
Loss = Callable[..., Tensor]


def run_of(made: nn.Module, steps: int = 3, **settings: Any) -> Private:
    optimizer = torch.optim.SGD([p for p in made.parameters() if p.requires_grad], lr=0.2)
    plan = quiet_plan(steps=steps, clip_norm=CLIP)
    return dither.make_private(made, optimizer, plan, data(), seed=3, **settings)


def compare_steps(run: Private, loss: Loss) -> None:
    """Take all steps, each of which must release the clipped sum by hand."""
    for batch in run.batches():
        expected = sum_by_hand(run.model, loss, CLIP, *batch)
        run.backward(loss(run.model, *batch))
        assert distance(released_sum(run), expected) < 1e-5
        run.optimizer.zero_grad()
    assert run.step == run.plan.steps


class Encoder(nn.Module):
    """A model with submodules, methods of its own and a table that only a method uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh())
        self.head = nn.Linear(8, CLASSES)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 8))

    def encode(self, inputs: Tensor) -> Tensor:
        return self.body(inputs) * self.scale

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.encode(inputs))


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def whole(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(module(x), y)


def submodules(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(module.head(module.body(x)), y)


def twice(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    first, second = module(x), module(0.5 * x)
    return cross_entropy(first, y) + (first - second).square().sum(1)


def whole_and_submodule(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(module(x), y) + 0.1 * module.body(x).abs().sum(1)


def several_layers_apart(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    hidden = torch.stack([module.body(x), module.body(-x)]).mean(0)
    return cross_entropy(module.head(functional.gelu(hidden)), y)


def one_record_at_a_time(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([whole(module, x[i : i + 1], y[i : i + 1]) for i in range(len(x))])


@pytest.mark.parametrize("loss", [
    whole, submodules, twice, whole_and_submodule, several_layers_apart,
])  # fmt: skip
def test_calls_without_a_fallback(loss: Loss) -> None:
    compare_steps(run_of(Encoder()), loss)


def method(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(module.head(module.encode(x)), y)


def parameter_in_the_loop(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(module(x), y) + (x[:, :1] * module.scale).sum(1).square()


def penalty(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    squares = torch.stack([p.square().sum() for p in module.parameters()])
    return cross_entropy(module(x), y) + 0.01 * squares.sum()


def weight_of_a_layer(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The weight of the head twice: by its layer, and transposed in the loop."""
    hidden = module.body(x) * module.scale
    back = module.head(hidden) @ module.head.weight
    return cross_entropy(module.head(hidden), y) + (back - hidden).square().sum(1)


def no_call_at_all(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    first, last = (list(each.parameters()) for each in (module.body, module.head))
    hidden = functional.linear(x, *first).tanh() * module.scale
    return cross_entropy(functional.linear(hidden, *last), y)


def double_backward(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A penalty on the gradient with respect to the inputs, of every record."""
    x = x.clone().requires_grad_()
    outputs = module(x)
    (slope,) = torch.autograd.grad(outputs.logsumexp(1).sum(), x, create_graph=True)
    return cross_entropy(outputs, y) + slope.square().sum(1)


@pytest.mark.parametrize("loss", [
    method, parameter_in_the_loop, penalty, weight_of_a_layer, no_call_at_all, double_backward,
    one_record_at_a_time,
])  # fmt: skip
def test_calls_that_are_computed_record_by_record(loss: Loss) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        compare_steps(run_of(Encoder()), loss)


def test_a_parameter_in_the_loop_is_warned_of_once_and_by_name() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        compare_steps(run_of(Encoder(), steps=4), parameter_in_the_loop)
    assert [each.category for each in seen] == [FallbackWarning]
    text = str(seen[0].message)
    assert text.startswith("scale: it is used where the engine cannot see it")
    assert "correct but slow" in text
    assert "head" not in text


def test_the_parameters_that_rules_cover_stay_fast() -> None:
    """Only the parameter that the loop uses is computed record by record."""
    computed: list[list[str]] = []
    real = dither.clipping.engine._by_autograd

    def watched(recorder: Any, losses: Any, names: list[str]) -> Any:
        computed.append(names)
        return real(recorder, losses, names)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dither.clipping.engine._by_autograd", watched)
        with pytest.warns(FallbackWarning):
            compare_steps(run_of(Encoder()), parameter_in_the_loop)
    assert {*map(tuple, computed)} == {("scale",)}


@pytest.mark.filterwarnings("ignore::dither.clipping.FallbackWarning")
def test_losses_that_change_their_form_midway() -> None:
    """From the third step on, a parameter is used in the loop as well, then no longer."""
    run = run_of(Encoder(), steps=6)
    for batch in run.batches():
        loss = parameter_in_the_loop if 2 <= run.step < 4 else whole
        expected = sum_by_hand(run.model, loss, CLIP, *batch)
        run.backward(loss(run.model, *batch))
        assert distance(released_sum(run), expected) < 1e-5


def test_evaluation_with_and_without_gradients_in_between() -> None:
    expected = take_steps(private(noisy_plan()))
    run = private(noisy_plan())
    for inputs, targets in run.batches():
        run.model.eval()
        with torch.no_grad():
            run.model(data()[0])
        run.model.train()
        run.model(torch.zeros(2, FEATURES))  # with gradients, of something else
        outputs = run.model(inputs)
        with torch.inference_mode():
            run.model(data()[0][:5])
        functional.cross_entropy(run.model(data(7)[0]), data(7)[1]).backward()
        run.backward(functional.cross_entropy(outputs, targets, reduction="none"))
        run.optimizer.step()
    assert torch.equal(flat(run.model), expected)


def test_a_generator_that_is_trained_through_the_model() -> None:
    """A private discriminator: its generator sees gradients through it, before and after a step."""
    torch.manual_seed(4)
    discriminator = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 1))
    generator = nn.Linear(2, FEATURES)
    optimizer = torch.optim.Adam(generator.parameters(), lr=0.01)
    run = dither.make_private(
        discriminator, torch.optim.SGD(discriminator.parameters(), lr=0.2),
        quiet_plan(steps=4, clip_norm=CLIP), data()[0], seed=3,
    )  # fmt: skip
    moved = generator.weight.detach().clone()

    def deceive() -> None:
        optimizer.zero_grad()
        fooled: Tensor = functional.softplus(-run.model(generator(torch.randn(9, 2))))
        fooled.mean().backward()
        optimizer.step()

    def loss(module: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
        return functional.softplus(-module(real))[:, 0] + functional.softplus(module(fake))[:, 0]

    for real in run.batches():
        deceive()
        fake = generator(torch.randn(len(real), 2)).detach()
        expected = sum_by_hand(run.model, loss, CLIP, real, fake)
        run.backward(loss(run.model, real, fake))
        assert distance(released_sum(run), expected) < 1e-5
        deceive()  # its gradients of the discriminator are overwritten by the next release
    assert not torch.equal(generator.weight, moved)


@pytest.mark.parametrize("kind", ["overwritten", "appended", "before"])
def test_what_a_hook_of_the_user_keeps_may_be_used(kind: str) -> None:
    """Features for a loss: the hook is called once per call of the loop, and of no other."""
    kept: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple[Tensor, ...], *output: Tensor) -> None:
        if kind == "overwritten":
            kept.clear()
        kept.append(output[0] if output else inputs[0])

    def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if kind == "before":
            handle = module.head.register_forward_pre_hook(keep)
        else:
            handle = module.body.register_forward_hook(keep)
        kept.clear()
        outputs = module(x)
        handle.remove()
        return cross_entropy(outputs, y) + sum(each.square().sum(1) for each in kept)

    compare_steps(run_of(Encoder()), loss)


class Noting(Encoder):
    """Notes its features in a list that its user empties, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.features: list[Tensor] = []
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        hidden = self.encode(x)
        self.features.append(hidden)
        return self.head(hidden)


def test_what_a_model_keeps_of_itself_may_be_used() -> None:
    def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        outputs = module(x)
        (hidden,) = cast("Noting", module).features
        module.features.clear()
        return cross_entropy(outputs, y) + hidden.square().sum(1)

    made = Noting()
    compare_steps(run_of(made, steps=3), loss)
    assert made.calls == 3


class Checkpointed(Encoder):
    """Computes its body again in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.body, x, use_reentrant=False) * self.scale
        return self.head(hidden)


def test_activation_checkpointing() -> None:
    compare_steps(run_of(Checkpointed()), whole)


def copies(module: nn.Module) -> Iterator[nn.Module]:
    yield copy.deepcopy(module)
    stored = io.BytesIO()
    torch.save(module, stored)
    stored.seek(0)
    yield torch.load(stored, weights_only=False)


def test_copies_and_pickles_are_free_also_while_a_batch_is_recorded() -> None:
    run = run_of(Encoder())
    batch = next(run.batches())
    expected = sum_by_hand(run.model, whole, CLIP, *batch)
    own = whole(run.model, *batch)
    for free in copies(run.model):
        assert _get_current_function_mode_stack() == []
        cross_entropy(free(data()[0]), data()[1]).mean().backward()
        torch.optim.SGD(free.parameters(), lr=0.1).step()
        assert all(p.grad is not None for p in free.parameters())
    run.backward(own)
    assert distance(released_sum(run), expected) < 1e-5


def test_close_removes_all_hooks() -> None:
    made = Encoder()
    run = run_of(made)
    assert all(module._forward_hooks and module._forward_pre_hooks for module in made.modules())
    x, y = next(run.batches())
    whole(run.model, x, y)
    run.close()
    for module in made.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    functional.cross_entropy(made(x), y).backward()
    before = flat(made)
    run.optimizer.step()
    assert not torch.equal(flat(made), before)


def test_a_run_that_is_forgotten_lets_its_model_be_used() -> None:
    """Hooks hold their run weakly, also if it is collected in the middle of a forward pass."""
    made = Encoder()
    plain = copy.deepcopy(made)
    run = run_of(made)
    next(run.batches())

    def collect(*_: Any) -> None:
        gc.collect()

    made.body.register_forward_hook(collect)
    del run
    x, y = data()
    for module in (made, plain):
        whole(module, x, y).mean().backward()
    for one, two in zip(made.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None
        assert two.grad is not None
        assert torch.equal(one.grad, two.grad)


class Failing(nn.Module):
    """Raises inside of a submodule, if it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.error = Encoder(), cast("BaseException | None", None)
        self.inner.head.register_forward_hook(self._fail)

    def _fail(self, *_: Any) -> None:
        if self.error is not None:
            raise self.error

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@pytest.mark.parametrize("call", ["model", "submodule"])
@pytest.mark.parametrize("steps_before", [0, 2])
@pytest.mark.parametrize("error", [ValueError("of the model"), KeyboardInterrupt()], ids=repr)
def test_an_exception_inside_of_the_forward_pass(
    error: BaseException, steps_before: int, call: str
) -> None:
    made = Failing()
    run = run_of(made, steps=4)
    uses: list[int] = []
    while run.step < 4:
        batch = next(run.batches())
        expected = sum_by_hand(run.model, whole, CLIP, *batch)
        if run.step == steps_before:
            state, made.error = torch.get_rng_state(), error
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # what the user sees is the error alone
                with pytest.raises(type(error)) as caught:
                    (run.model if call == "model" else made.inner)(batch[0])
            assert caught.value is error
            made.error = None
            if not isinstance(error, Exception):  # torch calls no hooks: the loop begins again
                batch = next(run.batches())
            assert torch.equal(torch.get_rng_state(), state)
            assert _get_current_function_mode_stack() == []
            assert run._recording is not None
            uses.append(len(run._recording.recorder.uses))
            batch[0] @ made.inner.head.weight.T.new_zeros(FEATURES, 2)
            functional.linear(batch[0], next(made.inner.body.parameters()))
            assert len(run._recording.recorder.uses) == uses[0]  # plain operations are not seen
        run.backward(whole(run.model, *batch))
        assert distance(released_sum(run), expected) < 1e-5
    assert uses


def test_an_exception_that_the_model_itself_handles() -> None:
    class Careful(Encoder):
        def forward(self, x: Tensor) -> Tensor:
            try:
                self.head(x)
            except RuntimeError:
                return super().forward(x)
            raise AssertionError

    compare_steps(run_of(Careful()), whole)
    assert _get_current_function_mode_stack() == []


def test_nothing_is_held_open_between_calls() -> None:
    run = run_of(Encoder())
    for batch in run.batches():
        assert _get_current_function_mode_stack() == []
        outputs = run.model(batch[0])
        assert _get_current_function_mode_stack() == []
        run.backward(cross_entropy(outputs, batch[1]))
        run.optimizer.step()
        assert _get_current_function_mode_stack() == []


def test_a_default_device_around_the_loop() -> None:
    with torch.device("cpu"):
        compare_steps(run_of(Encoder()), twice)
        assert len(_get_current_function_mode_stack()) == 1
    assert _get_current_function_mode_stack() == []


def test_layers_that_are_frozen_and_unfrozen_midway() -> None:
    """First the head alone, then all of it, then all but the scale."""
    made = Encoder()
    run = dither.make_private(
        made, torch.optim.SGD(made.parameters(), lr=0.2), quiet_plan(steps=7, clip_norm=CLIP),
        data(), seed=3,
    )  # fmt: skip
    for batch in run.batches():
        made.body.requires_grad_(run.step >= 2)
        made.scale.requires_grad_(2 <= run.step < 5)
        before = {name: p.detach().clone() for name, p in made.named_parameters()}
        frozen = {name for name, p in made.named_parameters() if not p.requires_grad}
        expected = sum_by_hand(run.model, whole, CLIP, *batch)
        run.backward(whole(run.model, *batch))
        assert distance(released_sum(run), expected) < 1e-5
        same = {name for name, p in made.named_parameters() if torch.equal(p, before[name])}
        assert same == frozen
        run.optimizer.zero_grad()
    assert run.step == 7


def test_a_layer_that_is_frozen_between_backward_and_step_is_not_moved() -> None:
    made = Encoder()
    run = run_of(made)
    run.backward(whole(run.model, *next(run.batches())))
    made.body.requires_grad_(False)
    before = flat(made.body)
    run.optimizer.step()
    assert torch.equal(flat(made.body), before)
    assert all(p.grad is None for p in made.body.parameters())


@pytest.mark.parametrize("change", ["best weights", "weight clipping", "average"])
def test_parameters_may_be_changed_between_steps(change: str) -> None:
    run = private(quiet_plan(steps=5, clip_norm=CLIP))
    best = {name: each.clone() for name, each in run.model.state_dict().items()}
    average = torch.optim.swa_utils.AveragedModel(run.model)
    for batch in run.batches():
        expected = sum_by_hand(run.model, own_losses, CLIP, *batch)
        run.backward(losses(run, *batch))
        assert distance(released_sum(run), expected) < 1e-5
        if change == "best weights" and run.step == 3:
            run.model.load_state_dict(best)
        if change == "weight clipping":
            with torch.no_grad():
                for parameter in run.model.parameters():
                    parameter.clamp_(-0.1, 0.1)
        if change == "average":
            average.update_parameters(run.model)
            run.model.load_state_dict(average.module.state_dict())
    assert run.step == 5


def test_an_optimizer_that_accelerate_has_prepared() -> None:
    accelerate = pytest.importorskip("accelerate")
    made = model()
    accelerator = accelerate.Accelerator(cpu=True)
    prepared, optimizer = accelerator.prepare(made, torch.optim.AdamW(made.parameters(), lr=0.05))
    plan = noisy_plan(stepsizes=[1.0, 0.5, 0.25, 1.0, 0.5, 0.25])
    run = dither.make_private(prepared, optimizer, plan, data(), seed=7)
    assert run.optimizer is optimizer
    found = take_steps(run)
    plain = private(plan, optimizer=lambda p: torch.optim.AdamW(p, lr=0.05))
    assert torch.equal(found, take_steps(plain))
    run.close()
    with pytest.raises(dither.training.StepError, match="without private.backward"):
        plain.optimizer.step()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("loss", [whole, submodules, twice])
def test_a_record_that_is_not_finite_counts_as_zero(loss: Loss, bad: float) -> None:
    inputs, targets = data()
    inputs[::7] = bad
    optimizer_of = torch.optim.SGD
    made = Encoder()
    plan = quiet_plan(steps=3, clip_norm=CLIP, batch_size=60)
    run = dither.make_private(
        made, optimizer_of(made.parameters(), lr=0.2), plan, (inputs, targets), seed=3
    )
    for batch in run.batches():
        assert not batch[0].isfinite().all()
        expected = sum_by_hand(run.model, loss, CLIP, *batch)
        run.backward(loss(run.model, *batch))
        assert distance(released_sum(run), expected) < 1e-5


@pytest.mark.filterwarnings("ignore::dither.clipping.FallbackWarning")
@pytest.mark.parametrize("kept", [2**25, 1], ids=["all records at once", "one at a time"])
def test_a_record_that_is_not_finite_never_wipes_the_others(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a graph of all records a bad one spoils the gradients of parameters used in the loop."""
    monkeypatch.setattr("dither.clipping.engine.MAX_KEPT", kept)
    inputs, targets = data()
    inputs[3] = float("nan")
    plan = quiet_plan(steps=1, clip_norm=CLIP, sampling="fixed", batch_size=120)
    made = Encoder()
    run = dither.make_private(
        made, torch.optim.SGD(made.parameters(), lr=0.2), plan, (inputs, targets), seed=3
    )
    batch = next(run.batches())
    with pytest.raises(ValueError, match="not finite makes all of them NaN"):
        run.backward(no_call_at_all(run.model, *batch))
    assert run.step == 0
