"""How long plans take: 40 everyday settings, the ``plan`` command, and the page of plans.

Every setting is planned with uniform, matched, optimal and correlated noise; the time is that of
the processor, on one thread. The command and the page run in processes of their own, so that their
times include imports; the page is exact when all parts of all four plans are. Run by ``make
bench``.
"""

import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import dither
from benchmarks.recording import record
from dither.explorer.settings import DEFAULTS
from dither.explorer.worker import PARTS, Worker
from dither.planning.planner import NOISES
from dither.schedules import Cosine, InverseSqrt, Linear, Schedule


class Setting(NamedTuple):
    """A run to plan for; δ is 1/(10·n)."""

    dataset_size: int
    batch_size: int
    steps: int
    epsilon: float
    stepsizes: Schedule

    def plan(self, noise: str) -> object:
        """Return the plan with this noise."""
        return dither.plan(**self._asdict(), delta=0.1 / self.dataset_size, noise=noise)


SETTINGS = (
    Setting(1_000, 100, 100, 1.0, InverseSqrt(20.0)),
    Setting(1_000, 50, 1_000, 8.0, Cosine(1.0, 0.01)),
    Setting(5_000, 250, 400, 3.0, Linear(1.0, 0.01)),
    Setting(10_000, 200, 1_000, 0.3, InverseSqrt(20.0)),
    Setting(20_000, 512, 2_000, 1.0, Cosine(1.0, 0.01)),
    Setting(60_000, 256, 5_000, 1.0, InverseSqrt(20.0)),
    Setting(60_000, 1_024, 1_200, 3.0, Linear(1.0, 0.01)),
    Setting(100_000, 1_000, 2_000, 8.0, InverseSqrt(20.0)),
    Setting(500_000, 512, 20_000, 3.0, Cosine(1.0, 0.01)),
    Setting(1_000_000, 1_000, 20_000, 0.3, InverseSqrt(20.0)),
)


def of_plans() -> dict[str, Any]:
    """Time every plan of the grid once."""
    times = {
        noise: [_processor_seconds(lambda s=each, n=noise: s.plan(n)) for each in SETTINGS]  # type: ignore[misc]
        for noise in NOISES
    }
    every = [seconds for row in times.values() for seconds in row]
    return {
        "settings": [each._asdict() | {"stepsizes": repr(each.stepsizes)} for each in SETTINGS],
        "processor seconds": {
            noise: [round(seconds, 3) for seconds in row] for noise, row in times.items()
        },
        "median": round(median(every), 3),
        "worst": round(max(every), 3),
        "by noise": {
            noise: {"median": round(median(row), 3), "worst": round(max(row), 3)}
            for noise, row in times.items()
        },
    }


def of_command() -> dict[str, float]:
    """Time ``dither plan`` with its defaults."""
    command = [sys.executable, "-m", "dither", "plan", "--json"]
    return _with_children(lambda: subprocess.run(command, check=True, capture_output=True))


def of_page() -> dict[str, float]:
    """Time all exact answers for the page's default settings, the worker's start included."""

    def ask() -> None:
        worker = Worker()
        for number, (part, noise) in enumerate((p, n) for p in _SHOWN for n in NOISES):
            request = {"settings": DEFAULTS, "noise": noise, "part": part}
            answer = worker.ask("benchmark", number, request)
            if {"errors", "problem"} & {*answer}:
                raise RuntimeError(str(answer))
        worker.close()

    return _with_children(ask)


_SHOWN = [part for part in PARTS if part != "json"]


def _processor_seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def _with_children(call: Callable[[], object]) -> dict[str, float]:
    """Return the time on the wall, and that of the processor, child processes included."""
    wall, processor = time.perf_counter(), _used()
    call()
    return {
        "wall seconds": round(time.perf_counter() - wall, 2),
        "processor seconds": round(_used() - processor, 2),
    }


def _used() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    """Measure, print and record."""
    warnings.simplefilter("ignore")
    SETTINGS[0].plan("correlated")  # what is imported late is not a plan's time
    results = {**of_plans(), "dither plan": of_command(), "page": of_page()}
    for name, value in results.items():
        if name != "settings":
            print(f"{name}: {value}")
    record("planning", "make bench", ("numpy", "scipy"), results)


if __name__ == "__main__":
    main()
