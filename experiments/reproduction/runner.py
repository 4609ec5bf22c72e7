"""Runs the missing runs of a grid, in parallel processes."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments.reproduction.features import FeatureSet, prepare
from experiments.reproduction.run import Known, Outcome, Run
from experiments.reproduction.store import Store

_GROUP_SIZE = 32
_Measured = tuple[list[Run], list[Outcome], float]

Grid = Callable[[Known], list[Run]]
"""From the finished runs to the runs that are wanted: a choice among trials comes after them."""


@dataclass(frozen=True)
class Runner:
    """Completes grids of runs.

    Attributes:
        store: where finished runs go.
        jobs: number of training processes, with one thread each; 1 trains in this process.
        origin: what is written beside every run.
    """

    store: Store
    jobs: int
    origin: dict[str, Any]

    def complete(self, grid: Grid, title: str) -> Known:
        """Run all runs of a grid that are not in the store; return all finished runs."""
        with self.store.writing(), self._workers() as measured:
            known, ready = self.store.read(), set[FeatureSet]()
            while missing := [run for run in dict.fromkeys(grid(known)) if run not in known]:
                with _bar() as bar:
                    wanted = {run.features for run in missing if run.features is not None}
                    for each in sorted(wanted - ready, key=repr):
                        prepare(each, bar)
                    ready |= wanted
                    work = sum(run.work for run in missing)
                    task = bar.add_task(title, total=work, done=0, all=len(missing))
                    for runs, outcomes, seconds in measured(_group_runs(missing)):
                        for run, outcome in zip(runs, outcomes, strict=True):
                            share = round(seconds / len(runs), 1)
                            self.store.add(run, outcome, {"seconds": share, **self.origin})
                            known[run] = outcome
                        done = sum(run in known for run in missing)
                        bar.update(task, advance=sum(run.work for run in runs), done=done)
            return known

    @contextmanager
    def _workers(self) -> Iterator[Callable[[list[list[Run]]], Iterator[_Measured]]]:
        """Yield a function that measures groups of runs, in the same processes for all groups."""
        if self.jobs == 1:
            yield lambda groups: map(_measure_group, groups)
            return
        spawn = multiprocessing.get_context("spawn")
        with (
            _single_threaded_children(),
            ProcessPoolExecutor(self.jobs, spawn, _exit_with_parent, (os.getpid(),)) as pool,
        ):
            try:
                yield lambda groups: _iterate_finished(pool, groups)
            except KeyboardInterrupt:
                for child in multiprocessing.active_children():
                    child.terminate()
                raise
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


def _iterate_finished(pool: ProcessPoolExecutor, groups: list[list[Run]]) -> Iterator[_Measured]:
    """Yield the outcomes of each group; the first failure is raised when the others are done."""
    failures = []
    for ended in as_completed([pool.submit(_measure_group, group) for group in groups]):
        failure = ended.exception()
        if failure is None:
            yield ended.result()
        else:
            failures.append(failure)
    if failures:
        raise failures[0]


def _exit_with_parent(parent: int) -> None:
    """Exit when the parent process was killed, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _group_runs(runs: list[Run]) -> list[list[Run]]:
    """Return groups of runs that are trained together, at most `_GROUP_SIZE` each."""
    groups: dict[Hashable, list[Run]] = {}
    for run in runs:
        groups.setdefault((run.kind, run.group), []).append(run)
    return [
        group[start : start + _GROUP_SIZE]
        for group in groups.values()
        for start in range(0, len(group), _GROUP_SIZE)
    ]


def _measure_group(runs: list[Run]) -> _Measured:
    start = time.perf_counter()
    outcomes = type(runs[0]).measure(runs)
    return runs, outcomes, time.perf_counter() - start


@contextmanager
def _single_threaded_children() -> Iterator[None]:
    """Start child processes with one thread each."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]}/{task.fields[all]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        speed_estimate_period=7200.0,
    )
