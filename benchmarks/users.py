"""A step that protects users against one that protects records, on the same rows.

The rows are the same in both: one row per record, or one to twenty rows per user. All in one run,
alternating, medians of ratios of the CPU time on one thread, which other work on the machine hardly
changes; peak memory in a process each. Run by ``make bench`` (or ``python -m benchmarks.users``);
writes a record.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from benchmarks.clipping_models import case, losses
from benchmarks.clipping_workers import kibibytes
from benchmarks.recording import record
from dither.clipping import ClippedSum
from dither.clipping.clip import Clip
from dither.clipping.engine import clip_recording
from dither.clipping.recording import CheckCache, ModelHooks, RecordedBatch

REPEATS, CLIP_NORM = 9, 1.0
ROWS = {"MLP": 1050, "MNIST CNN": 1050, "linear": 1050, "CIFAR CNN": 210, "transformer": 210}
Step = Callable[[], ClippedSum]


def counts(rows: int) -> dict[str, Tensor]:
    """Return how many rows each record or user has, ways to divide the same rows."""
    return {
        "records": torch.ones(rows, dtype=torch.int64),
        **{f"users of {k}": torch.full((rows // k,), k) for k in (5, 20)},
        "users of 1 to 20": torch.arange(1, 21).repeat_interleave(rows // 210),
    }


def steps_of(name: str) -> dict[str, Step]:
    """Return a step for every way to divide the rows of a model's batch."""
    model, rows = case(name).model, ROWS[name]
    x, y = _rows(case(name).inputs, rows), _rows(case(name).targets, rows)
    return {
        label: _step(model, x[: int(each.sum())], y[: int(each.sum())], each)
        for label, each in counts(rows).items()
    }


def _step(model: torch.nn.Module, x: Tensor, y: Tensor, rows: Tensor) -> Step:
    cache = CheckCache()

    def step() -> ClippedSum:
        hooks = ModelHooks(model)
        recording = RecordedBatch(model, len(x), cache)
        hooks.begin(recording)
        own = losses(model(x), y)
        hooks.remove()
        return clip_recording(recording, own, Clip(CLIP_NORM), rows)

    return step


def _rows(values: Tensor, rows: int) -> Tensor:
    """Return so many rows like these: new random numbers, or the same integers again."""
    if values.is_floating_point():
        return torch.randn(rows, *values.shape[1:])
    return values.repeat(-(-rows // len(values)), *(1,) * (values.dim() - 1))[:rows]


def speed(name: str) -> dict[str, Any]:
    """Time a step of every kind in turn, and the turns several times.

    Each turn begins with a step that is not timed, as in the clipping benchmark.
    """
    steps = steps_of(name)
    times: dict[str, list[float]] = {label: [] for label in steps}
    for _ in range(REPEATS):
        for label, step in steps.items():
            step()
            start = time.process_time()
            step()
            times[label].append(1e6 * (time.process_time() - start) / ROWS[name])
    ratios = {
        label: [each / of for each, of in zip(own, times["records"], strict=True)]
        for label, own in times.items()
    }
    return {
        "rows": ROWS[name],
        "microseconds per row": {label: round(median(own), 1) for label, own in times.items()},
        "times records": {label: round(median(own), 2) for label, own in ratios.items()},
    }


def memory(name: str) -> dict[str, float]:
    """Return the peak memory of three steps relative to records, each in a process of its own."""
    found = {}
    for label in counts(ROWS[name]):
        command = [sys.executable, "-m", "benchmarks.users", "peak", name, label]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found[label] = json.loads(output.splitlines()[-1])
    return {label: round(peak / found["records"], 2) for label, peak in found.items()}


def print_peak(name: str, label: str) -> None:
    """Print what three steps need beyond model, data and libraries, in KiB."""
    model, step = case(name).model, steps_of(name)[label]
    few = case(name)
    _step(model, few.inputs[:4], few.targets[:4], torch.ones(4, dtype=torch.int64))()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = kibibytes("VmRSS")
    for _ in range(3):
        step()
    print(kibibytes("VmHWM") - before)


def main() -> None:
    """Measure everything, print it, and write the record."""
    names = list(ROWS)
    results = {
        "setting": "CPU time on one thread, alternating, every second step timed, median of "
        f"{REPEATS} "
        "ratios of neighbouring steps; models and data of seed 0",
        "speed": {name: speed(name) for name in track(names, "speed", transient=True)},
        "memory for the steps, times records": {
            name: memory(name) for name in track(names, "memory", transient=True)
        },
    }
    record("users", "python -m benchmarks.users", ("torch",), results)
    print(json.dumps(results, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["peak"]:
        print_peak(*sys.argv[2:])
    else:
        main()
