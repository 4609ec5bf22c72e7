"""Progress: nothing for short work, a line now and then when piped, a bar on a terminal."""

import io
import sys

import pytest

from dither import progress
from dither.progress import Progress


class Clock:
    """A clock that each step moves by a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def run(clock: Clock, steps: int, *, shown: bool = True) -> None:
    with Progress("training", steps, shown=shown) as bar:
        for _ in range(steps):
            clock.now += 1.0
            bar.update(detail=lambda: "ε = 0.5")


def test_short_work_is_silent(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    run(clock, 1)
    assert capsys.readouterr().err == ""


def test_piped_work_writes_lines_with_the_time_left(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    run(clock, 100)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "training: 2 of 100, ε = 0.5, 1:38 left"
    assert len(lines) == 10


def test_nothing_is_shown_or_computed_if_not_wanted(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress("training", 50, shown=False) as bar:
        for _ in range(50):
            clock.now += 1.0
            bar.update(detail=lambda: pytest.fail("computed for nobody"))
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with Progress("training", 3) as bar:
        for step in range(3):
            bar.update(step + 1, lambda: "ε = 0.5")
    assert "3/3" in terminal.getvalue()
