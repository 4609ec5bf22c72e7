"""``torchrun … -m dither train``: one run, one voice, one ledger."""

import os
import subprocess
import sys
from pathlib import Path

from dither.ledger import Ledger

OPTIONS = ["--model", "linear", "--noise", "uniform", "--alone", "--steps", "6", "--run-dir", "run"]


def torchrun(folder: Path, size: int, *options: str) -> subprocess.CompletedProcess[str]:
    runner = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*runner, f"--nproc-per-node={size}", "-m", "dither", "train", *OPTIONS, *options],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_two_ranks_are_one_run(tmp_path: Path) -> None:
    done = torchrun(tmp_path, 2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("The released model is (ε = ") == 1
    ledger = Ledger(tmp_path / "run", create=False)
    (found,) = ledger.runs.values()
    assert len(found.spent) == 6
    assert not found.is_open
    ledger.close()
    again = torchrun(tmp_path, 2)
    assert again.returncode != 0
    assert again.stderr.count("run_dir must be a folder that is new or empty") == 1
    assert "RefusedByFirstError" not in again.stderr
