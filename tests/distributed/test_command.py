"""``torchrun … -m dither train``: one run, one voice, one ledger."""

import os
import subprocess
import sys
from pathlib import Path

from dither.ledger import Ledger

OPTIONS = ["--noise", "uniform", "--alone", "--run-dir", "run"]
SHORT = ["--model", "linear", "--steps", "6"]

# Rank 1 is killed once, after some calls of its model.
DYING = """
import os, signal
from torch import nn

calls = 0

class Dying(nn.Linear):
    def forward(self, x):
        global calls
        calls += 1
        if (calls, os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == (27, "1", "0"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x.flatten(1))

def model(shape, classes):
    return Dying(64, classes)
"""


def torchrun(
    folder: Path, *options: str, runner: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    starter = [sys.executable, "-m", "torch.distributed.run", "--standalone", *runner]
    return subprocess.run(
        [*starter, "--nproc-per-node=2", "-m", "dither", "train", *OPTIONS, *options],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_two_ranks_are_one_run(tmp_path: Path) -> None:
    done = torchrun(tmp_path, *SHORT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("The released model is (ε = ") == 1
    ledger = Ledger(tmp_path / "run", create=False)
    (found,) = ledger.runs.values()
    assert len(found.spent) == 6
    assert not found.is_open
    ledger.close()
    again = torchrun(tmp_path, *SHORT)
    assert again.returncode != 0
    assert again.stderr.count("run_dir must be a folder that is new or empty") == 1
    assert "RefusedByFirstError" not in again.stderr
    nowhere = torchrun(tmp_path, *SHORT, "--plot", "nowhere/runs.png")
    assert nowhere.returncode != 0
    assert nowhere.stderr.count("plot must be in a folder that exists") == 1


def test_torchrun_starts_again_where_a_rank_died(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    options = "--model", "dying:model", "--steps", "40", "--checkpoint-every", "20", "--resume"
    done = torchrun(tmp_path, *options, runner=("--max-restarts=1",))
    assert done.returncode == 0, done.stderr
    assert "exitcode: -9" in done.stderr, "rank 1 must have been killed"
    assert done.stdout.count("The released model is (ε = ") == 1
    ledger = Ledger(tmp_path / "run", create=False)
    (found,) = ledger.runs.values()
    assert len(found.spent) > 40, "what was lost stays spent"
    assert ledger.total(1e-5).epsilon <= 3.0
    ledger.close()
