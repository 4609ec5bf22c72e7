"""Two ranks on two cores against one process on one, and what a step costs on up to 1,024 ranks.

The CIFAR CNN of the clipping benchmark. One process with one thread and two ranks with one thread
each take steps of 256 records, alternating. Then the constants of a step are measured: computing a
record, sampling a record, drawing a coordinate's noise, and sending to another process on
loopback; from them follows what a step costs on k ranks, if sums go up a tree and releases down
one. Run by ``make bench`` (or ``python -m benchmarks.distributed``); writes a record.
"""

import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rich.progress import track

import dither
from benchmarks.clipping_models import cifar_cnn, losses
from benchmarks.recording import record
from dither import Plan
from dither.randomness import Source
from dither.release import add_noise
from dither.sampling import Poisson

ROUNDS, STEPS, WARM, BATCH, RECORDS = 5, 8, 2, 256, 50_000
SIZES = (2**10, 2**16, 2**20, 2**23)
"""Bytes that are sent to measure how long that takes."""


def main() -> None:
    """Measure, print, write the record."""
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in track(range(ROUNDS), "rounds", transient=True):
        for size, seconds in times.items():
            seconds.append(json.loads(launch(size, "steps"))["seconds"])
    ratios = [one / two for one, two in zip(times[1], times[2], strict=True)]
    constants = {**json.loads(launch(2, "sending")), **local_constants(median(times[1]))}
    found = {
        "setting": f"CIFAR CNN, {BATCH} records per step, one thread per process, "
        f"{ROUNDS} alternating rounds of {STEPS} steps, medians",
        "seconds a step": {f"{size} ranks": round(median(v), 4) for size, v in times.items()},
        "throughput of two ranks relative to one process": round(median(ratios), 3),
        "constants": {name: float(f"{value:.4g}") for name, value in constants.items()},
        "milliseconds a step": {str(2**k): predict_step(2**k, constants) for k in range(11)},
    }
    record("distributed", "python -m benchmarks.distributed", ("torch",), found)
    print(json.dumps(found, indent=2))


def predict_step(size: int, constants: dict[str, float]) -> dict[str, float]:
    """Return the milliseconds of a step of 256 records per rank, by what they are spent on."""
    rounds = math.ceil(math.log2(size))
    bytes_up, bytes_down = 8.0 * constants["parameters"], 4.0 * constants["parameters"]
    a, b = constants["seconds a message"], constants["seconds a byte"]
    parts = {
        "computing": BATCH * constants["seconds a record"],
        "sampling": RECORDS * constants["seconds a coin"],
        "noise": constants["parameters"] * constants["seconds a coordinate of noise"],
        "sending": rounds * (3.0 * a + (bytes_up + bytes_down) * b) if size > 1 else 0.0,
    }
    return {name: round(1000.0 * seconds, 2) for name, seconds in parts.items()}


def local_constants(step: float) -> dict[str, float]:
    """Return what a rank does by itself: seconds for one of each."""
    parameters = sum(p.numel() for p in cifar_cnn().parameters())
    stream = Source(seed=0).stream("benchmark", 0)
    inclusion = seconds_of(lambda: Poisson(BATCH / RECORDS).draw(10**6, stream)) / 10**6
    sums = [torch.zeros(10**6)]
    noise = seconds_of(lambda: add_noise(sums, 1.0, 1, stream)) / 10**6
    own = RECORDS * inclusion + parameters * noise
    return {
        "parameters": float(parameters),
        "seconds a record": (step - own) / BATCH,
        "seconds a coin": inclusion,
        "seconds a coordinate of noise": noise,
    }


def seconds_of(work: Callable[[], object]) -> float:
    """Return the median seconds of some calls."""
    seconds = []
    for _ in range(9):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def launch(size: int, what: str) -> str:
    """Run this file on so many ranks, and return what the first prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.distributed", what],
            env={**shared, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    said = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"a rank of {what} has failed")
    return said[0]


def steps() -> dict[str, float]:
    """Return the seconds of a step, on all ranks together."""
    plan = Plan.from_noise_multipliers(
        [1.0] * (WARM + STEPS), delta=1e-5, dataset_size=4096, batch_size=BATCH
    )
    torch.manual_seed(0)
    data = torch.randn(4096, 3, 32, 32), torch.randint(10, (4096,))
    model = cifar_cnn()
    run = dither.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, data)
    start = 0.0
    for x, y in run.batches():
        run.backward(losses(run.model(x), y))
        run.optimizer.step()
        run.optimizer.zero_grad()
        if run.step == WARM:
            start = time.perf_counter()
    return {"seconds": (time.perf_counter() - start) / STEPS}


def sending() -> dict[str, float]:
    """Return what a message costs, and each of its bytes: a line through the medians."""
    seconds = []
    for size in SIZES:
        sent = torch.zeros(size, dtype=torch.uint8)

        def send(sent: torch.Tensor = sent) -> None:
            dist.broadcast(sent, src=0)
            dist.barrier()

        seconds.append(seconds_of(send) - seconds_of(dist.barrier))
    slope, start = np.polyfit(SIZES, seconds, 1, w=1.0 / np.asarray(SIZES) ** 0.5)
    return {"seconds a message": max(float(start), 0.0), "seconds a byte": float(slope)}


def rank(what: str) -> None:
    """Be one of the ranks."""
    torch.set_num_threads(1)
    if os.environ["WORLD_SIZE"] != "1":
        dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    found: dict[str, Any] = {"steps": steps, "sending": sending}[what]()
    if os.environ["RANK"] == "0":
        print(json.dumps(found))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    rank(sys.argv[1]) if len(sys.argv) > 1 else main()
