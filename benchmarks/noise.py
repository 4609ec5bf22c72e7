"""Noise at size: seconds for 100 million normals, and the share of a private step.

Normals of dither on one and two threads, alone and added to a sum, against ``torch.randn``, in
turn; then steps of a loop of one's own on the models of the clipping benchmark and on a transformer
of 30 million parameters, on two threads, and how much of them the noise takes.
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

COUNT, TURNS, STEPS, WARM, THREADS = 2**22, 15, 8, 2, 2


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

    def add(threads: int) -> None:
        torch.set_num_threads(threads)
        release.add_noise([values], 1.0, 256, Source().stream("noise", 0))

    return {
        "normals, one thread": lambda: draw(1),
        "normals, two threads": lambda: draw(2),
        "added to a sum, one thread": lambda: add(1),
        "added to a sum, two threads": lambda: add(2),
        "torch.randn, float32": lambda: torch.randn(COUNT),
        "torch.randn, float64": lambda: torch.randn(COUNT, dtype=torch.float64),
    }


def seconds_of_100_million() -> dict[str, float]:
    """Time all in turn."""
    made = generators()
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in track(range(TURNS), "normals", transient=True):
        for name, call in made.items():
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e8 / COUNT)
    torch.set_num_threads(THREADS)
    return {name: round(median(values), 3) for name, values in times.items()}


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
        start = time.perf_counter()
        found = right(*given)
        spent.append(time.perf_counter() - start)
        return found

    release.add_noise = timed  # type: ignore[assignment] # takes anything
    steps, start = [], time.perf_counter()
    for x, y in run.batches():
        run.backward(losses(run.model(x), y))
        run.optimizer.step()
        run.optimizer.zero_grad()
        steps.append(time.perf_counter() - start)
        start = time.perf_counter()
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
    torch.set_num_threads(THREADS)
    seconds = seconds_of_100_million()
    shares = {name: share(build) for name, build in track(MODELS.items(), "steps", transient=True)}
    results = {
        "setting": f"{COUNT:,} normals in turn, median of {TURNS}; steps on {THREADS} threads, "
        f"median of {STEPS}",
        "seconds for 100 million": seconds,
        "steps": shares,
    }
    record("noise", "python -m benchmarks.noise", ("torch",), results)
    save_figure(figure(seconds, shares), RESULTS / "noise.png")
    print(json.dumps(results, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
