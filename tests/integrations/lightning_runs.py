"""A small module, the same training by a loop of one's own, and what one rank does in the tests."""

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import dither
from dither.integrations.lightning import PrivateStrategy
from dither.planning import Plan
from dither.training import Private

RECORDS, BATCH, SEED = 60, 12, 5
MARK = "train_loss"


class Net(LightningModule):
    """A classifier with a frozen layer, which logs its training loss."""

    def __init__(self, rate: float = 0.3, **changed: Any) -> None:
        super().__init__()
        self.rate, self.changed = rate, changed
        self.frozen = nn.Linear(4, 6).requires_grad_(False)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.frozen(x).tanh())  # type: ignore[no-any-return]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, targets = batch
        reduction = self.changed.get("reduction", "none")
        losses = functional.cross_entropy(self(inputs), targets, reduction=reduction)
        self.log(MARK, losses.mean(), prog_bar=True, on_step=True, on_epoch=True)
        return {"loss": losses} if self.changed.get("as_dict") else losses

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, targets = batch
        self.log("val_loss", functional.cross_entropy(self(inputs), targets), sync_dist=True)

    def configure_optimizers(self) -> Any:
        parameters = [p for p in self.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(parameters, lr=self.rate, momentum=0.9)
        make: Callable[[Any], Any] | None = self.changed.get("configure")
        return optimizer if make is None else make(optimizer)


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(RECORDS, 4, generator=generator)
    return inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()


def loader(batch_size: int = BATCH, **settings: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*data()), batch_size=batch_size, shuffle=True, **settings)


def trainer(folder: Path, strategy: PrivateStrategy, **settings: Any) -> Trainer:
    quiet = {
        "accelerator": "cpu", "devices": 1, "default_root_dir": folder, "logger": False,
        "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    return Trainer(strategy=strategy, **{**quiet, **settings})


def module(**changed: Any) -> Net:
    torch.manual_seed(0)
    return Net(**changed)


def quiet_plan(steps: int = 10, batch_size: int = BATCH) -> Plan:
    return dither.Plan.unsafe_without_noise(
        steps=steps, dataset_size=RECORDS, batch_size=batch_size, clip_norm=0.7
    )


def own_loop(plan: Any, **settings: Any) -> tuple[Net, Private]:
    """Train the same module with the same draws by `make_private`."""
    net = module()
    private = dither.make_private(
        net, net.configure_optimizers(), plan, data(), seed=SEED, **settings
    )
    for inputs, targets in private.batches():
        private.backward(functional.cross_entropy(net(inputs), targets, reduction="none"))
        private.optimizer.step()
        private.optimizer.zero_grad()
    private.close()
    return net, private


def distance(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


class KilledError(Exception):
    """What ends a run in the tests."""


class Kill(Checkpoint):
    """Ends a run when it has taken so many steps, and saved what it had to save."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise KilledError


def rank(folder: Path) -> None:
    """Train on ranks by a trainer and by a loop of one's own; compare, and save the parameters."""
    os.environ |= {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": os.environ["WORLD_SIZE"]}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    size = dist.get_world_size()
    plan = quiet_plan(batch_size=BATCH * size)
    found: dict[str, Any] = {}
    own, _ = own_loop(plan)
    strategy = PrivateStrategy(plan, seed=SEED)
    net = module()
    trainer(folder / "quiet", strategy, devices=size, max_epochs=-1).fit(net, loader())
    found["distance"] = distance(own, net)
    found["wrapped"] = type(strategy.model).__name__
    for killed in (True, False):
        strategy = PrivateStrategy(epsilon=2.0, delta=1e-3)
        saved = ModelCheckpoint(folder / "saved", every_n_train_steps=3, save_top_k=-1)
        noisy = trainer(
            folder / "noisy", strategy, devices=size, max_epochs=2, enable_checkpointing=True,
            callbacks=[saved, Kill(4)] if killed else [saved],
        )  # fmt: skip
        path = None if killed else folder / "saved/epoch=0-step=3.ckpt"
        with suppress(KilledError):
            noisy.fit(module(), loader(), loader(), ckpt_path=path)
    assert strategy.private is not None
    found["sizes"] = strategy.private.plan.batch_size, noisy.global_step, strategy.private.step
    found["epsilon"] = strategy.private.spent().epsilon
    found["state"] = net.state_dict()
    torch.save(found, folder / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()
