"""What a command says to bad input."""

import pytest

from dither.cli import main


def complaint(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must refuse: exit code 2, nothing printed but one line; return it."""
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    assert exit_.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err
