"""A rank that is killed takes the others down, and loses nothing of the count."""

import signal
import time
from pathlib import Path

import numpy as np
import pytest
from tests.distributed.launching import ended, finished, started
from tests.ledger import killed_run
from tests.ledger.test_kills import count

from dither.ledger import Ledger

WORKER = "tests.distributed.killed_rank"


def check_kills(folder: Path, kills: int, steps: int) -> None:
    run, releases, rng = folder / "run", folder / "releases", np.random.default_rng(2)
    for number in range(kills):
        size = 2 + number % 2
        before = count(releases)
        processes = started(size, WORKER, run, releases, str(steps))
        while all(each.poll() is None for each in processes) and count(releases) == before:
            time.sleep(0.002)
        time.sleep(rng.uniform(0.0, 0.4))
        killed = processes[int(rng.integers(size))]
        assert killed.poll() is None
        killed.send_signal(signal.SIGKILL)
        since = time.monotonic()
        ends = ended(processes)
        # Far below the group's minute: a closed connection is noticed at once.
        assert time.monotonic() - since < 45.0
        assert all(code != 0 for code, _ in ends)
        said = [text for code, text in ends if code != -signal.SIGKILL]
        assert all("RankLostError: another rank has died" in text for text in said)
        ledger = Ledger(run, create=False)
        (found,) = ledger.runs.values()
        assert len(found.spent) >= count(releases)
        assert ledger.total(killed_run.DELTA).epsilon <= killed_run.plan(steps).bound.epsilon
        ledger.close()
    said = finished(2, WORKER, run, releases, str(steps))
    ledger = Ledger(run)
    (found,) = ledger.runs.values()
    assert not found.is_open
    assert said == [f"{len(found.spent)}\n"] * 2
    assert count(releases) <= len(found.spent)
    assert ledger.total(killed_run.DELTA).epsilon <= killed_run.plan(steps).bound.epsilon


def test_two_kills(tmp_path: Path) -> None:
    check_kills(tmp_path, 2, steps=60)


@pytest.mark.evidence
def test_ten_kills(tmp_path: Path) -> None:
    check_kills(tmp_path, 10, steps=300)
