"""The one-line errors of commands."""

import pytest

from dither.cli import main


def error_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must fail: exit code 2, one line on stderr and nothing else."""
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    assert exit_.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err
