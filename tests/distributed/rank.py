"""What one rank does in the tests: cases by their names, results in a folder."""

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Subset

import dither
from dither.accounting import BudgetExceededError
from dither.schedules import AdaGradNorm
from dither.training import Shard, StepError

STEPS, RECORDS = 50, 26
RATE, DRAWS, SHARDS = 0.1, 400, (30, 10, 0)
NOISE, DIMENSION, NOISY_STEPS = 1.7, 50_000, 4
KEPT: list[dither.Private] = []


class Transformer(nn.Module):
    """Tokens, one layer of attention, a mean, a class.

    Without biases: a key's has no effect, and Adam would make steps of its rounding errors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(
            16, 2, 32, dropout=0.0, batch_first=True, bias=False
        )
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.tokens(x)).mean(1))  # type: ignore[no-any-return]


def models() -> dict[str, tuple[nn.Module, Tensor]]:
    """Return models with inputs for them, the same on every rank."""
    torch.manual_seed(0)
    cnn = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 3)
    )
    return {
        "cnn": (cnn, torch.randn(RECORDS, 2, 6, 6)),
        "transformer": (Transformer(), torch.randint(11, (RECORDS, 5))),
    }


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.002),
}


def go(private: dither.Private) -> None:
    for inputs, targets in private.batches():
        losses = functional.cross_entropy(private.model(inputs), targets, reduction="none")
        private.backward(losses)
        private.optimizer.step()
        private.optimizer.zero_grad()


def equal(folder: Path, rank: int) -> None:
    """Without noise, on all records in every step."""
    plan = dither.Plan.unsafe_without_noise(
        steps=STEPS, dataset_size=RECORDS, batch_size=RECORDS, clip_norm=0.5
    )
    found = {}
    for kind, make in OPTIMIZERS.items():
        for name, (model, inputs) in models().items():
            targets = torch.arange(RECORDS) % 3
            if rank:  # all begin with what the first rank has
                nn.init.zeros_(next(model.parameters()))
            go(dither.make_private(model, make(model.parameters()), plan, (inputs, targets)))
            for key, value in model.state_dict().items():
                found[f"{kind} {name} {key}"] = value
    torch.save(found, folder / f"{rank}.pt")


class Still(nn.Module):
    """Its gradients are zero, so that releases are noise alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, DIMENSION // 2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (0.0 * self.weight).T


def noise(folder: Path, rank: int) -> None:
    """Releases of nothing: noise."""
    z = [NOISE * (1 + step) for step in range(NOISY_STEPS)]
    plan = dither.Plan.from_noise_multipliers(z, delta=1e-5, dataset_size=100, batch_size=50)
    torch.manual_seed(0)
    model = Still()
    data = torch.randn(100, DIMENSION // 2), torch.zeros(100, dtype=torch.int64)
    private = dither.make_private(model, torch.optim.SGD(model.parameters(), lr=1.0), plan, data)
    released, before = [], model.weight.detach().clone()
    for inputs, targets in private.batches():
        losses = functional.cross_entropy(private.model(inputs), targets, reduction="none")
        private.backward(losses)
        private.optimizer.step()
        after = model.weight.detach().clone()
        released.append((before - after).flatten())
        before = after
    torch.save(torch.stack(released), folder / f"{rank}.pt")


def draws(folder: Path, rank: int) -> None:
    """Which records take part, with shards of different sizes, one of them empty."""
    own = SHARDS[rank]
    torch.manual_seed(rank)
    plan = dither.Plan.from_noise_multipliers(
        [2.0] * DRAWS, delta=1e-5, dataset_size=sum(SHARDS), batch_size=round(RATE * sum(SHARDS))
    )
    model = nn.Linear(3, 2)
    data = torch.randn(own, 3), torch.zeros(own, dtype=torch.int64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = dither.make_private(model, optimizer, plan, Shard(data))
    taken = np.zeros((DRAWS, own), bool)
    for inputs, targets in private.batches():
        taken[private.step, private._drawn[private.step]] = True
        losses = functional.cross_entropy(private.model(inputs), targets, reduction="none")
        private.backward(losses)
        private.optimizer.step()
        private.optimizer.zero_grad()
    np.save(folder / f"{rank}.npy", taken)


def reactive(folder: Path, rank: int) -> None:
    """Step sizes and noise that follow what is released are the same everywhere."""
    plan = dither.plan(
        epsilon=2.0, delta=1e-5, dataset_size=100, batch_size=20, steps=12, noise="filter",
        stepsizes=AdaGradNorm(1e-2, 1e-4),
    )  # fmt: skip
    torch.manual_seed(0)
    model, data = nn.Linear(3, 2), (torch.randn(100, 3), torch.zeros(100, dtype=torch.int64))
    private = dither.make_private(model, torch.optim.SGD(model.parameters(), lr=1.0), plan, data)
    seen = []
    for inputs, targets in private.batches():
        losses = functional.cross_entropy(private.model(inputs), targets, reduction="none")
        private.backward(losses)
        private.optimizer.step()
        seen.append((private.noise_multiplier, private.stepsize))
    waits = private._ranks._group()._get_backend(torch.device("cpu")).options._timeout  # type: ignore[attr-defined]
    found: dict[str, Any] = {
        "seen": seen,
        "weight": model.weight.tolist(),
        "epsilon": private.spent().epsilon,
    }
    found["timeout"] = waits.total_seconds()
    KEPT.append(private)
    (folder / f"{rank}.json").write_text(json.dumps(found))


class Records(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """A map-style dataset, whose inputs may be another at every look."""

    def __init__(self, data: tuple[Tensor, ...], jitter: float) -> None:
        self._inputs, self._jitter = data[0], jitter

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = self._jitter * torch.randn(3)
        return self._inputs[index] + noise, (self._inputs[index, 0] > 0).long()


class OwnDice(Records):
    """Augmented by dice that nobody else knows."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, target = super().__getitem__(index)
        return inputs + float(np.random.default_rng().normal()), target


def refusals(folder: Path, rank: int) -> None:
    """What is not the same everywhere, or cannot be done by ranks, is refused on all of them."""
    torch.manual_seed(0)
    data = torch.randn(100, 3), torch.zeros(100, dtype=torch.int64)
    found: dict[str, str] = {}

    def tried(name: str, *, z: float = 2.0, dataset: Any = data, **changed: Any) -> None:
        sizes = {"dataset_size": 100, "batch_size": 10, "sampling": "poisson", **changed}
        ledger, seed, frozen = (sizes.pop(key, None) for key in ("ledger", "seed", "frozen"))
        lr = sizes.pop("lr", 0.1)
        settings: dict[str, Any] = sizes
        plan = dither.Plan.from_noise_multipliers([z] * 3, delta=1e-5, **settings)
        model: nn.Module = nn.Linear(3, 2)
        if name == "models":
            model = sizes_of[min(rank, 1)]
        if name == "layers":
            model = nn.Sequential(nn.Linear(3, 2), nn.ReLU() if rank else nn.Tanh())
        if frozen:
            [*model.parameters()][-1].requires_grad_(False)
        optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=lr)
        try:
            go(dither.make_private(model, optimizer, plan, dataset, ledger=ledger, seed=seed))
        except (ValueError, TypeError, BudgetExceededError, StepError) as refusal:
            found[name] = f"{type(refusal).__name__}: {refusal}"

    sizes_of = nn.Linear(3, 2), nn.Linear(3, 2, bias=False)
    tried("plans", z=2.0 + rank)
    tried("models")
    tried("layers")
    tried("fixed", sampling="fixed")
    tried("shards", dataset=Shard(data))
    tried("longer shard", dataset=Shard(tuple(each[: 60 + rank] for each in data)))
    tried("turned shard", dataset=Shard(tuple(torch.roll(each, rank, 0) for each in data)))
    tried("twins", dataset=Shard(data, has_twins=True))
    tried("seeds", seed=7 if rank else None)
    tried("frozen", frozen=bool(rank))
    tried("rates", lr=0.1 * (1 + rank))
    turned = tuple(torch.roll(each, rank, 0) for each in data)
    wide = torch.randn(902, 3), torch.zeros(902, dtype=torch.int64)
    tried("order", dataset=turned)
    tried("length", dataset=tuple(each[: 100 - rank] for each in data))
    tried("mixed", dataset=data if rank else Shard(data))
    tried("one by one", dataset=Records(data, jitter=0.0))
    tried("one by one, random", dataset=Records(data, jitter=1.0))
    tried("one by one, order", dataset=Records(turned, jitter=1.0))
    tried("own dice", dataset=OwnDice(data, jitter=0.0))
    shard = Subset(Records(wide, jitter=1.0), range(300 * rank, 300 * rank + 302))
    tried("one by one, two in common", dataset=Shard(shard))
    shard = Subset(Records(wide, jitter=1.0), range(300 * rank, 300 * rank + 300))
    tried("one by one, nothing in common", dataset=Shard(shard), dataset_size=900)
    tried("own dice, shards", dataset=Shard(OwnDice(turned, jitter=0.0)))
    tried("own dice, twins", dataset=Shard(OwnDice(turned, jitter=0.0), has_twins=True))
    try:
        plan = dither.Plan.from_noise_multipliers([2.0], delta=1e-5, dataset_size=100, batch_size=9)
        dither.training.train_linear(data[0].numpy(), lambda scores, _: scores, plan, outputs=1)
    except ValueError as refusal:
        found["linear"] = str(refusal)
    tried("ledger elsewhere", ledger=folder / "elsewhere.sqlite" if rank == 1 else None)
    for name, owner in (("folder elsewhere", 1), ("folder that is not empty", 0)):
        plan = dither.Plan.from_noise_multipliers([2.0], delta=1e-5, dataset_size=100, batch_size=9)
        run_dir = folder.parent if rank == owner else None
        try:
            dither.train(nn.Linear(3, 2), data, plan, run_dir=run_dir, progress=False)
        except (ValueError, StepError) as refusal:
            found[name] = f"{type(refusal).__name__}: {refusal}"
    try:
        averaging = "ema" if rank else None
        dither.train(nn.Linear(3, 2), data, plan, averaging=averaging, progress=False)
    except ValueError as refusal:
        found["averaging"] = str(refusal)
    book = folder / "capped.sqlite"
    if rank == 0:
        ledger = dither.ledger.Ledger(book)
        ledger.cap(0.1, 1e-5)
        ledger.close()
    tried("cap", ledger=book)
    tried("nothing", ledger=folder / f"ledger-{rank}.sqlite")
    (folder / f"{rank}.json").write_text(json.dumps(found))


def wrapped(folder: Path, rank: int) -> None:
    """Modules that spread themselves over ranks are refused by name."""
    from torch.distributed.device_mesh import init_device_mesh  # seconds to import
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor import distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    spread = nn.Linear(6, 3)
    for name, value in [*spread.named_parameters()]:
        setattr(spread, name, nn.Parameter(distribute_tensor(value.detach(), mesh)))
    kinds: dict[str, Any] = {
        "DistributedDataParallel": nn.parallel.DistributedDataParallel(nn.Linear(6, 3)),
        "FullyShardedDataParallel": FullyShardedDataParallel(
            nn.Linear(6, 3), device_id=torch.device("cpu")
        ),
        "FSDPLinear": fully_shard(nn.Linear(6, 3), mesh=mesh),
        "Linear": spread,
    }
    plan = dither.Plan.from_noise_multipliers([2.0], delta=1e-5, dataset_size=20, batch_size=5)
    data, found = (torch.randn(20, 6), torch.zeros(20, dtype=torch.int64)), {}
    for name, model in kinds.items():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            dither.make_private(model, optimizer, plan, data)
        except ValueError as refusal:
            found[name] = str(refusal)
    (folder / f"{rank}.json").write_text(json.dumps(found))


class Sending(nn.Linear):
    """Adds up what all ranks have at the same places."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = super().forward(x)
        dist.all_reduce(hidden.detach())
        return hidden


def messages(folder: Path, rank: int) -> None:
    """Records of one rank must not reach another, nor losses; runs do not meet each other."""
    plan = dither.Plan.unsafe_without_noise(steps=2, dataset_size=90, batch_size=90, clip_norm=1.0)
    torch.manual_seed(0)
    data, found = (torch.randn(90, 3), torch.zeros(90, dtype=torch.int64)), dict[str, str]()

    def made(model: nn.Module) -> dither.Private:
        return dither.make_private(model, torch.optim.SGD(model.parameters(), lr=1.0), plan, data)

    def tried(name: str, model: nn.Module) -> None:
        private = made(model)
        inputs, targets = next(private.batches())
        if name == "batch":
            dist.all_reduce(inputs)
        losses = functional.cross_entropy(private.model(inputs), targets, reduction="none")
        if name == "losses":
            dist.all_reduce(losses.detach().as_subclass(Tensor))
        private.backward(losses)
        try:
            private.optimizer.step()
        except StepError as refusal:
            found[name] = str(refusal)
        private.close()

    tried("model", Sending(3, 2))
    for name in ("batch", "losses", "nothing"):
        tried(name, nn.Linear(3, 2))
    runs = made(nn.Linear(3, 2)), made(nn.Linear(3, 2))
    for batches in zip(*(run.batches() for run in runs), strict=True):
        for run, (inputs, targets) in zip(runs, batches, strict=True):
            run.backward(functional.cross_entropy(run.model(inputs), targets, reduction="none"))
        for run in runs:
            run.optimizer.step()
    groups = {id(run._ranks._group()) for run in runs}  # type: ignore[attr-defined]
    found["groups"] = str(len(groups))
    states = [run.state_dict() for run in runs]
    states[1]["course"] = {**states[1]["course"], "paid": [0.0]}
    try:
        runs[0].load_state_dict(states[min(rank, 1)])
    except ValueError as refusal:
        found["states"] = str(refusal)
    for run in runs:
        run.close()
        run.close()
    (folder / f"{rank}.json").write_text(json.dumps(found))


CASES = {
    each.__name__: each for each in (equal, noise, draws, reactive, refusals, messages, wrapped)
}


def main(names: list[str], folder: Path) -> None:
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    for name in names:
        (folder / name).mkdir(exist_ok=True)
        CASES[name](folder / name, rank)
    dist.destroy_process_group()
    for run in KEPT:  # groups that live longer than torch's would crash at the exit, now and then
        assert run._ranks._group() is None  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(sys.argv[2:], Path(sys.argv[1]))
