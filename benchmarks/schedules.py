"""Schedules and allocations over a million steps, relative to one numpy square root of as many.

Run by ``make bench``; writes benchmarks/results/schedules.json.
"""

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from benchmarks.recording import record
from dither import noise, schedules
from dither.schedules import Schedule

STEPS = 10**6
REPEATS = 9


def main() -> None:
    """Measure, print and record."""
    t = np.arange(1.0, STEPS + 1)
    eta = schedules.InverseSqrt().stepsizes(STEPS)
    values: list[Schedule] = [
        schedules.Constant(0.1),
        schedules.Linear(2.0, 0.01),
        schedules.Cosine(2.0, 0.01),
        schedules.Exponential(1.0, 0.99999),
        schedules.Step(1.0, 0.5, 100_000),
        schedules.Polynomial(20.0, 1.0, 0.7),
        schedules.InverseSqrt(),
        schedules.SqrtToZero(),
        schedules.Warmup(schedules.InverseSqrt(), 1000),
        schedules.Table(eta),
    ]
    calls: dict[str, Callable[[], object]] = {"numpy.sqrt": lambda: np.sqrt(t)}
    for value in values:
        calls[repr(value)] = lambda value=value: value.stepsizes(STEPS)  # type: ignore[misc]
    for allocation in (
        noise.Uniform(),
        noise.Matched(),
        noise.Power(0.3),
        noise.GrowthBound(),
        noise.Custom(1.0 / eta),
    ):
        calls[repr(allocation)] = lambda a=allocation: a.alphas(eta)  # type: ignore[misc]
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(REPEATS):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    base = median(times["numpy.sqrt"])
    rows = {
        name: {"ms": round(1e3 * median(runs), 2), "ratio": round(median(runs) / base, 1)}
        for name, runs in times.items()
    }
    for name, row in rows.items():
        print(f"{name:60s} {row['ms']:8.2f} ms {row['ratio']:7.1f} x numpy.sqrt")
    record("schedules", "make bench", ("numpy",), {"steps": STEPS, "repeats": REPEATS, **rows})


if __name__ == "__main__":
    main()
