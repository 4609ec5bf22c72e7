"""Finished runs are stored, even if others fail."""

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
        time.sleep(0.0 if runs[0].fails else 0.1)
        if runs[0].fails:
            raise ArithmeticError("planted")
        return [Outcome((1,), (float(run.seed),), None, {"process": os.getpid()}) for run in runs]


def store(directory: Path) -> Store:
    return Store(directory, {"toy": Toy})


def test_a_run_that_fails_loses_nothing_that_was_finished(tmp_path: Path) -> None:
    wanted: list[Run] = [Toy(0), Toy(1), Toy(2, fails=True)]
    with pytest.raises(ArithmeticError, match="planted"):
        Runner(store(tmp_path), 1, {}).complete(lambda known: wanted, "toys")
    assert set(store(tmp_path).read()) == {Toy(0), Toy(1)}


def test_two_processes_measure_all_rounds_and_a_failure_ends_the_last(tmp_path: Path) -> None:
    def grid(known: Known) -> list[Run]:
        later = [Toy(4, fails=True), Toy(2), Toy(3)]
        return [Toy(0), Toy(1), *(later if Toy(0) in known else [])]

    with pytest.raises(ArithmeticError, match="planted"):
        Runner(store(tmp_path), 2, {}).complete(grid, "toys")
    known = store(tmp_path).read()
    assert set(known) == {Toy(0), Toy(1), Toy(2), Toy(3)}
    assert len({outcome.more["process"] for outcome in known.values()}) <= 2
    assert os.getpid() not in {outcome.more["process"] for outcome in known.values()}
