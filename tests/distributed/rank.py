"""What one rank does in the tests: cases by their names, results in a directory."""

import json
import os
import sys
from collections.abc import Callable
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tests.ledger import killed_run
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import random_split

import dither
from dither import cli
from dither.accounting import BudgetExceededError
from dither.schedules import AdaGradNorm
from dither.training import Shard, StepError

STEPS, RECORDS = 12, 26
RATE, DRAWS, SHARDS = 0.1, 400, (30, 10, 0)
NOISE, DIMENSION, NOISY_STEPS = 1.7, 50_000, 4
CORRELATION = (1.0, 0.7)


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
CLIPPING = {"sgd": "flat", "adam": "automatic"}


def go(private: dither.training.Private) -> None:
    for batch in private.batches():
        take_step(private, batch)


def take_step(private: dither.training.Private, batch: Any) -> None:
    """In microbatches, of which ranks may have different numbers."""
    for inputs, targets in private.microbatches(batch, 7):
        losses = functional.cross_entropy(private.model(inputs), targets, reduction="none")
        private.backward(losses)
    private.optimizer.step()
    private.optimizer.zero_grad()


def equal(folder: Path, rank: int) -> None:
    """Without noise, on all records in every step."""
    found = {}
    for kind, make in OPTIMIZERS.items():
        plan = dither.Plan.unsafe_without_noise(
            steps=STEPS, dataset_size=RECORDS, batch_size=RECORDS, clip_norm=0.5,
            clipping=CLIPPING[kind],
        )  # fmt: skip
        for name, (model, inputs) in models().items():
            targets = torch.arange(RECORDS) % 3
            if rank:  # all begin with what the first rank has
                nn.init.zeros_(next(model.parameters()))
            go(dither.make_private(model, make(model.parameters()), plan, (inputs, targets)))
            for key, value in model.state_dict().items():
                found[f"{kind} {name} {key}"] = value
    torch.save(found, folder / f"{rank}.pt")


def users(folder: Path, rank: int) -> None:
    """Users with one to seven records, all of whom take part in every step."""
    owners = np.repeat(np.arange(7), [1, 2, 3, 7, 6, 5, 2])
    plan = dither.Plan.unsafe_without_noise(
        steps=STEPS, dataset_size=7, batch_size=7, clip_norm=0.5
    )
    model, inputs = models()["cnn"]
    data, optimizer = (inputs, torch.arange(RECORDS) % 3), OPTIMIZERS["sgd"](model.parameters())
    private = dither.make_private(model, optimizer, plan, data, users=owners[::-1])
    go(private)
    torch.save(model.state_dict(), folder / f"{rank}.pt")


class Still(nn.Module):
    """Its gradients are zero, so that releases are noise alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, DIMENSION // 2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (0.0 * self.weight).T


def noise(folder: Path, rank: int, **settings: Any) -> None:
    """Releases of nothing: noise."""
    z = [NOISE * (1 + step) for step in range(NOISY_STEPS)]
    plan = dither.Plan.from_noise_multipliers(
        z, delta=1e-5, dataset_size=100, batch_size=50, **settings
    )
    torch.manual_seed(0)
    model = Still()
    data = torch.randn(100, DIMENSION // 2), torch.zeros(100, dtype=torch.int64)
    private = dither.make_private(model, torch.optim.SGD(model.parameters(), lr=1.0), plan, data)
    released, before = [], model.weight.detach().clone()
    for batch in private.batches():
        take_step(private, batch)
        after = model.weight.detach().clone()
        released.append((before - after).flatten())
        before = after
    torch.save(torch.stack(released), folder / f"{rank}.pt")


def correlated(folder: Path, rank: int) -> None:
    """Releases of nothing with correlated noise, which rank 0 alone keeps."""
    noise(folder, rank, correlation=CORRELATION)


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
    for batch in private.batches():
        taken[private.step, private._draws._drawn[private.step][0]] = True
        take_step(private, batch)
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
    for batch in private.batches():
        take_step(private, batch)
        seen.append((private.noise_multiplier, private.stepsize))
    found: dict[str, Any] = {
        "seen": seen,
        "weight": model.weight.tolist(),
        "epsilon": private.spent().epsilon,
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))


def tuned(folder: Path, rank: int) -> None:
    """The scores of a search are sums over all ranks, and its choice is the same everywhere."""
    inputs = torch.linspace(-1.0, 1.0, 40)[:, None]
    data = inputs, (inputs[:, 0] > 0.0).long()
    model = nn.Linear(1, 2)
    result = dither.train(
        model, data, epsilon=2.0, delta=1e-3, tune=0.5, batch_size=20, steps=6, progress=False
    )
    found = {"factor": result.factor, "weight": model.weight.tolist(), "steps": result.steps}
    (folder / f"{rank}.json").write_text(json.dumps(found))


def chosen(folder: Path, rank: int) -> None:
    """One recipe for all, from all their records and the speed of the first rank."""
    rows = 10 + 5 * rank
    data = torch.randn(rows, 2), torch.zeros(rows, dtype=torch.int64)
    result = dither.train(
        nn.Linear(2, 2), dither.training.Shard(data), epsilon=2.0, compute="0.01 s",
        noise="uniform", progress=False,
    )  # fmt: skip
    assert result.recipe is not None
    (folder / f"{rank}.json").write_text(result.recipe.to_json())


class Augmented(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """A map-style dataset, whose inputs are different every time they are fetched."""

    def __init__(self, inputs: Tensor) -> None:
        self._inputs = inputs

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = np.random.default_rng().normal(size=3).astype(np.float32)
        return self._inputs[index] + torch.from_numpy(noise), torch.tensor(0)


def refusals(folder: Path, rank: int) -> None:
    """What is not the same everywhere, or cannot be done by ranks, is refused on all of them."""
    torch.manual_seed(0)
    data = torch.randn(100, 3), torch.zeros(100, dtype=torch.int64)
    found: dict[str, str] = {}

    def tried(name: str, *, z: float = 2.0, dataset: Any = data, **changed: Any) -> None:
        sizes = {"dataset_size": 100, "batch_size": 10, "sampling": "poisson", **changed}
        ledger, seed, frozen, owners = (
            sizes.pop(key, None) for key in ("ledger", "seed", "frozen", "owners")
        )
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
            go(
                dither.make_private(
                    model, optimizer, plan, dataset, ledger=ledger, seed=seed, users=owners
                )
            )
        except (ValueError, TypeError, BudgetExceededError, StepError) as refusal:
            found[name] = f"{type(refusal).__name__}: {refusal}"

    sizes_of = nn.Linear(3, 2), nn.Linear(3, 2, bias=False)
    tried("plans", z=2.0 + rank)
    tried("clipping", clipping="automatic" if rank else "flat")
    tried("models")
    tried("layers")
    tried("fixed", sampling="fixed")
    tried("seeds", seed=7 if rank else None)
    tried("frozen", frozen=bool(rank))
    tried("rates", lr=0.1 * (1 + rank))
    turned = tuple(torch.roll(each, rank, 0) for each in data)
    tried("order", dataset=turned)
    tried("length", dataset=tuple(each[: 100 - rank] for each in data))
    fetched, generator = Augmented(data[0]), torch.Generator().manual_seed(rank)
    tried("fetched length", dataset=Augmented(data[0][: 100 - rank]))
    tried("fetched split", dataset=random_split(fetched, [60, 40], generator)[0], dataset_size=60)
    same = random_split(fetched, [60, 40], torch.Generator().manual_seed(0))[0]
    tried("fetched, same split", dataset=same, dataset_size=60)
    tried("fetched", dataset=fetched)
    rounded = data[0] * (1.0 + 1e-6 * rank), data[1]
    tried("rounded", dataset=rounded)
    nothing = data[0].clone(), data[1]
    nothing[0][::2] = float("nan")
    tried("missing", dataset=nothing)

    tried("kinds", dataset=data if rank else Shard(data))
    own = np.arange(100) + 100 * rank
    tried("declared", dataset=Shard(data))
    tried("keys", dataset=Shard(data, keys=own))
    tried("keys of some", dataset=Shard(data, keys=own if rank else None))
    tried("a key in common", dataset=Shard(data, keys=own - rank))
    names = [f"of rank {rank}, {i}" for i in range(100)]
    tried("names", dataset=Shard(Augmented(data[0]), keys=names))
    names[rank] = "the same"
    tried("a name in common", dataset=Shard(Augmented(data[0]), keys=names))
    tried("users", dataset=Shard(data), owners=own // 4)
    tried("a user in common", dataset=Shard(data), owners=own // 4 - rank)
    tried("other users", owners=own // 4)
    tried("users of some", owners=own // 4 if rank else None)
    tried(
        "a number and its digits", dataset=Shard(data, keys=own if rank else [*map(str, own + 100)])
    )
    empty = tuple(each[: 100 * (rank == 1)] for each in data)
    tried("keys of nobody", dataset=Shard(empty, keys=range(100 * (rank == 1))))
    try:
        plan = dither.Plan.from_noise_multipliers([2.0], delta=1e-5, dataset_size=100, batch_size=9)
        dither.training.train_linear(
            data[0], dither.training.logistic_loss(data[1].numpy()), plan, outputs=1
        )
    except ValueError as refusal:
        found["linear"] = str(refusal)
    tried("ledger elsewhere", ledger=folder / "elsewhere.sqlite" if rank == 1 else None)
    for name, owner in (("folder elsewhere", 1), ("folder that is not empty", 0)):
        plan = dither.Plan.from_noise_multipliers([2.0], delta=1e-5, dataset_size=100, batch_size=9)
        run_dir = folder.parent if rank == owner else None
        try:
            dither.train(nn.Linear(3, 2), data, plan, run=dither.Run(run_dir), progress=False)
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


def together(folder: Path, rank: int) -> None:
    """Two runs take turns, between messages of the user's own; each does what one run does."""
    plan = dither.Plan.unsafe_without_noise(steps=4, dataset_size=90, batch_size=90, clip_norm=1.0)
    torch.manual_seed(0)
    data, model = (torch.randn(90, 3), torch.zeros(90, dtype=torch.int64)), nn.Linear(3, 2)

    def made() -> dither.training.Private:
        own = deepcopy(model)
        return dither.make_private(own, torch.optim.SGD(own.parameters(), lr=1.0), plan, data)

    alone = made()
    go(alone)
    runs = made(), made()
    sizes = []
    for batches in zip(*(run.batches() for run in runs), strict=True):
        for run, batch in zip(runs, batches, strict=True):
            size = torch.tensor(len(batch[0]))
            dist.all_reduce(size)
            sizes.append(int(size))
            take_step(run, batch)
    found: dict[str, Any] = {"sizes": sizes}
    found["weights"] = [[p.tolist() for p in run.model.parameters()] for run in (alone, *runs)]
    states = [run.state_dict() for run in runs]
    states[1]["plan_state"] = {**states[1]["plan_state"], "spent": [0.0]}
    try:
        runs[0].load_state_dict(states[min(rank, 1)])
    except ValueError as refusal:
        found["states"] = str(refusal)
    for run in runs:
        run.close()
        run.close()
    (folder / f"{rank}.json").write_text(json.dumps(found))


CASES: dict[str, Callable[[Path, int], None]] = {
    each.__name__: each
    for each in (
        equal,
        noise,
        correlated,
        draws,
        reactive,
        refusals,
        users,
        together,
        tuned,
        wrapped,
        chosen,
    )
}


def killed(folder: Path, releases: Path, steps: int) -> None:
    """A run that can be killed at any moment, and resumed by any number of ranks."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    count = releases if dist.get_rank() == 0 else Path(os.devnull)
    result = killed_run.run(folder, count, steps, seconds=0.02)
    sys.stdout.write(f"{result.steps}\n")
    dist.destroy_process_group()


def command(folder: Path, starts: int, *arguments: str) -> None:
    """The command in a directory, as a rank that torchrun has started so many times before."""
    os.environ |= {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": str(starts)}
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.exit(cli.main(arguments))


def main(folder: Path, *names: str) -> None:
    """All cases of some names."""
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    for name in names:
        (folder / name).mkdir(exist_ok=True)
        CASES[name](folder / name, rank)
    dist.destroy_process_group()
