"""``torchrun … -m dither train``: one run, one voice, one ledger."""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.distributed import rank
from tests.distributed.launching import run, start, wait
from torch._C._distributed_c10d import HashStore

from dither.cli.torchrun import _report_once
from dither.ledger import Ledger
from dither.training.errors import RankLostError, RankZeroError
from dither.validate import InvalidValueError

OPTIONS = ["--noise", "uniform", "--run-dir", "run", "--steps", "20"]
OPTIONS += ["--batch-size", "128", "--delta", "1e-5"]
MODEL = ["--model", "dying:model"]
RESUMING = ["--checkpoint-every", "12", "--resume"]
COMMAND = ["train", *OPTIONS, *MODEL, *RESUMING]

# Rank 1 is killed once, after some calls of its model.
DYING = """
import os, signal
from torch import nn

calls = 0

class Dying(nn.Linear):
    def forward(self, x):
        global calls
        calls += 1
        if (calls, os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == (17, "1", "0"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x.flatten(1))

def model(shape, classes):
    return Dying(64, classes)
"""


def torchrun(folder: Path, *options: str, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    starts = ["--standalone", f"--max-restarts={restarts}"]
    runner = [sys.executable, "-m", "torch.distributed.run", *starts]
    return subprocess.run(
        [*runner, "--nproc-per-node=2", "-m", "dither", "train", *OPTIONS, *MODEL, *options],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_two_ranks_are_one_run_that_is_started_again_where_one_dies(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    (code, text), (killed, _) = wait(start(2, rank.command, tmp_path, 0, *COMMAND))
    assert killed == -signal.SIGKILL, "rank 1 must have been killed"
    assert code == 1
    assert "dither: rank 0: another rank has died" in text
    outputs = run(2, rank.command, tmp_path, 1, *COMMAND)
    assert [text.count("The model is (ε = ") for text in outputs] == [1, 0]
    check_ledger(tmp_path / "run")


@pytest.mark.evidence  # the test above starts the ranks without torchrun
def test_torchrun_starts_a_run_again(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    done = torchrun(tmp_path, *RESUMING, restarts=1)
    assert done.returncode == 0, done.stderr
    assert "exitcode: -9" in done.stderr, "rank 1 must have been killed"
    assert done.stdout.count("The model is (ε = ") == 1
    check_ledger(tmp_path / "run")


def check_ledger(run_dir: Path) -> None:
    ledger = Ledger(run_dir, create=False)
    (found,) = ledger.runs.values()
    assert len(found.spent) > 20, "what was lost stays spent"
    assert ledger.total(1e-5).epsilon <= 3.0
    assert not found.is_open
    ledger.close()


@pytest.mark.evidence  # the tests below do it without processes
def test_an_error_of_all_ranks_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").touch()
    refused = torchrun(tmp_path)
    assert refused.returncode != 0
    assert refused.stderr.count("run directory must be new or empty") == 1
    assert "RankZeroError" not in refused.stderr


def speak(number: int, store: Any, raised: BaseException) -> None:
    with _report_once(number, store):
        sys.stdout.write("trained\n")
        raise raised


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("raised", [InvalidValueError("no"), FileNotFoundError("none")])
def test_what_all_complain_of_is_said_once(number: int, raised: Exception) -> None:
    store = HashStore()
    if number:
        store.set("reported", "")
    with pytest.raises(SystemExit if number else type(raised)):
        speak(number, store, raised)
    assert store.check(["reported"])


@pytest.mark.parametrize(
    ("raised", "first", "others", "said"),
    [
        (RankZeroError("no"), SystemExit, SystemExit, ""),
        (RankLostError("gone"), SystemExit, SystemExit, "dither: rank {}: gone\n"),
        (KeyboardInterrupt(), KeyboardInterrupt, SystemExit, ""),
        (KeyError("a mistake"), KeyError, KeyError, ""),
    ],
)
def test_other_ends(
    raised: BaseException,
    first: type[BaseException],
    others: type[BaseException],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for number, kind in enumerate([first, others]):
        with pytest.raises(kind):
            speak(number, HashStore(), raised)
        captured = capsys.readouterr()
        assert captured.out == ("" if number else "trained\n")
        assert captured.err == said.format(number)


def test_what_another_rank_alone_complains_of_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dither.cli.torchrun._WAIT", timedelta(milliseconds=50))
    with pytest.raises(InvalidValueError, match="only here"):
        speak(1, HashStore(), InvalidValueError("only here"))
