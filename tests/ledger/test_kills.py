"""Kills at random moments, and two processes against one cap."""

import time
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
from tests.distributed.launching import FORKING
from tests.ledger import killed_run
from tests.ledger.ledgers import M, N, new, plan

from dither.accounting import Odometer, epsilon
from dither.ledger import Ledger

pytestmark = pytest.mark.filterwarnings("ignore:.*steps were spent and lost")


def count(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def kill(folder: Path, releases: Path, steps: int, rng: np.random.Generator) -> None:
    """Start or resume, and kill at a random moment after the first release."""
    before = count(releases)
    process = FORKING.Process(target=killed_run.run, args=(folder, releases, steps, 0.02))
    process.start()
    while process.is_alive() and count(releases) == before:
        time.sleep(0.002)
    time.sleep(rng.uniform(0.0, 0.4))
    assert process.is_alive()
    process.kill()
    process.join()


def check_kills(folder: Path, kills: int, steps: int) -> float:
    """Kill a run several times, check its ledger, and return its accuracy when it has ended."""
    run, releases, rng = folder / "run", folder / "releases", np.random.default_rng(1)
    for _ in range(kills):
        kill(run, releases, steps, rng)
        ledger = Ledger(run, create=False)
        (found,) = ledger.runs.values()
        assert len(found.spent) >= count(releases)
        assert ledger.total(killed_run.DELTA).epsilon <= killed_run.plan(steps).bound.epsilon
        ledger.close()
    result = killed_run.run(run, releases, steps)
    ledger = Ledger(run)
    (found,) = ledger.runs.values()
    assert not found.is_open
    assert count(releases) <= len(found.spent) == result.steps
    total = ledger.total(killed_run.DELTA)
    assert total.epsilon <= killed_run.plan(steps).bound.epsilon
    expected = epsilon(found.spent, sample_rate=128 / 1438, delta=killed_run.DELTA)
    assert total == expected
    return result.metrics["accuracy"]


def test_two_kills(tmp_path: Path) -> None:
    check_kills(tmp_path, 2, steps=80)


@pytest.mark.evidence
def test_fifty_kills(tmp_path: Path) -> None:
    steps = 900
    accuracy = check_kills(tmp_path, 50, steps)
    others = [
        killed_run.run(tmp_path / f"complete{k}", tmp_path / "other", steps).metrics["accuracy"]
        for k in range(4)
    ]
    # The mean and spread of a few runs are known to within a few standard deviations.
    assert accuracy > mean(others) - 4.0 * max(stdev(others), 0.01)


def race(folder: Path, races: int) -> None:
    """Let two processes register at once, a cap being left for one of them each time."""
    ledger, made = new(folder), plan(2.0, 5)
    pipes = []
    for name in ("one", "two"):
        pipe, other = FORKING.Pipe()
        FORKING.Process(target=killed_run.race, args=(folder, name, other), daemon=True).start()
        pipes.append(pipe)
    assert [pipe.recv() for pipe in pipes] == ["ready", "ready"]
    for number in range(races):
        allowed = _odometer(ledger, 5 * (number + 1)) if number else made.bound.epsilon
        ledger.cap(1.0001 * allowed, 1e-5)
        for pipe in pipes:
            pipe.send(number)
        answers = [pipe.recv() for pipe in pipes]
        assert sorted(answers) == ["refused", "spent"], (number, answers)
        assert ledger.limit is not None
        assert ledger.total(1e-5).epsilon <= ledger.limit.epsilon
    for pipe in pipes:
        pipe.send(None)
    assert len(ledger.runs) == races
    assert made.steps * races == sum(len(run.spent) for run in ledger.runs.values())


def _odometer(ledger: Ledger, steps: int) -> float:
    """Return what so many steps cost by the orders that were fixed with the first cap."""
    assert ledger.limit is not None
    odometer = Odometer(1e-5, orders=[*ledger.limit.orders])
    for _ in range(steps):
        odometer.charge(2.0, M / N)
    return odometer.epsilon()


def test_races_for_a_cap(tmp_path: Path) -> None:
    race(tmp_path, 8)


@pytest.mark.evidence
def test_two_hundred_races_for_a_cap(tmp_path: Path) -> None:
    race(tmp_path, 200)
