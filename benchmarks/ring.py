"""What correlated noise costs a training step: the ring of 16 bands, in time and memory.

Steps of two loops of one's own whose plans differ in ``correlation`` only, taken in turn on one
thread, on the models of the clipping benchmark; memory of the process after as many steps as fill
the ring, in a process each. Run by ``make bench`` (or ``python -m benchmarks.ring``).
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from importlib import import_module
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.progress import track

import dither
from benchmarks.clipping_models import CASES, case, losses
from benchmarks.clipping_workers import kibibytes
from benchmarks.recording import record
from dither import Plan
from dither.randomness import Source
from dither.release import Ring, add_noise

BANDS, STEPS = 16, 40
NOISES = {"independent": None, "16 bands": BANDS}


def coefficients() -> tuple[float, ...]:
    """Return those of (1 − x)^(−1/2)."""
    k = np.arange(1, BANDS)
    return (1.0, *np.cumprod((2.0 * k - 1.0) / (2.0 * k)).tolist())


def steps_of(name: str, bands: int | None) -> Callable[[], None]:
    """Return a step of a loop with that noise, on sixteen times the records of a batch."""
    setting = case(name)
    size, model = len(setting.inputs), deepcopy(setting.model)
    data = tuple(
        each.repeat(BANDS, *[1] * (each.dim() - 1)) for each in (setting.inputs, setting.targets)
    )
    plan = Plan.from_noise_multipliers(
        [1.0] * (STEPS + BANDS),
        delta=1e-5,
        dataset_size=BANDS * size,
        batch_size=size,
        accountant="gdp",
        correlation=None if bands is None else coefficients(),
    )
    run = dither.make_private(model, torch.optim.SGD(model.parameters(), lr=0.01), plan, data)
    batches = run.batches()

    def step() -> None:
        x, y = next(batches)
        run.backward(losses(run.model(x), y))
        run.optimizer.step()
        run.optimizer.zero_grad()

    return step


def step_times(name: str) -> dict[str, float]:
    """Return the milliseconds of a step, after the ring was filled."""
    steps = {noise: steps_of(name, bands) for noise, bands in NOISES.items()}
    times: dict[str, list[float]] = {noise: [] for noise in steps}
    for turn in range(STEPS + BANDS):
        for noise, step in steps.items():
            start = time.perf_counter()
            step()
            if turn >= BANDS:
                times[noise].append(1000.0 * (time.perf_counter() - start))
    return {noise: median(values) for noise, values in times.items()}


def noise_times(parameters: int) -> dict[str, float]:
    """Return the milliseconds that drawing and adding the noise of a step takes."""
    ring, source = Ring(coefficients(), np.ones(STEPS + BANDS)), Source()
    values, layout = torch.zeros(parameters), [("weight", parameters)]
    times: dict[str, list[float]] = {noise: [] for noise in NOISES}
    for turn in range(STEPS + BANDS):
        for noise in NOISES:
            start = time.perf_counter()
            if noise != "independent":
                ring.begin_step(turn, layout)
            stream = source.stream("noise", turn)
            add_noise([values], 1.0, 1, stream, None if noise == "independent" else ring)
            if turn >= BANDS:
                times[noise].append(1000.0 * (time.perf_counter() - start))
    return {noise: median(values) for noise, values in times.items()}


def memory(name: str) -> dict[str, int]:
    """Return the MiB of a process once the ring is full."""
    found = {}
    for noise in NOISES:
        command = [sys.executable, "-m", "benchmarks.ring", "memory", name, noise]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found[noise] = round(int(output.splitlines()[-1]) / 1024)
    return found


def cost(name: str) -> dict[str, Any]:
    """Return what 16 bands cost on one model."""
    parameters = sum(each.numel() for each in case(name).model.parameters())
    steps, noises = step_times(name), noise_times(parameters)
    ring = noises["16 bands"] - noises["independent"]
    return {
        "parameters": parameters,
        "milliseconds a step": {noise: round(value, 2) for noise, value in steps.items()},
        "milliseconds of the ring": round(ring, 3),
        "times a step with independent noise": round(steps["16 bands"] / steps["independent"], 3),
        "by the ring alone": round(1.0 + ring / steps["independent"], 3),
        "MiB of the process": memory(name),
        "MiB of the ring": round(8 * (BANDS - 1) * parameters / 2**20, 1),
    }


def main() -> None:
    """Measure everything, print and record."""
    torch.set_num_threads(1)
    results = {name: cost(name) for name in track(list(CASES), "ring", transient=True)}
    record("ring", "python -m benchmarks.ring", ("torch",), results)
    print(json.dumps(results, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    if sys.argv[1:2] == ["memory"]:
        torch.set_num_threads(1)
        import_module("scipy.signal")  # which a plan of correlated noise imports: 45 MiB
        one = steps_of(sys.argv[2], NOISES[sys.argv[3]])
        for _ in range(BANDS + 1):
            one()
        print(kibibytes("VmRSS"))
    else:
        main()
