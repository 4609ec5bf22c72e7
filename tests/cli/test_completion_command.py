import shutil
import subprocess
from pathlib import Path

import pytest
from tests.cli.errors import error_line

from dither.cli import main


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", "bash"]) == 0
    path = tmp_path / "completion.bash"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["tr"], {"train"}),
        (["train", "--noi"], {"--noise"}),
        (["train", "--noise", ""], {"uniform", "matched", "optimal", "correlated"}),
        (["ledger", ""], {"show", "cap", "export"}),
        (["plan", "--save", "pl"], {"plans.json"}),
        (["train", "--run-dir", "pl"], {"plots"}),
    ],
)
def test_bash_is_offered_what_fits(script: Path, words: list[str], offered: set[str]) -> None:
    (script.parent / "plans.json").touch()
    (script.parent / "plots").mkdir()
    line = " ".join(["dither", *(f"'{word}'" for word in words)])
    code = (
        f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; "
        '_shtab_dither; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    bash = shutil.which("bash")
    assert bash is not None
    run = subprocess.run(
        [bash, "-c", code], capture_output=True, text=True, check=True, cwd=script.parent
    )
    found = set(run.stdout.split())
    # Files may be in folders: those are offered, too.
    assert offered <= found <= offered | {"plots"}


@pytest.mark.parametrize("shell", ["zsh", "fish", "tcsh"])
def test_other_shells_have_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert "run-dir" in out
    assert "optimal" in out


def test_an_unknown_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert "invalid choice: 'ash'" in error_line(["completion", "ash"], capsys)
