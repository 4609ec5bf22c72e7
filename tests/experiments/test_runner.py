"""What was finished is kept, whatever became of the rest."""

import os
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from experiments.reproduction.features import FeatureSet
from experiments.reproduction.run import Known, Outcome, Run
from experiments.reproduction.runner import Runner
from experiments.reproduction.store import Store


@dataclass(frozen=True)
class Toy:
    kind: ClassVar[str] = "toy"
    seed: int
    fails: bool = False
    work: ClassVar[float] = 1.0
    features: ClassVar[FeatureSet | None] = None

    @property
    def group(self) -> Hashable:
        return self

    @classmethod
    def measure(cls, runs: Sequence["Toy"]) -> list[Outcome]:
        time.sleep(0.0 if runs[0].fails else 0.5)
        if runs[0].fails:
            raise ArithmeticError("planted")
        return [Outcome((1,), (float(run.seed),), None, {"process": os.getpid()}) for run in runs]


def store(folder: Path) -> Store:
    return Store(folder, {"toy": Toy})


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_loses_nothing_that_was_finished(tmp_path: Path, jobs: int) -> None:
    wanted: list[Run] = [Toy(0), Toy(1), Toy(2, fails=True)]
    if jobs == 2:
        wanted.reverse()  # with one job, what comes after a failure is not begun
    with pytest.raises(ArithmeticError, match="planted"):
        Runner(store(tmp_path), jobs, {}).complete(lambda known: wanted, "toys")
    assert set(store(tmp_path).read()) == {Toy(0), Toy(1)}


def test_later_rounds_are_measured_by_the_same_processes(tmp_path: Path) -> None:
    def grid(known: Known) -> list[Run]:
        return [Toy(0), Toy(1), *([Toy(2), Toy(3)] if Toy(0) in known else [])]

    known = Runner(store(tmp_path), 2, {}).complete(grid, "toys")
    assert len(known) == 4
    assert len({outcome.more["process"] for outcome in known.values()}) <= 2
    assert os.getpid() not in {outcome.more["process"] for outcome in known.values()}
