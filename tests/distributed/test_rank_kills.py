"""A rank that is killed takes the others down, and loses nothing of the count."""

import signal
import time
from pathlib import Path

import numpy as np
import pytest
from tests.distributed import rank
from tests.distributed.launching import run as run_ranks
from tests.distributed.launching import start, wait
from tests.ledger import killed_run
from tests.ledger.test_kills import count

from dither.ledger import Ledger


def check_kills(folder: Path, kills: int, steps: int) -> None:
    run, releases, rng = folder / "run", folder / "releases", np.random.default_rng(2)
    for number in range(kills):
        size = 2 + number % 2
        before = count(releases)
        ranks = start(size, rank.killed, run, releases, steps)
        while all(each.process.is_alive() for each in ranks) and count(releases) == before:
            time.sleep(0.002)
        time.sleep(rng.uniform(0.0, 0.4))
        killed = ranks[int(rng.integers(size))].process
        assert killed.is_alive()
        killed.kill()
        since = time.monotonic()
        ends = wait(ranks)
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
    said = run_ranks(2, rank.killed, run, releases, steps)
    ledger = Ledger(run)
    (found,) = ledger.runs.values()
    assert not found.is_open
    assert said == [f"{len(found.spent)}\n"] * 2
    assert count(releases) <= len(found.spent)
    assert ledger.total(killed_run.DELTA).epsilon <= killed_run.plan(steps).bound.epsilon


def test_a_kill(tmp_path: Path) -> None:
    check_kills(tmp_path, 1, steps=40)


@pytest.mark.evidence
def test_ten_kills(tmp_path: Path) -> None:
    check_kills(tmp_path, 10, steps=300)
