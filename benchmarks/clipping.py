"""One step's clipped sum: dither against plain PyTorch and three modes of Opacus.

All in one run on two threads, alternating, medians, on five models; peak memory in a process each;
the cost of a large vocabulary; and the time per record from batch 64 to 4,096. Run by
``make bench`` (or ``python -m benchmarks.clipping``); writes a record and a picture.
"""

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.progress import track
from torch import nn

from benchmarks.clipping_models import CASES, Case, bag, case, losses
from benchmarks.recording import RESULTS, record
from dither.clipping import clipped_sum
from dither.reports import save_figure

REPEATS, THREADS, CLIP_NORM = 15, 2, 1.0
Step = Callable[[], object]


def plain(case: Case) -> Step:
    """A non-private step: forward, mean loss, backward."""
    model = deepcopy(case.model)

    def step() -> None:
        model.zero_grad()
        losses(model(case.inputs), case.targets).mean().backward()

    return step


def dither(case: Case) -> Step:
    """The clipped sum by the fast engine."""
    model = deepcopy(case.model)
    return lambda: clipped_sum(model, losses, case.inputs, case.targets, clip_norm=CLIP_NORM)


def opacus_per_sample(case: Case, functorch: bool) -> Step:
    """Opacus: per-record gradients, by its layer rules or by functorch, clipped and added up."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model = GradSampleModule(
        deepcopy(case.model), loss_reduction="sum", force_functorch=functorch, strict=False
    )
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=len(case.inputs),
        loss_reduction="sum",
    )

    def step() -> None:
        optimizer.zero_grad()
        losses(model(case.inputs), case.targets).sum().backward()
        optimizer.clip_and_accumulate()

    return step


def opacus_ghost(case: Case) -> Step:
    """Opacus: norms by ghost clipping, then a second backward pass."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    model = GradSampleModuleFastGradientClipping(
        deepcopy(case.model), loss_reduction="sum", max_grad_norm=CLIP_NORM
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=len(case.inputs),
        loss_reduction="sum",
    )
    criterion = DPLossFastGradientClipping(
        model, optimizer, nn.CrossEntropyLoss(reduction="sum"), loss_reduction="sum"
    )

    def step() -> None:
        optimizer.zero_grad()
        outputs, targets = model(case.inputs), case.targets
        if outputs.dim() == 2:
            criterion(outputs, targets).backward()
        else:
            criterion(outputs.flatten(0, 1), targets.flatten(), shape=outputs.shape).backward()

    return step


METHODS: dict[str, Callable[[Case], Step]] = {
    "plain": plain,
    "dither": dither,
    "Opacus hooks": lambda case: opacus_per_sample(case, False),
    "Opacus functorch": lambda case: opacus_per_sample(case, True),
    "Opacus ghost": opacus_ghost,
}


def medians(steps: dict[str, Step], repeats: int = REPEATS) -> dict[str, float]:
    """Time every step in turn, and the turns several times; milliseconds.

    Each turn begins with a step that is not timed: the method before has left the caches and the
    allocator in another state than training with one method would.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            step()
            start = time.perf_counter()
            step()
            times[name].append(1000.0 * (time.perf_counter() - start))
    return {name: median(values) for name, values in times.items()}


def speed(name: str) -> dict[str, Any]:
    """Compare all methods on one model."""
    setting = case(name)
    times = medians({method: build(setting) for method, build in METHODS.items()})
    best = min(value for method, value in times.items() if method.startswith("Opacus"))
    return {
        "milliseconds": {method: round(value, 3) for method, value in times.items()},
        "times plain": {
            method: round(value / times["plain"], 2) for method, value in times.items()
        },
        "times faster than Opacus' best": round(best / times["dither"], 2),
    }


def memory(name: str) -> dict[str, Any]:
    """Return the peak memory of three steps, each method in a process of its own."""
    found = {}
    for method in METHODS:
        command = [sys.executable, "-m", "benchmarks.clipping", "peak", name, method]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found[method] = json.loads(output.splitlines()[-1])
    return {
        "MiB for the steps": {method: peak["steps"] for method, peak in found.items()},
        "MiB of the process": {method: peak["process"] for method, peak in found.items()},
        "dither / plain, for the steps": round(
            found["dither"]["steps"] / found["plain"]["steps"], 2
        ),
        "dither / plain, of the process": round(
            found["dither"]["process"] / found["plain"]["process"], 2
        ),
    }


def print_peak(name: str, method: str) -> None:
    """Print what three steps need beyond model, data and libraries, and the peak of the process.

    A step on four records goes before, so that all libraries are loaded.
    """
    full = case(name)
    METHODS[method](Case(full.model, full.inputs[:4], full.targets[:4]))()
    step = METHODS[method](full)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = kibibytes("VmRSS")
    for _ in range(3):
        step()
    peak = kibibytes("VmHWM")
    print(json.dumps({"steps": round((peak - before) / 1024), "process": round(peak / 1024)}))


def kibibytes(field: str) -> int:
    """Return a field of /proc/self/status, such as the memory of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise ValueError(f"field must be one of /proc/self/status, got {field!r}")


def vocabulary() -> dict[str, Any]:
    """Time an embedding of 1,000 and of 50,000 tokens, and the making of its weight's gradient."""
    cases = {size: bag(size) for size in (1_000, 50_000)}
    steps = {f"dither, {size:,} tokens": dither(setting) for size, setting in cases.items()}
    rows = torch.randn(256 * 64, 128)
    for size, setting in cases.items():
        ids = setting.inputs.flatten()
        steps[f"weight gradient, {size:,} tokens"] = lambda size=size, ids=ids: (  # type: ignore[misc]
            torch.zeros(size, 128).index_add_(0, ids, rows)
        )
    times = medians(steps)
    return {
        "milliseconds": {name: round(value, 2) for name, value in times.items()},
        "more for 50,000 tokens": round(
            times["dither, 50,000 tokens"] - times["dither, 1,000 tokens"], 2
        ),
        "of which weight gradient": round(
            times["weight gradient, 50,000 tokens"] - times["weight gradient, 1,000 tokens"], 2
        ),
    }


def growth() -> dict[str, Any]:
    """Time a record of the MNIST CNN from batch 64 to 4,096, in microbatches of 64 and of 256."""
    torch.manual_seed(0)
    model = case("MNIST CNN").model
    x, y = torch.randn(4096, 1, 28, 28), torch.randint(10, (4096,))
    steps: dict[str, Step] = {
        f"batch {size:,}, microbatch {piece}": lambda size=size, piece=piece: clipped_sum(  # type: ignore[misc]
            model, losses, x[:size], y[:size], clip_norm=CLIP_NORM, microbatch_size=piece
        )
        for piece in (64, 256)
        for size in (64, 256, 1024, 4096)
    }
    times = medians(steps, repeats=9)
    return {
        name: round(1000.0 * value / int(name.split()[1].strip(",").replace(",", "")), 2)
        for name, value in times.items()
    }


def draw(speeds: dict[str, dict[str, Any]]) -> Figure:
    """Draw the times relative to a plain step, on a logarithmic axis."""
    figure = Figure(figsize=(10.0, 4.2), layout="constrained")
    axes = figure.subplots()
    colours = dict(
        zip(METHODS, ("#999999", "#0072b2", "#e69f00", "#d55e00", "#cc79a7"), strict=True)
    )
    hatches = dict(zip(METHODS, ("", "", "//", "\\\\", ".."), strict=True))
    for offset, method in enumerate(METHODS):
        places = [index + 0.16 * (offset - 2) for index in range(len(speeds))]
        heights = [result["times plain"][method] for result in speeds.values()]
        bars = axes.bar(
            places, heights, 0.15, label=method, color=colours[method], hatch=hatches[method],
            edgecolor="white",
        )  # fmt: skip
        if method != "plain":
            axes.bar_label(
                bars, [f"{h:.2f}" if h < 10 else f"{h:.0f}" for h in heights], fontsize=7
            )
    axes.axhline(1.5, color="black", linewidth=0.8, linestyle=":")
    axes.set(
        yscale="log",
        ylim=(0.8, 500.0),
        ylabel="time of a step / plain step",
        xticks=range(len(speeds)),
        title="Clipped sums on 2 threads, batch 256 (transformer 64); lower is better",
    )
    axes.set_xticklabels(list(speeds))
    axes.legend(ncols=5, fontsize=8)
    return figure


def main() -> None:
    """Measure everything, print a summary, and write the record and the picture."""
    torch.set_num_threads(THREADS)
    speeds = {name: speed(name) for name in track(list(CASES), "speed", transient=True)}
    memories = {name: memory(name) for name in track(list(CASES), "memory", transient=True)}
    results = {
        "setting": f"{THREADS} threads, alternating, every second step timed, median of {REPEATS}",
        "speed": speeds,
        "memory": memories,
        "vocabulary": vocabulary(),
        "growth, microseconds a record": growth(),
    }
    record("clipping", "python -m benchmarks.clipping", ("torch", "opacus"), results)
    save_figure(draw(speeds), RESULTS / "clipping.png")
    print(json.dumps(results, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=UserWarning, module="opacus")
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    if sys.argv[1:2] == ["peak"]:
        torch.set_num_threads(THREADS)
        print_peak(*sys.argv[2:])
    else:
        main()
