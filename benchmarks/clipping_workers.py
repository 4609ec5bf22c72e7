"""Times the methods of the clipping benchmarks in a process each, in turn, and their peak memory.

A process holds one model and one method, so that neither memory, patches nor crashes of a method
touch the others. It takes a step when it is asked to: the steps of all methods alternate. What a
peer raises is its result, in one line.
"""

import json
import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.clipping_methods import METHODS, Step, Sums
from benchmarks.clipping_models import Case

THREADS, FIRST_STEPS = 2, 3
SLOW = 20.0
"""A peer whose first step takes more seconds than this is timed once."""
PEER_SECONDS = 3.0
"""About how long a peer is timed on one model."""
SLEEPING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
"""Threads of a process that waits for its turn take nothing from the others."""


class Worker:
    """A process that takes steps of one method on one model, until it is closed."""

    def __init__(self, module: str, name: str, method: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.clipping_workers", module, name, method],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | SLEEPING,
        )

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def ask(self, *request: str) -> dict[str, Any]:
        """Return what the process answers; if it has ended, how."""
        assert self._process.stdin is not None  # noqa: S101 (for the type checker)
        assert self._process.stdout is not None  # noqa: S101
        if self._process.poll() is None:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            if line := self._process.stdout.readline():
                answer: dict[str, Any] = json.loads(line)
                return answer
        return {"error": f"the process ended with code {self._process.wait()}"}


def compare(module: str, name: str, repeats: int, methods: Iterable[str]) -> dict[str, Any]:
    """Return times, memory and the differences of the sums of these methods on one model."""
    with ExitStack() as stack, TemporaryDirectory() as folder:
        workers: dict[str, Worker] = {}
        started: dict[str, dict[str, Any]] = {}
        for method in methods:
            workers[method] = stack.enter_context(Worker(module, name, method))
            started[method] = workers[method].ask("start")
        errors = {method: each["error"] for method, each in started.items() if "error" in each}
        running = {method: worker for method, worker in workers.items() if method not in errors}
        times = take_turns(running, started, repeats)
        differences = compare_sums(running, Path(folder))
    milliseconds = {method: 1000.0 * median(each) for method, each in times.items()}
    return {
        "speed": speed_of(milliseconds, started["dither"]["first"]),
        "memory": memory_of({method: started[method]["MiB"] for method in running}),
        "turns": {method: len(each) for method, each in times.items()},
        "difference from dither's sum": differences,
        "errors": errors,
    }


def take_turns(
    workers: dict[str, Worker], started: dict[str, dict[str, Any]], repeats: int
) -> dict[str, list[float]]:
    """Return the seconds of a step of every method, taken in turn."""
    turns, times = dict[str, int](), dict[str, list[float]]()
    for method in workers:
        first = started[method]["first"]
        is_peer = method not in ("plain", "dither")
        fitting = max(1, int(PEER_SECONDS / (2.0 * first)))
        turns[method] = min(repeats, fitting) if is_peer else repeats
        times[method] = [first] if is_peer and first > SLOW else []
    for turn in range(repeats):
        for method, worker in workers.items():
            if turn < turns[method] and started[method]["first"] <= SLOW:
                times[method].append(worker.ask("step")["seconds"])
    return times


def compare_sums(workers: dict[str, Worker], folder: Path) -> dict[str, float | str]:
    """Return how far each peer's clipped sum is from dither's, without dropout, relative to it."""
    truth = sums_of(workers["dither"], folder / "dither.pt")
    size = sum(float(each.double().square().sum()) for each in truth.values()) ** 0.5
    found: dict[str, float | str] = {}
    for number, (method, worker) in enumerate(workers.items()):
        if method in ("plain", "dither"):
            continue
        own = sums_of(worker, folder / f"{number}.pt")
        if {*own} != {*truth}:
            found[method] = f"has sums for {len(own)} of {len(truth)} parameters"
            continue
        squared = sum(
            float((own[key].double() - each.double()).square().sum()) for key, each in truth.items()
        )
        found[method] = float(f"{squared**0.5 / size:.2g}")
    return found


def sums_of(worker: Worker, path: Path) -> Sums:
    """Return the clipped sum of a method."""
    worker.ask("sums", str(path))
    sums: Sums = torch.load(path) if path.exists() else {}
    return sums


def speed_of(milliseconds: dict[str, float], first: float) -> dict[str, Any]:
    """Return times relative to a plain step."""
    of_plain = milliseconds["plain"]
    peers = [each for method, each in milliseconds.items() if method not in ("plain", "dither")]
    return {
        "milliseconds": {method: round(each, 3) for method, each in milliseconds.items()},
        "times plain": {m: round(each / of_plain, 2) for m, each in milliseconds.items()},
        "first step, times plain": round(1000.0 * first / of_plain, 2),
        "times faster than the best peer": (
            round(min(peers) / milliseconds["dither"], 2) if peers else None
        ),
    }


def memory_of(peaks: dict[str, dict[str, int]]) -> dict[str, Any]:
    """Return peak memory, and dither's relative to a plain step's and to ghost clipping's."""
    steps = {method: peak["steps"] for method, peak in peaks.items()}
    relative = {
        f"dither / {other}, for the steps": round(steps["dither"] / max(1, steps[other]), 2)
        for other in ("plain", "Opacus ghost")
        if other in steps
    }
    return {
        "MiB for the steps": steps,
        "MiB of the process": {method: peak["process"] for method, peak in peaks.items()},
        **relative,
    }


class Server:
    """What a worker does: steps of one method."""

    def __init__(self, module: str, name: str, method: str) -> None:
        self._case, self._name = import_module(module).case, name
        self._build = METHODS[method]
        self._is_peer = method not in ("plain", "dither")
        self._step: Step = dict

    def start(self) -> dict[str, Any]:
        """Make the step; return its first time, and what its steps need beyond model and data.

        A step on four records goes before, so that all libraries are loaded.
        """
        full: Case = self._case(self._name)
        self._build(Case(full.model, full.inputs[:4], full.targets[:4]))()
        self._step = self._build(full)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = kibibytes("VmRSS")
        firsts = [seconds(self._step)]
        for _ in range(2):
            if firsts[0] < PEER_SECONDS:
                self._step()
        peak = kibibytes("VmHWM")
        if not self._is_peer:
            firsts += [seconds(self._build(full)) for _ in range(FIRST_STEPS - 1)]
        mebibytes = {"steps": round((peak - before) / 1024), "process": round(peak / 1024)}
        return {"first": median(firsts), "MiB": mebibytes}

    def step(self) -> dict[str, Any]:
        """Take a step that is not timed, since others were at work before, and one that is."""
        self._step()
        return {"seconds": seconds(self._step)}

    def sums(self, path: str) -> dict[str, Any]:
        """Write the clipped sum of the model without dropout."""
        sums = self._build(self._case(self._name, dropout=False))()
        torch.save({name: each.detach().clone() for name, each in sums.items()}, path)
        return {}

    def answer(self, asked: str, *arguments: str) -> dict[str, Any]:
        """Do what is asked, or return why it cannot be done."""
        try:
            found: dict[str, Any] = getattr(self, asked)(*arguments)
        except Exception as error:
            if not self._is_peer:
                raise
            text = " ".join(str(error).split())
            return {"error": f"{type(error).__name__}: {text}"[:200]}
        return found


def serve(requests: Iterable[str], *names: str) -> None:
    """Answer until the input ends."""
    server = Server(*names)
    for line in requests:
        print(json.dumps(server.answer(*json.loads(line))), flush=True)


def seconds(step: Callable[[], object]) -> float:
    """Return how long a step takes."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def kibibytes(field: str) -> int:
    """Return a field of /proc/self/status, such as the memory of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise ValueError(f"field must be one of /proc/self/status, got {field!r}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(THREADS)
    serve(sys.stdin, *sys.argv[1:])
