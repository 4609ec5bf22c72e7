"""Every line of a console block that calls dither is one that the command understands."""

import re
import shlex
from pathlib import Path

import pytest
from tests.docs.pages import OTHERS, PAGES, ROOT, blocks_of, name_of

from dither import cli

QUICK = ("account --noise-multiplier", "completion", "ledger cap", "theory")
"""How the commands begin that are run, and not only parsed."""


def commands_of(page: Path) -> list[list[str]]:
    """Return the arguments of every call of dither on a page."""
    calls = []
    for block in blocks_of(page):
        if block.language not in ("console", ""):
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["dither"]:
                calls.append(words[1:])
    return calls


CALLS = {page: commands_of(page) for page in [*PAGES, *OTHERS, ROOT / "README.md"]}
WITH_CALLS = [page for page, calls in CALLS.items() if calls]


@pytest.mark.parametrize("page", WITH_CALLS, ids=name_of)
def test_calls_are_understood(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    for command in cli._COMMANDS:
        monkeypatch.setattr(command, "run", seen.append)
    monkeypatch.setattr(cli, "_print_completion", seen.append)
    for call in CALLS[page]:
        assert cli.main(call) == 0
    assert len(seen) == len(CALLS[page])


def test_a_call_that_is_not_understood_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["plan", "--no-such-option"])


def quick(call: list[str]) -> bool:
    return " ".join(call).startswith(QUICK)


RUNNABLE = sorted({tuple(call) for calls in CALLS.values() for call in calls if quick(call)})


@pytest.mark.parametrize("call", RUNNABLE, ids=" ".join)
def test_quick_calls_run(
    call: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(call) == 0
    assert capsys.readouterr().out.strip()


def test_every_command_has_its_line() -> None:
    text = (ROOT / "docs/guides/command-line.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `dither (\S+)` \|", text, re.MULTILINE)
    assert sorted(named) == sorted(["completion", *(command.NAME for command in cli._COMMANDS)])
    assert len(RUNNABLE) >= 5
