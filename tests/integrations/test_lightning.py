"""Trainer.fit of Lightning trains as a loop of one's own does, and spends the same."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, callbacks
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from tests.distributed.launching import run
from tests.integrations.lightning_runs import (
    BATCH,
    MARK,
    RECORDS,
    SEED,
    Kill,
    KilledError,
    data,
    distance,
    loader,
    module,
    own_loop,
    quiet_plan,
    rank,
    trainer,
)
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import dither
from dither.integrations.lightning import PrivateStrategy
from dither.ledger import Ledger

STEPS = 10
pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning warns of much


def real_plan(noise: str = "optimal") -> dither.Plan:
    return dither.plan(
        epsilon=2.0, delta=1e-3, dataset_size=RECORDS, batch_size=BATCH, steps=STEPS, noise=noise
    )


def collate(records: list[Any]) -> Any:
    return torch.utils.data.default_collate(records)


@pytest.mark.parametrize(
    ("changed", "settings", "loading"),
    [
        ({}, {}, {}),
        ({"as_dict": True}, {"microbatch_size": 5}, {}),
        ({}, {}, {"collate_fn": collate}),
    ],
    ids=["tensor", "dict, microbatches", "collate_fn"],
)
def test_it_trains_to_the_same_parameters(
    changed: Any, settings: Any, loading: Any, tmp_path: Path
) -> None:
    own, _ = own_loop(quiet_plan())
    net = module(**changed)
    strategy = PrivateStrategy(quiet_plan(), seed=SEED, **settings)
    fit = trainer(tmp_path, strategy, max_epochs=-1)
    fit.fit(net, loader(**loading), loader())
    assert distance(own, net) < 1e-6
    assert distance(module(), net) > 1e-2, "training must go somewhere"
    assert fit.global_step == STEPS
    assert not net.head._forward_hooks


def test_it_spends_the_same(tmp_path: Path) -> None:
    own, private = own_loop(real_plan())
    net, strategy = module(), PrivateStrategy(real_plan(), seed=SEED)
    fit = trainer(tmp_path, strategy, max_epochs=2)
    fit.fit(net, loader())
    assert strategy.private is not None
    assert strategy.private.spent() == private.spent()
    assert distance(own, net) < 1e-6
    total = Ledger(tmp_path / "ledger.sqlite").total(1e-3)
    assert total.epsilon == private.spent().epsilon
    assert fit.callback_metrics["epsilon"] == private.spent().epsilon


def test_a_plan_is_made_from_a_budget(tmp_path: Path) -> None:
    strategy = PrivateStrategy(epsilon=2.0, noise="uniform", clip_norm=0.5)
    trainer(tmp_path, strategy, max_epochs=3).fit(module(), loader(batch_size=25))
    assert strategy.private is not None
    plan = strategy.private.plan
    assert (plan.steps, plan.dataset_size, plan.batch_size) == (9, RECORDS, 25)
    assert (plan.clip_norm, plan.bound.delta) == (0.5, 0.1 / RECORDS)
    assert 1.98 <= strategy.private.spent().epsilon <= 2.0


@pytest.mark.parametrize("limit", [{"max_steps": 4}, {"max_epochs": 2, "limit_train_batches": 2}])
def test_limits_of_the_trainer_are_those_of_the_plan(limit: Any, tmp_path: Path) -> None:
    strategy = PrivateStrategy(epsilon=2.0)
    fit = trainer(tmp_path, strategy, **limit)
    fit.fit(module(), loader())
    assert strategy.private is not None
    assert strategy.private.plan.steps == strategy.private.step == fit.global_step == 4


def test_a_plan_that_is_shorter_ends_the_fit(tmp_path: Path) -> None:
    strategy = PrivateStrategy(quiet_plan(steps=7))
    fit = trainer(tmp_path, strategy, max_epochs=9)
    fit.fit(module(), loader())
    assert fit.global_step == 7


def test_bfloat16_mixed_precision_and_workers(tmp_path: Path) -> None:
    own, _ = own_loop(quiet_plan())
    net = module()
    fit = trainer(
        tmp_path, PrivateStrategy(quiet_plan(), seed=SEED), max_epochs=2, precision="bf16-mixed"
    )
    fit.fit(net, loader())
    assert 0.0 < distance(own, net) < 0.05  # eight bits of the losses' gradients


def test_two_ranks_train_as_two_ranks_of_make_private(tmp_path: Path) -> None:
    run(2, rank, tmp_path)
    found = [torch.load(tmp_path / f"{each}.pt") for each in range(2)]
    for each in found:
        assert each["distance"] < 1e-6
        assert each["wrapped"] == "Net"
        assert each["sizes"] == (2 * BATCH, 6, 7)  # one step was lost
        assert each["epsilon"] == found[0]["epsilon"] <= 2.0
    for name, tensor in found[0]["state"].items():
        assert torch.equal(tensor, found[1]["state"][name])
    total = Ledger(tmp_path / "noisy/ledger.sqlite").total(1e-3).epsilon
    assert total == pytest.approx(found[0]["epsilon"], rel=1e-3)


# Learning rate schedulers.


class Rates(callbacks.Callback):
    """Keeps the learning rate of every step."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])


def stepping(optimizer: Any) -> Any:
    return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def cycling(optimizer: Any) -> Any:
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=11)
    scheduler = {"scheduler": cycle, "interval": "step", "frequency": 2}
    return {"optimizer": optimizer, "lr_scheduler": scheduler}


def warming(optimizer: Any) -> Any:
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(t / 4, 1.0))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": warmup, "interval": "step"}}


@pytest.mark.parametrize("configure", [stepping, cycling, warming])
def test_schedulers_become_step_sizes(configure: Any, tmp_path: Path) -> None:
    seen = Rates()
    plain = Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[seen],
    )  # fmt: skip
    plain.fit(module(configure=configure, reduction="mean"), loader())
    strategy = PrivateStrategy(epsilon=2.0)
    fit = trainer(tmp_path, strategy, max_epochs=2)
    fit.fit(module(configure=configure), loader())
    assert strategy.private is not None
    (group,) = fit.optimizers[0].param_groups
    planned = strategy.private.plan.stepsizes * group["lr"]
    expected = [rate or seen.rates[1] for rate in seen.rates]  # a step at rate 0 moves nothing
    assert planned.tolist() == pytest.approx(expected)
    assert len({*expected}) > 1


# Resuming.


def saving(folder: Path, every: int = 3) -> callbacks.ModelCheckpoint:
    return callbacks.ModelCheckpoint(folder / "saved", every_n_train_steps=every, save_top_k=-1)


def spent(folder: Path) -> float:
    return Ledger(folder / "ledger.sqlite").total(1e-3).epsilon


def fit_until(folder: Path, step: int | None, path: Path | None = None, **settings: Any) -> Any:
    """Fit, and end the run at a step if there is one; return the trainer and the module."""
    ending = [] if step is None else [Kill(step)]
    strategy = PrivateStrategy(settings.pop("plan", real_plan(noise="uniform")), **settings)
    fit = trainer(
        folder,
        strategy,
        max_epochs=2,
        enable_checkpointing=True,
        callbacks=[saving(folder), *ending],
    )
    net = module()
    if step is None:
        fit.fit(net, loader(), ckpt_path=path)
    else:
        with pytest.raises(KilledError):
            fit.fit(net, loader(), ckpt_path=path)
    return fit, net


def test_an_interrupted_fit_resumes_where_it_was(tmp_path: Path) -> None:
    whole, _ = own_loop(quiet_plan())
    fit_until(tmp_path, 6, plan=quiet_plan(), seed=SEED)
    (path,) = (tmp_path / "saved").glob("*step=6.ckpt")
    fit, net = fit_until(tmp_path, None, path, plan=quiet_plan(), seed=SEED)
    assert fit.global_step == STEPS
    assert distance(whole, net) < 1e-6


@pytest.mark.parametrize("saved", [3, 6])
def test_steps_lost_in_between_stay_spent(saved: int, tmp_path: Path) -> None:
    plan = real_plan(noise="uniform")
    fit_until(tmp_path, 8)
    z = plan.noise_multipliers.tolist()
    after_eight = dither.Plan.from_noise_multipliers(
        z[:8], delta=1e-3, dataset_size=RECORDS, batch_size=BATCH
    ).bound.epsilon
    assert spent(tmp_path) >= after_eight * (1.0 - 1e-3)
    (path,) = (tmp_path / "saved").glob(f"*step={saved}.ckpt")
    fit, _ = fit_until(tmp_path, None, path)
    private = fit.strategy.private
    assert fit.global_step == STEPS
    # What was released: eight steps with the planned noise, then those after the checkpoint.
    assert private.step == 8 + STEPS - saved
    released = z[:8] + private.plan.noise_multipliers.tolist()[8:]
    all_releases = dither.Plan.from_noise_multipliers(
        released, delta=1e-3, dataset_size=RECORDS, batch_size=BATCH
    ).bound.epsilon
    assert spent(tmp_path) >= all_releases * (1.0 - 1e-3)
    assert all_releases <= plan.bound.epsilon
    assert private.spent().epsilon <= plan.bound.epsilon
    assert min(released[8:]) > z[0], "the rest has more noise"


def test_a_fit_killed_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    fit_until(tmp_path, 2)
    first = spent(tmp_path)
    assert first > 0.0
    fit_until(tmp_path, None)
    assert spent(tmp_path) > real_plan(noise="uniform").bound.epsilon


def test_a_checkpoint_without_the_state_of_a_run_is_refused(tmp_path: Path) -> None:
    fit_until(tmp_path, 4)
    (path,) = (tmp_path / "saved").glob("*.ckpt")
    checkpoint = torch.load(path)
    del checkpoint["dither"]
    torch.save(checkpoint, path)
    with pytest.raises(ValueError, match="ckpt_path must be a checkpoint of a private run"):
        fit_until(tmp_path, None, path)


def test_a_checkpoint_needs_its_ledger_and_its_plan(tmp_path: Path) -> None:
    fit_until(tmp_path, 4)
    (path,) = (tmp_path / "saved").glob("*.ckpt")
    with pytest.raises(ValueError, match="ledger .* has no run"):
        fit_until(tmp_path / "elsewhere", None, path)
    with pytest.raises(ValueError, match="plan"):
        fit_until(tmp_path, None, path, plan=quiet_plan())


# What is shown.


def test_training_values_go_nowhere(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    strategy = PrivateStrategy(real_plan())
    fit = trainer(
        tmp_path, strategy, max_epochs=2, logger=logger, log_every_n_steps=2,
        enable_checkpointing=True,
    )  # fmt: skip
    with pytest.warns(UserWarning, match=f"'{MARK}', logged in training_step, is not private"):
        fit.fit(module(), loader(), loader())
    shown = {"epsilon", "noise_multiplier", "learning_rate", "val_loss"}
    assert {*fit.callback_metrics} == {*fit.logged_metrics} == shown
    assert {*fit.progress_bar_metrics} == shown - {"val_loss"}
    text = (Path(logger.log_dir) / "metrics.csv").read_text()
    assert {*text.splitlines()[0].split(",")} == {*shown, "epoch", "step"}
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert not [each for each in files if MARK.encode() in each.read_bytes()]
    assert [each for each in files if each.suffix == ".ckpt"]


def test_training_values_are_shown_if_asked_for(tmp_path: Path) -> None:
    strategy = PrivateStrategy(real_plan(), log_sensitive_training_values=True)
    fit = trainer(tmp_path, strategy, max_epochs=2)
    fit.fit(module(), loader())
    assert {MARK, f"{MARK}_step", f"{MARK}_epoch", "epsilon"} <= {*fit.callback_metrics}


def test_evaluation_and_callbacks_work(tmp_path: Path) -> None:
    strategy = PrivateStrategy(real_plan())
    monitor = callbacks.LearningRateMonitor("step")
    stop = callbacks.EarlyStopping("val_loss", patience=0, min_delta=99.0)
    fit = trainer(
        tmp_path, strategy, max_epochs=2, logger=CSVLogger(tmp_path), callbacks=[monitor, stop]
    )
    net = module()
    fit.fit(net, loader(), loader())
    assert fit.global_step == STEPS
    assert fit.validate(net, loader())[0]["val_loss"] > 0.0
    predictions = fit.predict(net, DataLoader(data()[0], batch_size=20))  # type: ignore[arg-type]
    assert len(predictions or ()) == 3


# What is refused.


def refusal(folder: Path, *, changed: Any = None, given: Any = None, **settings: Any) -> str:
    net = changed if isinstance(changed, LightningModule) else module(**(changed or {}))
    given = loader() if given is None else given
    strategy = settings.pop("strategy", None) or PrivateStrategy(real_plan())
    with warnings.catch_warnings(action="ignore"), pytest.raises((ValueError, TypeError)) as found:
        trainer(folder, strategy, **{"max_epochs": 2, **settings}).fit(net, given)
    return str(found.value)


class Manual(type(module())):  # type: ignore[misc]
    automatic_optimization = False


class OwnBackward(type(module())):  # type: ignore[misc]
    def backward(self, loss: Any) -> None:
        loss.backward()


class OwnClipping(type(module())):  # type: ignore[misc]
    def configure_gradient_clipping(self, *args: Any) -> None:
        pass


class Normed(type(module())):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(*data(), strict=True))


def plateau(optimizer: Any) -> Any:
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_loss"}


def in_groups(optimizer: Any) -> Any:
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    rules = [lambda t: 1.0, lambda t: 0.5**t]
    return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, rules)]


def to_zero(optimizer: Any) -> Any:
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    return [optimizer], [{"scheduler": cosine, "interval": "step"}]


RECORDS_OF = TensorDataset(*data())
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "scalar": ({"changed": {"reduction": "mean"}}, 'use reduction="none"'),
    "two schedules": ({"changed": {"configure": stepping}}, "by dither.schedules.from_torch"),
    "plateau": (
        {"changed": {"configure": plateau}, "strategy": PrivateStrategy(epsilon=1.0)},
        "got ReduceLROnPlateau: give PrivateStrategy stepsizes=",
    ),
    "groups": (
        {"changed": {"configure": in_groups}, "strategy": PrivateStrategy(epsilon=1.0)},
        "the same factor for all groups",
    ),
    "a rate of zero": (
        {"changed": {"configure": to_zero}, "strategy": PrivateStrategy(epsilon=1.0)},
        "is positive between its ends",
    ),
    "manual": ({"changed": Manual()}, "automatic_optimization must be True"),
    "backward": ({"changed": OwnBackward()}, "must not override backward"),
    "own clipping": ({"changed": OwnClipping()}, "must not override configure_gradient_clipping"),
    "batch norm": ({"changed": Normed()}, "BatchNorm"),
    "clipping": ({"gradient_clip_val": 1.0}, "give clip_norm= to PrivateStrategy"),
    "accumulation": ({"accumulate_grad_batches": 2}, "give PrivateStrategy microbatch_size="),
    "overfitting": ({"overfit_batches": 2}, "overfit_batches must be 0"),
    "reloading": ({"reload_dataloaders_every_n_epochs": 1}, "one dataset"),
    "float16": ({"plugins": [MixedPrecision("16-mixed", "cpu")]}, 'use "bf16-mixed"'),
    "averaging": (
        {"callbacks": [callbacks.StochasticWeightAveraging(1e-2)]},
        "must not have StochasticWeightAveraging",
    ),
    "several loaders": ({"given": [loader(), loader()]}, "must be one DataLoader"),
    "a list": ({"given": [(torch.zeros(2, 4), torch.zeros(2))]}, "must be a torch DataLoader"),
    "stream": ({"given": DataLoader(Stream(), batch_size=4)}, "an IterableDataset"),
    "no batch size": ({"given": DataLoader(RECORDS_OF, batch_size=None)}, "must have a batch_size"),
    "sampler": (
        {"given": DataLoader(RECORDS_OF, 4, sampler=WeightedRandomSampler([1.0] * 60, 60))},
        "must have no sampler of its own",
    ),
    "batch sampler": (
        {
            "given": DataLoader(
                RECORDS_OF, batch_sampler=BatchSampler(SequentialSampler(RECORDS_OF), 4, True)
            )
        },
        "and no batch_sampler",
    ),
    "without end": ({"strategy": PrivateStrategy(epsilon=1.0), "max_epochs": -1}, "got neither"),
    "dev run": (
        {"strategy": PrivateStrategy(epsilon=1.0), "fast_dev_run": True},
        "spend all of it: give a plan",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_private_is_refused(name: str, tmp_path: Path) -> None:
    settings, expected = REFUSED[name]
    assert expected in refusal(tmp_path, **settings)


def hooked() -> LightningModule:
    """Return a module as `wandb.watch` leaves it."""
    made = module()
    made.head.weight.register_hook(lambda gradient: None)
    return made


def test_hooks_that_get_gradients_of_records_are_refused(tmp_path: Path) -> None:
    found = refusal(tmp_path, changed=hooked())
    assert "parameters must have no hooks, got one on head.weight" in found
    shown = PrivateStrategy(real_plan(), log_sensitive_training_values=True)
    with warnings.catch_warnings(action="ignore"):
        trainer(tmp_path, shown, max_steps=1).fit(hooked(), loader())


def test_the_private_records_are_not_measured(tmp_path: Path) -> None:
    private = loader()
    for settings in ({}, {"num_sanity_val_steps": 0}):
        fitting = trainer(tmp_path, PrivateStrategy(real_plan()), max_epochs=1, **settings)
        with warnings.catch_warnings(action="ignore"):
            with pytest.raises(ValueError, match="must have public records, got the dataset of"):
                fitting.fit(module(), private, private)
            fitting.fit(module(), private, loader())
            with pytest.raises(ValueError, match="must have public records, got the dataset of"):
                fitting.validate(module(), private)


def test_a_budget_or_a_plan() -> None:
    with pytest.raises(TypeError, match="either a plan or epsilon=, got neither"):
        PrivateStrategy()
    with pytest.raises(TypeError, match="either a plan or epsilon=, got both"):
        PrivateStrategy(real_plan(), epsilon=1.0)
    with pytest.raises(TypeError, match="takes delta for a plan that it makes"):
        PrivateStrategy(real_plan(), delta=1e-5)
    with pytest.raises(TypeError, match="settings must be of clip_norm, .* got epochs"):
        PrivateStrategy(epsilon=1.0, epochs=3)  # type: ignore[call-arg]
