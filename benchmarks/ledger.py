"""What the ledger costs: steps with and without one, alternating in one run.

The MNIST CNN of the clipping benchmark, 256 records per step, on two threads. Every step's cost is
on the disk before its release, committed while the step is computed. Run by ``make bench`` (or
``python -m benchmarks.ledger``), with MNIST in ``$DITHER_DATA``; writes a record.
"""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from rich.progress import track

import dither
from benchmarks.clipping_models import losses, mnist_cnn
from benchmarks.recording import record
from dither import Plan
from dither.data import load

ROUNDS, STEPS, BATCH, THREADS = 15, 20, 256, 2


def steps(ledger: Path | None) -> Callable[[], float]:
    """Return a function that takes some steps, and returns the seconds that one of them took."""
    train = load("mnist").train
    model = mnist_cnn()
    plan = Plan.from_noise_multipliers(
        [1.0] * STEPS * (ROUNDS + 3), delta=1e-5, dataset_size=len(train), batch_size=BATCH
    )
    data = train.inputs, train.targets
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = dither.make_private(model, optimizer, plan, data, ledger=ledger)
    batches = run.batches()

    def some() -> float:
        start = time.perf_counter()
        for _ in range(STEPS):
            x, y = next(batches)
            run.backward(losses(run.model(x), y))
            run.optimizer.step()
            run.optimizer.zero_grad()
        return (time.perf_counter() - start) / STEPS

    return some


def main() -> None:
    """Measure, print, write the record."""
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        ready = {"without": steps(None), "with": steps(Path(directory) / "ledger.sqlite")}
        times: dict[str, list[float]] = {name: [] for name in ready}
        for turn in track(range(ROUNDS + 2), "rounds", transient=True):
            for name, some in ready.items():
                seconds = some()
                if turn >= 2:
                    times[name].append(seconds)
    ratios = [one / two for one, two in zip(times["with"], times["without"], strict=True)]
    found = {
        "setting": f"{THREADS} threads, MNIST CNN, {BATCH} records per step, {ROUNDS} alternating "
        f"rounds of {STEPS} steps, medians",
        "milliseconds a step": {k: round(1000.0 * median(v), 2) for k, v in times.items()},
        "with a ledger relative to without": round(median(ratios), 3),
    }
    record("ledger", "python -m benchmarks.ledger", ("torch",), found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
