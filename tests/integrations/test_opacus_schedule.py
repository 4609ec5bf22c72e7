"""An Opacus optimizer that follows a plan, and the mistakes that raise errors."""

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from opacus.data_loader import DPDataLoader
from opacus.schedulers import ExponentialGradClip, StepNoise
from tests.integrations.opacus_runs import (
    ADAPTIVE_CLIPPING,
    DELTA,
    backward,
    engine,
    made_private,
    records,
    small_plan,
    step,
)
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

import dither
from dither.integrations.opacus import NoiseSchedule
from dither.training import StepError

Setup = tuple[NoiseSchedule, Any, Any, Any]


@pytest.fixture
def setup() -> Setup:
    torch.manual_seed(3)
    schedule = NoiseSchedule(small_plan())
    model, optimizer, loader = made_private(engine(), records(60), batch_size=10)
    schedule.drive(optimizer, loader)
    return schedule, model, optimizer, loader


def test_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _, optimizer, loader = made_private(engine(), records(60), batch_size=10)
    monkeypatch.setattr("dither.training.distributed.rank_and_size", lambda: (0, 2))
    with pytest.raises(ValueError, match="NoiseSchedule is for one process, got a process group"):
        NoiseSchedule(small_plan()).drive(optimizer, loader)


def test_a_step_beyond_the_plan_is_refused(setup: Setup) -> None:
    schedule, model, optimizer, loader = setup
    for batch in loader:
        step(model, optimizer, batch)
    assert (schedule.steps, schedule.remaining) == (6, 0)
    before = optimizer.params[0].detach().clone()
    with pytest.raises(StepError, match="the plan's 6 steps are all taken"):
        step(model, optimizer, next(iter(loader)))
    assert torch.equal(optimizer.params[0], before)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_grad_norm", 2.0, r"optimizer.max_grad_norm must be 1.0 as planned, got 2.0"),
        ("expected_batch_size", 11, "optimizer.expected_batch_size must be 10 as planned, got 11"),
        ("loss_reduction", "sum", "optimizer.loss_reduction must be 'mean' as planned, got 'sum'"),
    ],
)
def test_settings_are_the_plans_at_first_and_in_every_step(
    setup: Setup, name: str, value: object, message: str
) -> None:
    _, model, optimizer, loader = setup
    setattr(optimizer, name, value)
    with pytest.raises(StepError, match=message):
        step(model, optimizer, next(iter(loader)))

    _, fresh, fresh_loader = made_private(engine(), records(60), batch_size=10)
    setattr(fresh, name, value)
    with pytest.raises(ValueError, match=message):
        NoiseSchedule(small_plan()).drive(fresh, fresh_loader)
    assert "pre_step" not in vars(fresh)


def test_schedulers_of_noise_and_clip_norm_are_refused_when_they_change_something(
    setup: Setup,
) -> None:
    _, model, optimizer, loader = setup
    scheduler = StepNoise(optimizer, step_size=1, gamma=0.5)
    step(model, optimizer, next(iter(loader)))
    scheduler.step()
    with pytest.raises(StepError, match="noise_multiplier was changed from the plan's 1.75"):
        step(model, optimizer, next(iter(loader)))
    optimizer.noise_multiplier = 1.75
    ExponentialGradClip(optimizer, gamma=0.5).step()
    with pytest.raises(StepError, match="max_grad_norm must be 1.0 as planned, got 0.5"):
        step(model, optimizer, next(iter(loader)))


def test_a_learning_rate_scheduler_multiplies_the_step_sizes(setup: Setup) -> None:
    schedule, model, optimizer, loader = setup
    scheduler = StepLR(optimizer.original_optimizer, step_size=1, gamma=0.1)
    used = []
    optimizer.original_optimizer.register_step_pre_hook(
        lambda inner, *_: used.append(inner.param_groups[0]["lr"])
    )
    for batch, _ in zip(loader, range(2), strict=False):
        step(model, optimizer, batch)
        scheduler.step()
    assert used == pytest.approx([0.5 * 1.0, 0.05 * 0.5])
    assert schedule.steps == 2


def test_several_batches_in_one_step_are_refused(setup: Setup) -> None:
    schedule, model, optimizer, loader = setup
    model.allow_grad_accumulation()
    backward(model, next(iter(loader)))
    backward(model, next(iter(loader)))
    with pytest.raises(StepError, match="gradients of one batch, got 2"):
        optimizer.step()
    assert schedule.steps == 0


def test_a_parameter_that_is_frozen_before_the_step_is_not_updated_without_noise() -> None:
    torch.manual_seed(3)
    schedule = NoiseSchedule(small_plan())
    model, optimizer, loader = made_private(engine(), records(60), batch_size=10, bias=True)
    schedule.drive(optimizer, loader)
    weight, bias = optimizer.params
    before = weight.detach().clone(), bias.detach().clone()
    backward(model, next(iter(loader)))
    assert bias.grad.any()
    bias.requires_grad_(requires_grad=False)
    optimizer.step()
    assert torch.equal(bias, before[1])
    assert (weight != before[0]).all()


def test_the_inner_optimizer_does_not_step_without_noise(setup: Setup) -> None:
    _, model, optimizer, loader = setup
    backward(model, next(iter(loader)))
    with pytest.raises(StepError, match="the inner optimizer was stepped without noise"):
        optimizer.original_optimizer.step()

    assert optimizer.pre_step()
    optimizer.max_grad_norm = 2.0
    with pytest.raises(StepError, match="max_grad_norm"):
        step(model, optimizer, next(iter(loader)))
    with pytest.raises(StepError, match="the inner optimizer was stepped without noise"):
        optimizer.original_optimizer.step()


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"clipping": "per_layer", "max_grad_norm": [1.0]}, "DPPerLayerOptimizer"),
        (ADAPTIVE_CLIPPING, "AdaClipDPOptimizer"),
        ({"grad_sample_mode": "ghost"}, "DPOptimizerFastGradientClipping"),
    ],
)
def test_optimizers_of_another_mechanism_are_rejected(settings: dict[str, Any], name: str) -> None:
    _, optimizer, loader = made_private(engine(), records(60), batch_size=10, **settings)
    with pytest.raises(TypeError, match=f"optimizer must be the DPOptimizer of .* got {name}"):
        NoiseSchedule(small_plan()).drive(optimizer, loader)


def test_an_optimizer_is_opacus_and_driven_by_one(setup: Setup) -> None:
    schedule, _, optimizer, loader = setup
    other = NoiseSchedule(small_plan())
    for one in (other, schedule):
        with pytest.raises(ValueError, match="an optimizer has one schedule"):
            one.drive(optimizer, loader)
    with pytest.raises(TypeError, match="got SGD"):
        other.drive(optimizer.original_optimizer, loader)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"batch_size": 12}, ValueError, "the plan's probability 0.166667, got 0.2: make it with"),
        ({"batch_size": 11}, None, ""),
        ({"batch_size": 11, "drop_last": True}, ValueError, "probability 0.166667, got 0.2"),
        ({"batch_size": 10, "poisson_sampling": False}, TypeError, "got DataLoader with BatchS"),
        ({"batch_size": 10, "rand_on_empty": True}, ValueError, "must have rand_on_empty=False"),
    ],
)
def test_records_are_drawn_as_planned(
    settings: dict[str, Any], error: type[Exception] | None, message: str
) -> None:
    _, optimizer, loader = made_private(engine(), records(60), **settings)
    optimizer.expected_batch_size = 10
    schedule = NoiseSchedule(small_plan())
    if error is None:
        schedule.drive(optimizer, loader)
        assert loader.sample_rate == 1 / 6
        return
    with pytest.raises(error, match=message):
        schedule.drive(optimizer, loader)


def test_a_rate_that_changes_on_the_way_is_refused(setup: Setup) -> None:
    _, model, optimizer, loader = setup
    loader.batch_sampler.sample_rate = 0.5
    with pytest.raises(StepError, match="the plan's probability 0.166667, got 0.5"):
        step(model, optimizer, next(iter(loader)))


def test_a_batch_size_that_does_not_divide_the_records_is_drawn_less_often() -> None:
    """Opacus makes 11 steps of 105/10 and draws with 1/11; the plan is for 10/105."""
    torch.manual_seed(4)
    plan = small_plan(22, dataset_size=105)
    private_engine = engine()
    model, optimizer, loader = made_private(private_engine, records(105), batch_size=10)
    schedule = NoiseSchedule(plan)
    with pytest.raises(ValueError, match="expected_batch_size must be 10 as planned, got 9"):
        schedule.drive(optimizer, loader)
    optimizer.expected_batch_size = 10
    schedule.drive(optimizer, loader)
    while schedule.remaining:
        for batch in loader:
            step(model, optimizer, batch)
    assert loader.sample_rate == 1 / 11 < plan.sample_rate
    assert private_engine.get_epsilon(DELTA) < plan.bound.epsilon


def test_plans_that_opacus_cannot_follow_are_refused() -> None:
    sizes: dict[str, Any] = {"dataset_size": 60, "batch_size": 10}
    fixed = dither.Plan.from_noise_multipliers([2.0] * 3, delta=DELTA, sampling="fixed", **sizes)
    automatic = dither.Plan.from_noise_multipliers(
        [2.0] * 3, delta=DELTA, clipping="automatic", **sizes
    )
    with pytest.raises(ValueError, match="plan must have clipping 'flat', got 'automatic'"):
        NoiseSchedule(automatic)
    with pytest.raises(ValueError, match="plan must have sampling 'poisson', got 'fixed'"):
        NoiseSchedule(fixed)
    correlated = dither.Plan.from_noise_multipliers(
        [2.0] * 3, delta=DELTA, correlation=[1.0, 0.5], **sizes
    )
    with pytest.raises(ValueError, match="plan must have independent noise, got noise that is cor"):
        NoiseSchedule(correlated)
    with pytest.raises(ValueError, match="plan must have noise in every step"):
        NoiseSchedule(dither.Plan.unsafe_without_noise(steps=3, **sizes))
    reactive = dither.plan(
        epsilon=2.0,
        delta=DELTA,
        steps=5,
        stepsizes=dither.schedules.AdaGradNorm(20, 1e-3),
        noise="filter",
        **sizes,
    )
    with pytest.raises(TypeError, match="got a ReactivePlan: it needs every release"):
        NoiseSchedule(reactive)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="plan must be a Plan, got 3"):
        NoiseSchedule(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [0.01, torch.tensor(0.01)])
def test_every_group_keeps_its_own_rate(rate: Any) -> None:
    used: list[list[float]] = []

    class Watched(torch.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            used.append([float(group["lr"]) for group in self.param_groups])
            return super().step(closure)

    def two_groups(parameters: Any, lr: float) -> torch.optim.Optimizer:
        (weight,) = parameters
        groups: list[dict[str, Any]] = [{"params": [weight]}, {"params": [], "lr": 0.25}]
        return Watched(groups, lr=rate)

    torch.optim.Adam([torch.zeros(1)])  # from now on torch calls hooks in super().step(), too
    schedule = NoiseSchedule(small_plan())
    model, optimizer, loader = made_private(
        engine(), records(60), batch_size=10, optimizer=two_groups
    )
    schedule.drive(optimizer, loader)
    for batch in loader:
        step(model, optimizer, batch)
    own = [float(rate), 0.25]
    assert np.array(used) == pytest.approx(np.outer(schedule.plan.stepsizes, own), rel=1e-6)
    assert [float(group["lr"]) for group in optimizer.param_groups] == own


def test_a_run_goes_on_where_it_was(setup: Setup) -> None:
    schedule, model, optimizer, loader = setup
    first = schedule.state_dict()
    for batch, _ in zip(loader, range(4), strict=False):
        step(model, optimizer, batch)
    state = json.loads(json.dumps(schedule.state_dict()))
    assert schedule.bound().epsilon < schedule.plan.bound.epsilon

    later = NoiseSchedule(small_plan())
    model, optimizer, loader = made_private(engine(), records(60), batch_size=10)
    later.drive(optimizer, loader)
    later.load_state_dict(state)
    assert later.remaining == 2
    assert optimizer.noise_multiplier == later.plan.noise_multipliers[4]
    step(model, optimizer, next(iter(loader)))
    assert later.steps == 5

    with pytest.raises(ValueError, match="must not be older than this run of 5 steps, got one"):
        later.load_state_dict(first)
    with pytest.raises(ValueError, match="state must be one of the plan"):
        NoiseSchedule(small_plan(7)).load_state_dict(state)


def test_a_loader_of_ones_own_is_taken_if_it_draws_as_planned() -> None:
    data = records(60)
    _, optimizer, _ = made_private(engine(), data, batch_size=10)
    NoiseSchedule(small_plan()).drive(optimizer, DPDataLoader(data, sample_rate=10 / 60))
    _, optimizer, _ = made_private(engine(), data, batch_size=10)
    with pytest.raises(TypeError, match="data_loader must be the DPDataLoader of make_private"):
        NoiseSchedule(small_plan()).drive(optimizer, DataLoader(data, batch_size=10))


def test_bridges_are_imported_by_their_own_names_only() -> None:
    code = (
        "import sys, dither.integrations;"
        "print({'opacus', 'transformers'} & {*sys.modules});"
        "sys.modules['opacus'] = None;"
        "import dither.integrations.opacus"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "set()"
    assert "dither.integrations.opacus needs Opacus 1.6 or newer: pip install" in ran.stderr
