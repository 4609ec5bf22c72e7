"""What a loop of one's own may rely on."""

import copy
import gc
import json
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.loops import (
    FEATURES,
    RECORDS,
    data,
    flat,
    losses,
    model,
    noisy_plan,
    private,
    quiet_plan,
    take_steps,
)
from torch import Tensor, nn
from torch.nn import functional

import dither
from dither import Plan
from dither.noise import GrowthBound
from dither.schedules import AdaGradNorm, UnsafeRawAdaGradNorm
from dither.training import Private, StepError


def test_model_and_optimizer_are_the_objects_that_were_given() -> None:
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.5)
    step = type(optimizer).step
    run = dither.make_private(made, optimizer, quiet_plan(), data())
    assert run.model is made
    assert run.optimizer is optimizer
    assert type(optimizer).step is step
    assert "step" not in vars(optimizer)
    assert type(made) is nn.Sequential


def test_no_gradient_is_there_before_the_release_and_no_other_after() -> None:
    run = private(noisy_plan(z=3.0))
    for inputs, targets in run.batches():
        run.backward(losses(run, inputs, targets))
        assert all(p.grad is None for p in run.model.parameters())
        run.optimizer.step()
        assert all(p.grad is not None for p in run.model.parameters())
        run.optimizer.zero_grad()


def test_learning_rates_follow_the_plan_group_by_group() -> None:
    made = model()
    parameters = list(made.parameters())
    groups = [{"params": parameters[:2], "lr": 0.5}, {"params": parameters[2:], "lr": 2.0}]
    optimizer = torch.optim.SGD(groups)
    run = dither.make_private(
        made, optimizer, quiet_plan(steps=3, stepsizes=[1.0, 0.5, 0.25]), data(), seed=1
    )
    seen: list[list[float]] = []
    optimizer.register_step_pre_hook(lambda o, *_: seen.append([g["lr"] for g in o.param_groups]))
    take_steps(run)
    assert seen == [[0.5, 2.0], [0.25, 1.0], [0.125, 0.5]]
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 2.0]


class CallsSuper(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_an_optimizer_that_calls_super_steps_once() -> None:
    trained = []
    for kind in (torch.optim.SGD, CallsSuper):  # the first makes torch call hooks in super().step()
        made = model()
        run = dither.make_private(
            made, kind(made.parameters(), lr=0.5), noisy_plan(), data(), seed=9
        )
        trained.append(take_steps(run))
        assert run.optimizer.param_groups[0]["lr"] == 0.5
        made(data()[0]).sum().backward()
        with pytest.raises(StepError, match="without private.backward"):
            run.optimizer.step()
    assert torch.equal(*trained)


@pytest.mark.filterwarnings("ignore:the dataset has another number of records")
def test_an_empty_draw_still_releases_noise_and_counts_nothing() -> None:
    plan = noisy_plan(steps=3, batch_size=1, dataset_size=100_000, z=2.0)
    run = private(plan)
    sizes = []
    for inputs, targets in run.batches():
        sizes.append(len(inputs))
        run.backward(losses(run, inputs.view(len(inputs), -1), targets))
        run.optimizer.step()
        gradient = torch.cat([p.grad.flatten() for p in run.model.parameters()])
        # 83 normals of standard deviation 2: their mean square is within 4 ± 3.9 (chi-square, 1e-9)
        assert 1.0 < float(gradient.square().mean()) < 10.0
    assert sizes == [1, 1, 1]
    quiet = private(quiet_plan(steps=3, batch_size=1, dataset_size=100_000))
    assert torch.equal(take_steps(quiet), flat(model()))


def test_what_was_spent() -> None:
    run = private(noisy_plan())
    assert run.spent().epsilon == 0.0
    take_steps(run)
    assert run.spent() == run.plan.bound


def test_a_batch_is_let_go_after_its_step() -> None:
    run = private(quiet_plan(steps=4))
    alive: list[weakref.ref[Any]] = []
    for inputs, targets in run.batches():
        found = losses(run, inputs, targets)
        run.backward(found)
        alive.append(weakref.ref(found))
        run.optimizer.step()
        run.optimizer.zero_grad()
    del found, inputs, targets
    gc.collect()
    assert not any(each() is not None for each in alive)


def test_a_run_goes_on_from_its_state_in_another_process() -> None:
    expected = take_steps(private(noisy_plan()))
    first = private(noisy_plan())
    for inputs, targets in first.batches():
        first.backward(losses(first, inputs, targets))
        first.optimizer.step()
        if first.step == 3:
            break
    saved = json.dumps(first.state_dict())
    second = private(noisy_plan())
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    with pytest.warns(UserWarning, match="without a ledger"):
        second.load_state_dict(json.loads(saved))
    assert second.spent().epsilon == first.spent().epsilon
    assert torch.equal(take_steps(second), expected)


def test_states_of_other_runs_and_earlier_ones_are_refused() -> None:
    run = private(noisy_plan())
    start = run.state_dict()
    take_steps(run)
    with pytest.raises(ValueError, match="to go back because of results"):
        run.load_state_dict(start)
    with pytest.raises(ValueError, match="state must be of the same plan"):
        private(noisy_plan(z=2.0)).load_state_dict(run.state_dict())
    with pytest.raises(ValueError, match="state must be of the same seed"):
        private(noisy_plan()).load_state_dict({**start, "seed": 8})
    assert "seed" in start
    assert not any(isinstance(value, Tensor) for value in start.values())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e38])
@pytest.mark.parametrize("microbatch_size", [0, 50])
def test_a_bad_record_changes_nothing_but_its_own_contribution(
    bad: float, microbatch_size: int
) -> None:
    plan = Plan.unsafe_without_noise(
        steps=3, dataset_size=RECORDS, batch_size=RECORDS, clip_norm=0.5
    )
    inputs, targets = data()
    run = private(plan, (inputs[1:], targets[1:]))
    without = take_steps(run, microbatch_size=microbatch_size)
    inputs = inputs.clone()
    inputs[0] = bad
    found = take_steps(private(plan, (inputs, targets)), microbatch_size=microbatch_size)
    assert found.isfinite().all()
    # The bad record counts as zero, or is clipped: at most lr·C/m a step.
    most = 3 * 0.5 * 0.5 / RECORDS
    assert float((found - without).norm()) <= most * 1.01
    if not np.isfinite(bad):
        assert float((found - without).abs().max()) < 1e-6


@pytest.mark.parametrize("microbatch_size", [0, 50])
def test_views_of_a_record_are_averaged_before_clipping(microbatch_size: int) -> None:
    def views(inputs: Tensor) -> Tensor:
        return torch.stack([inputs, -inputs, 2.0 * inputs], 1)

    plan = quiet_plan(steps=3, clip_norm=0.2, sampling="fixed", batch_size=RECORDS)
    found = take_steps(private(plan, augment=views), microbatch_size=microbatch_size)
    made = model()
    for _ in range(3):
        total = torch.zeros_like(flat(made))
        for x, y in zip(*data(), strict=True):
            outputs = made(views(x[None])[0])
            loss = functional.cross_entropy(outputs, y.expand(3))
            own = torch.cat(
                [g.flatten() for g in torch.autograd.grad(loss, list(made.parameters()))]
            )
            total += own * min(1.0, 0.2 / float(own.norm()))
        with torch.no_grad():
            nn.utils.vector_to_parameters(flat(made) - 0.5 * total / RECORDS, made.parameters())
    assert float((found - flat(made)).abs().max()) < 1e-6


def test_views_that_are_none() -> None:
    for wrong in (lambda x: x, lambda x: x[:5, None], lambda x: x[:, :0, None], lambda x: [x]):
        with pytest.raises(ValueError, match="augment must return the shape") as caught:
            take_steps(private(quiet_plan(sampling="fixed"), augment=wrong))
        assert "12" not in str(caught.value)
    with pytest.raises(ValueError, match="augment needs a dataset of"):
        take_steps(private(dataset={"x": data()[0]}, augment=lambda x: x[:, None]))


@pytest.mark.parametrize("noise", [GrowthBound(2.0, 0.01), "filter", "uniform"])
def test_step_sizes_that_react_to_releases(noise: Any) -> None:
    plan = dither.plan(
        epsilon=3.0, delta=1e-3, dataset_size=RECORDS, batch_size=12, steps=10,
        stepsizes=AdaGradNorm(2.0, 0.01), noise=noise,
    )  # fmt: skip
    made = model()
    run = dither.make_private(
        made, torch.optim.SGD(made.parameters(), lr=1.0), plan, data(), seed=3
    )
    rule, growth = AdaGradNorm(2.0, 0.01), AdaGradNorm(2.0, 0.01).start()
    for inputs, targets in run.batches():
        run.backward(losses(run, inputs, targets))
        run.optimizer.step()
        gradient = torch.cat([p.grad.flatten() for p in made.parameters()]).double()
        energy = gradient.numel() * (run.noise_multiplier * 1.001 / 12) ** 2
        if noise == "filter":
            assert run.noise_multiplier == pytest.approx(plan.scale * growth.b**0.5)
        growth = rule.after(growth, float(gradient @ gradient), energy)
        assert run.stepsize == pytest.approx(1.0 / growth.b, rel=1e-5)
    assert run.step == 10
    assert run.spent().epsilon <= 3.0
    assert json.loads(json.dumps(run.state_dict())) == run.state_dict()


def test_the_papers_literal_rule_claims_nothing() -> None:
    plan = dither.plan(
        epsilon=3.0, delta=1e-3, dataset_size=RECORDS, batch_size=12, steps=4,
        stepsizes=UnsafeRawAdaGradNorm(2.0, 0.01), noise="uniform",
    )  # fmt: skip
    made = model()
    run = dither.make_private(made, torch.optim.SGD(made.parameters(), lr=1.0), plan, data())
    take_steps(run)
    assert run.spent().epsilon == float("inf")
    assert not run.spent().is_upper_bound


class OneNumber(nn.Module):
    """Gives one number per record, without a dimension for it, and what it was made from."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.last = nn.Linear(FEATURES, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.hidden(x).tanh()
        return self.last(hidden).squeeze(-1), hidden


def test_one_number_a_record_and_outputs_that_no_loss_uses() -> None:
    torch.manual_seed(0)
    made, data = OneNumber(), (torch.randn(40, FEATURES), torch.randn(40))
    plan = Plan.unsafe_without_noise(steps=2, dataset_size=40, batch_size=40, sampling="fixed")
    copied = copy.deepcopy(made)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    run = dither.make_private(made, optimizer, plan, data)
    for x, y in run.batches():
        run.backward((run.model(x)[0] - y) ** 2)
        run.optimizer.step()
    plain = torch.optim.SGD(copied.parameters(), lr=0.1)
    for _ in range(2):
        plain.zero_grad()
        (copied(data[0])[0] - data[1]).square().mean().backward()
        plain.step()
    for one, two in zip(made.parameters(), copied.parameters(), strict=True):
        assert torch.allclose(one, two, rtol=0.0, atol=1e-6)


def test_values_may_be_read_printed_and_changed_anywhere() -> None:
    """Batches, outputs and losses are plain tensors; what is done to a batch stays in it."""
    expected = take_steps(private(quiet_plan()))
    inputs, targets = data()
    run = private(quiet_plan(), (inputs.clone(), targets.clone()))
    for x, y in run.batches():
        assert type(x) is type(y) is Tensor
        outputs = run.model(x)
        assert f"{outputs.mean().detach():.3f}" == f"{outputs.mean().item():.3f}"
        assert 0.0 <= (outputs.argmax(1) == y).float().mean().item() <= 1.0
        found = functional.cross_entropy(outputs, y, reduction="none")
        assert repr(found).startswith("tensor(")
        assert len(found.tolist()) == len(x)
        run.backward(found)
        assert found.mean().item() > 0.0
        x.zero_()
        y.fill_(1)
        run.optimizer.step()
    assert torch.equal(flat(run.model), expected)


def test_changed_batches_are_what_is_trained_on() -> None:
    def scaled(run: Private, x: Tensor, y: Tensor) -> Tensor:
        x *= 0.5
        x[:, 0] = 0.0
        return losses(run, x, y)

    inputs, targets = data()
    inputs[:, 0] = 0.0
    expected = take_steps(private(quiet_plan(clip_norm=0.3), (0.5 * inputs, targets)))
    found = take_steps(private(quiet_plan(clip_norm=0.3)), scaled)
    assert float((found - expected).abs().max()) < 1e-6


def test_gradients_of_a_plain_backward_pass_are_overwritten() -> None:
    """Honest diagnostics: gradients of the loop's own never reach the optimizer."""
    expected = take_steps(private(noisy_plan()))
    run = private(noisy_plan())
    for x, y in run.batches():
        found = losses(run, x, y)
        found.mean().backward(retain_graph=True)
        assert all(p.grad is not None for p in run.model.parameters())
        run.backward(found)
        for parameter in run.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e9)
        run.optimizer.step()
    assert torch.equal(flat(run.model), expected)
