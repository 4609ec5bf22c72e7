"""How time and memory of a private clipped sum grow, and those of planning.

A small transformer, of which one size at a time is changed: batch, sequence, width, depth and
vocabulary; a step of dither and a plain one, alternating, medians, on two threads, a process per
size. Then the time of a plan with optimal noise and of accounting for it, over the steps; and a
step on many ranks, from the record of `benchmarks.distributed`. The exponents are slopes of least
squares through the logarithms. Run by ``make bench`` (or ``python -m benchmarks.growth``); writes a
record and a picture.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from rich.progress import track

import dither
from benchmarks.clipping_methods import METHODS
from benchmarks.clipping_models import Case, Transformer
from benchmarks.clipping_report import results
from benchmarks.clipping_workers import THREADS, kibibytes, seconds
from benchmarks.recording import RESULTS, record
from dither.accounting import epsilon
from dither.reports import save_figure

REPEATS = 7
BASE = {"batch size": 32, "sequence length": 64, "width": 128, "depth": 2, "vocabulary": 1000}
SIZES: dict[str, tuple[int, ...]] = {
    "batch size": (8, 16, 32, 64, 128, 256),
    "sequence length": (16, 32, 64, 128, 256, 512),
    "width": (32, 64, 128, 256, 512),
    "depth": (1, 2, 4, 8, 16),
    "vocabulary": (500, 1000, 4000, 16_000, 50_000),
}
STEPS = (100, 300, 1000, 3000, 10_000, 30_000)
Curves = dict[str, list[Any]]


def case(sizes: dict[str, int]) -> Case:
    """Return a transformer and a batch of these sizes."""
    torch.manual_seed(0)
    shape = sizes["batch size"], sizes["sequence length"]
    ids = torch.randint(sizes["vocabulary"], shape)
    return Case(Transformer(sizes["vocabulary"], sizes["width"], sizes["depth"]), ids, ids)


def print_step(axis: str, size: str) -> None:
    """Print what a step takes where one size is changed."""
    full = case({**BASE, axis: int(size)})
    METHODS["dither"](Case(full.model, full.inputs[:4], full.targets[:4]))()
    step, plain = METHODS["dither"](full), METHODS["plain"](full)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = kibibytes("VmRSS")
    for _ in range(3):
        step()
    peak = kibibytes("VmHWM") - before
    times: dict[str, list[float]] = {"milliseconds": [], "milliseconds, plain": []}
    for _ in range(REPEATS):
        for name, each in zip(times, (step, plain), strict=True):
            each()
            times[name].append(1000.0 * seconds(each))
    found = {name: round(median(values), 2) for name, values in times.items()}
    print(json.dumps({**found, "MiB": round(peak / 1024, 1)}))


def over_sizes(axis: str) -> Curves:
    """Return the curves over one of the sizes."""
    found = []
    for size in track(SIZES[axis], axis, transient=True):
        command = [sys.executable, "-m", "benchmarks.growth", axis, str(size)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found.append(json.loads(output.splitlines()[-1]))
    return {"values": [*SIZES[axis]], **{key: [each[key] for each in found] for key in found[0]}}


def over_steps() -> Curves:
    """Return the time of planning, and of accounting for its noise, over the steps."""
    planning, accounting = [], []
    for steps in track(STEPS, "steps", transient=True):
        plan, taken = timed(
            lambda steps=steps: dither.plan(  # type: ignore[misc]
                epsilon=1.0, delta=1e-5, dataset_size=60_000, batch_size=256, steps=steps,
                stepsizes=dither.schedules.InverseSqrt(20), noise="optimal",
            )
        )  # fmt: skip
        planning.append(taken)
        accounting.append(timed(lambda plan=plan: account(plan))[1])  # type: ignore[misc]
    return {"values": [*STEPS], "milliseconds": planning, "milliseconds, accounting": accounting}


def account(plan: dither.Plan) -> float:
    """Return ε of the plan's noise, computed anew."""
    return epsilon(plan.noise_multipliers, sample_rate=plan.sample_rate, delta=1e-5).epsilon


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return what the work returns, and its median milliseconds."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        result = work()
        times.append(1000.0 * (time.perf_counter() - start))
    return result, round(median(times), 2)


def over_ranks() -> Curves:
    """Return what a step takes on k ranks, of 256 records each."""
    steps = results("distributed")["milliseconds a step"]
    total = [round(sum(parts.values()), 2) for parts in steps.values()]
    return {"values": [int(ranks) for ranks in steps], "milliseconds": total}


def exponent(values: Sequence[float], measured: Sequence[float]) -> float:
    """Return the slope of a line through the logarithms, by least squares.

    >>> exponent([1, 2, 4], [3, 12, 48])
    2.0
    """
    slope = np.polyfit(np.log(values), np.log(np.maximum(measured, 1e-9)), 1)[0]
    return round(float(slope), 2)


def exponents(curves: Curves) -> dict[str, float]:
    """Return the exponent of each curve."""
    return {
        key: exponent(curves["values"], measured)
        for key, measured in curves.items()
        if key != "values"
    }


def draw(curves: dict[str, Curves], found: dict[str, dict[str, float]]) -> Figure:
    """Draw time above and memory below; the last panels are planning and ranks."""
    figure = Figure(figsize=(15.0, 5.4), layout="constrained")
    panels = figure.subplots(2, len(SIZES) + 1)
    for column, axis in enumerate(SIZES):
        draw_curves(panels[0, column], axis, curves[axis], found[axis],
                    {"milliseconds": "dither", "milliseconds, plain": "plain step"})  # fmt: skip
        draw_curves(panels[1, column], axis, curves[axis], found[axis], {"MiB": "dither"})
    draw_curves(panels[0, -1], "steps", curves["steps"], found["steps"],
                {"milliseconds": "plan", "milliseconds, accounting": "accounting"})  # fmt: skip
    draw_curves(panels[1, -1], "ranks", curves["ranks"], found["ranks"], {"milliseconds": "a step"})
    for panel in (*panels[0, ::5], panels[1, -1]):
        panel.set_ylabel("milliseconds")
    panels[1, 0].set_ylabel("peak memory, MiB")
    figure.suptitle("Growth of a clipped sum; slopes in the legends", fontsize=11)
    return figure


def draw_curves(
    panel: Any, axis: str, curves: Curves, found: dict[str, float], labels: dict[str, str]
) -> None:
    """Draw some curves over one axis, with their exponents."""
    styles = (("#0072b2", "o-"), ("#999999", "s--"))
    for (key, label), (colour, style) in zip(labels.items(), styles, strict=False):
        panel.plot(curves["values"], curves[key], style, color=colour, markersize=4,
                   label=f"{label}, {found[key]:.2f}")  # fmt: skip
    every = [value for key in labels for value in curves[key]]
    panel.set(xscale="log", yscale="log", xlabel=axis, ylim=(min(every) / 2.0, 5.0 * max(every)))
    values = curves["values"]
    ticks = [values[0], values[len(values) // 2], values[-1]]
    panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    panel.yaxis.set_major_formatter("{x:,.0f}")
    for scale in (panel.xaxis, panel.yaxis):
        scale.set_minor_formatter(NullFormatter())
    panel.grid(visible=True, color="#e5e5e5", linewidth=0.6)
    panel.legend(fontsize=8, loc="upper left")


def main() -> None:
    """Measure everything, print it, and write the record and the picture."""
    torch.set_num_threads(THREADS)
    curves = {axis: over_sizes(axis) for axis in SIZES}
    curves |= {"steps": over_steps(), "ranks": over_ranks()}
    found = {axis: exponents(each) for axis, each in curves.items()}
    measured = {
        "setting": f"{THREADS} threads, alternating, every second step timed, median of {REPEATS}; "
        "what is not changed: " + ", ".join(f"{name} {size:,}" for name, size in BASE.items()),
        "exponents": found,
        "curves": curves,
    }
    record("growth", "python -m benchmarks.growth", ("torch",), measured)
    save_figure(draw(curves, found), RESULTS / "growth.png")
    print(json.dumps(measured, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        torch.set_num_threads(THREADS)
        print_step(*sys.argv[1:])
    else:
        main()
