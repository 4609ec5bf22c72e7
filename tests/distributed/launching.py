"""Processes on loopback that form a process group, forked from one that has imported torch."""

import multiprocessing
import os
import socket
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

TIMEOUT = 120.0
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(
    [
        *("tests.ledger.killed_run", "tests.distributed.rank"),
        *("torch._dynamo", "torch.distributed.fsdp", "sklearn.datasets"),  # imported on first use
    ]
)


@dataclass(frozen=True)
class Rank:
    """A process, and the file of what it prints."""

    process: BaseProcess
    output: Path


def start(size: int, main: Callable[..., None], *arguments: Any) -> list[Rank]:
    """Call a function on so many ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    outputs = Path(tempfile.mkdtemp())
    ranks = []
    for rank in range(size):
        own = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        output = outputs / f"{rank}.txt"
        process = FORKING.Process(target=_rank, args=(own, output, main, arguments))
        process.start()
        ranks.append(Rank(process, output))
    return ranks


def wait(ranks: Sequence[Rank]) -> list[tuple[int | None, str]]:
    """Wait for all, and return their exit codes and what they have printed; none is left behind."""
    try:
        for rank in ranks:
            rank.process.join(TIMEOUT)
    finally:
        for rank in ranks:
            rank.process.kill()
    return [(rank.process.exitcode, rank.output.read_text()) for rank in ranks]


def run(size: int, main: Callable[..., None], *arguments: Any) -> list[str]:
    """Call a function on so many ranks, all of which must end well; return what they print."""
    ends = wait(start(size, main, *arguments))
    assert all(code == 0 for code, _ in ends), "\n".join(text for _, text in ends)
    return [text for _, text in ends]


def _rank(
    environment: dict[str, str], output: Path, main: Callable[..., None], arguments: Sequence[Any]
) -> None:
    os.environ.update(environment)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    warnings.simplefilter("ignore")
    main(*arguments)
