"""Real processes on loopback that form a process group."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TIMEOUT = 120.0


def started(size: int, module: str, *arguments: str | Path) -> list[subprocess.Popen[str]]:
    """Start a module once for every rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(size),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    return [
        subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]


def ended(processes: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Wait for all, and return their exit codes and what they said; nobody is left behind."""
    try:
        said = [process.communicate(timeout=TIMEOUT)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, text) for process, text in zip(processes, said, strict=True)]


def finished(size: int, module: str, *arguments: str | Path) -> list[str]:
    """Run a module on so many ranks, all of which must end well; return what they said."""
    ends = ended(started(size, module, *arguments))
    assert all(code == 0 for code, _ in ends), "\n".join(text for _, text in ends)
    return [text for _, text in ends]
