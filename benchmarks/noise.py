"""Noise at size: seconds for 100 million normals, and the share of a private step.

Normals of dither, alone and added to a sum, against ``torch.randn``, in turn; then steps of a loop
of one's own on the models of the clipping benchmark and on a transformer of 30 million parameters,
and how much of them the noise takes. CPU time on one thread; two threads are timed by the clock,
which means something on a quiet machine only.
Run by ``make bench`` (or ``python -m benchmarks.noise``); writes a record and a picture.
"""

import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.progress import track

import dither
from benchmarks.clipping_models import CASES, Case, Transformer, losses
from benchmarks.recording import RESULTS, record
from dither import Plan, release
from dither.normals import for_each_block
from dither.randomness import Source
from dither.reports import save_figure

COUNT, TURNS, STEPS, WARM = 2**22, 15, 5, 2


def large() -> Case:
    """Eight blocks of width 512, on 16 sequences of 64 tokens."""
    ids = torch.randint(5000, (16, 64))
    return Case(Transformer(5000, 512, 8), ids, ids)


MODELS: dict[str, Callable[[], Case]] = {**CASES, "transformer, 30 M": large}


def draw(threads: int) -> None:
    """Draw normals, and leave them alone."""
    for_each_block(lambda *_: None, COUNT, Source().stream("noise", 0), threads)


def generators() -> dict[str, Callable[[], Any]]:
    """Return what draws ``COUNT`` normals."""
    values = torch.zeros(COUNT)
    return {
        "normals": lambda: draw(1),
        "added to a sum": lambda: release.add_noise(
            [values], 1.0, 256, Source().stream("noise", 0)
        ),
        "torch.randn, float32": lambda: torch.randn(COUNT),
        "torch.randn, float64": lambda: torch.randn(COUNT, dtype=torch.float64),
    }


def seconds_of_100_million() -> dict[str, float]:
    """Time all in turn."""
    made = generators()
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in track(range(TURNS), "normals", transient=True):
        for name, call in made.items():
            start = time.process_time()
            call()
            times[name].append((time.process_time() - start) * 1e8 / COUNT)
    return {name: round(median(values), 3) for name, values in times.items()}


def gain_of_two_threads() -> float:
    """Return the shortest time of one thread, relative to the shortest of two."""
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(TURNS):
        for threads, found in times.items():
            start = time.perf_counter()
            draw(threads)
            found.append(time.perf_counter() - start)
    return round(min(times[1]) / min(times[2]), 2)


def share(build: Callable[[], Case]) -> dict[str, Any]:
    """Return how much of a step is spent on drawing and adding the noise."""
    torch.manual_seed(0)
    setting = build()
    model, size = setting.model, len(setting.inputs)
    plan = Plan.from_noise_multipliers(
        [1.0] * (STEPS + WARM), delta=1e-5, dataset_size=size, batch_size=size
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = dither.make_private(model, optimizer, plan, (setting.inputs, setting.targets))
    right, spent = release.add_noise, [0.0]

    def timed(*given: Any) -> Any:
        start = time.process_time()
        found = right(*given)
        spent.append(time.process_time() - start)
        return found

    release.add_noise = timed  # type: ignore[assignment] # takes anything
    steps, start = [], time.process_time()
    for x, y in run.batches():
        run.backward(losses(run.model(x), y))
        run.optimizer.step()
        run.optimizer.zero_grad()
        steps.append(time.process_time() - start)
        start = time.process_time()
    release.add_noise = right
    noise, step = median(spent[WARM + 1 :]), median(steps[WARM:])
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "milliseconds a step": round(1000.0 * step, 2),
        "of which noise": round(1000.0 * noise, 2),
        "share": round(noise / step, 3),
    }


def figure(seconds: dict[str, float], shares: dict[str, Any]) -> Figure:
    """Draw the seconds and the shares."""
    drawn = Figure(figsize=(10.0, 3.8), layout="constrained")
    left, right = drawn.subplots(1, 2)
    for axes, names, values, form in (
        (left, list(seconds), list(seconds.values()), "%.2f"),
        (right, list(shares), [100.0 * each["share"] for each in shares.values()], "%.1f"),
    ):
        axes.bar_label(axes.barh(names, values, color="#0072b2"), fmt=form)
        axes.invert_yaxis()
    left.set(title="seconds for 100 million normals; lower is better")
    right.set(title="noise, % of a step")
    return drawn


def main() -> None:
    """Measure everything, print a summary, and write the record and the picture."""
    torch.set_num_threads(1)
    seconds = seconds_of_100_million()
    shares = {name: share(build) for name, build in track(MODELS.items(), "steps", transient=True)}
    results = {
        "setting": f"CPU time on one thread: {COUNT:,} normals in turn, median of {TURNS}; steps, "
        f"median of {STEPS}",
        "seconds for 100 million": seconds,
        "times faster on two threads": gain_of_two_threads(),
        "steps": shares,
    }
    record("noise", "python -m benchmarks.noise", ("torch",), results)
    save_figure(figure(seconds, shares), RESULTS / "noise.png")
    print(json.dumps(results, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
