"""A run that can be killed at any moment, and resumed: in a directory, with a count."""

import os
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from tests.ledger import ledgers
from torch import Tensor

import dither
from dither.accounting import BudgetExceededError
from dither.data import load
from dither.schedules import Linear

EPSILON, DELTA = 3.0, 1e-4


def plan(steps: int) -> dither.Plan:
    return dither.plan(
        epsilon=EPSILON, delta=DELTA, dataset_size=1438, batch_size=128, steps=steps,
        stepsizes=Linear(2.0, 0.2), noise="uniform",
    )  # fmt: skip


class Slow(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Takes some time for every batch, so that there is time to be killed in."""

    def __init__(self, seconds: float) -> None:
        self._data, self._seconds = load("digits").train, seconds

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        time.sleep(self._seconds)
        return [self._data[index] for index in indices]


def run(
    folder: Path, releases: Path, steps: int, seconds: float = 0.0
) -> dither.training.TrainResult:
    """Train, and add a byte to a file after every release."""
    torch.manual_seed(0)
    torch.set_num_threads(1)

    def optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        made = torch.optim.SGD(parameters, lr=1.0)
        count = os.open(releases, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

        def released(*_: Any) -> None:
            os.write(count, b".")

        made.register_step_post_hook(released)
        return made

    return dither.train(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)),
        Slow(seconds),
        plan(steps),
        optimizer=optimizer,
        evaluate=dither.Public(load("digits").test),
        every=1000,
        run=dither.Run(folder, resume=True, checkpoint_every=4),
        progress=False,
    )


def race(folder: Path, name: str, pipe: Connection) -> None:
    """Register and spend a plan for every number that comes, as far as the cap allows."""
    ledger, made = ledgers.new(folder), ledgers.plan(2.0, 5)
    pipe.send("ready")
    while (number := pipe.recv()) is not None:
        try:
            account = ledger.register(made, name=f"{name}-{number}")
            for step in range(made.steps):
                account.finish(step, 2.0)
            account.end()
            pipe.send("spent")
        except BudgetExceededError:
            pipe.send("refused")
