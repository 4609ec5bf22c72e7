"""``dither ledger``, and ``dither train`` with a ledger."""

import json
from pathlib import Path

import pytest
from tests.cli.errors import error_line
from tests.ledger.ledgers import charge, new, plan, run_all

from dither.cli import main
from dither.ledger import Ledger


def out(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(argv) == 0
    return capsys.readouterr().out


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger with a run that has ended and one that is open."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    ledger = new(tmp_path)
    run_all(ledger, plan(2.0, 8))
    second = plan(2.5, 8)
    charge(ledger.register(second, name="second"), second, last=3)
    ledger.close()
    return tmp_path / "shared.sqlite"


def test_show_is_a_table_and_a_total(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = out(["ledger", "show", str(path)], capsys)
    assert "second" in text
    assert "3 of 8" in text
    assert "8 of 8" in text
    assert "the total is an odometer's" in text
    assert "There is no cap" in text


def test_show_as_json(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(out(["ledger", "show", str(path), "--json", "--delta", "1e-6"], capsys))
    ledger = Ledger(path)
    assert found["epsilon"] == ledger.total(1e-6).epsilon
    assert found["composition"] == "adaptive"
    assert [run["spent"] for run in found["runs"]] == [8, 3]
    assert [run["is_open"] for run in found["runs"]] == [False, True]
    assert found["cap"] is None


def test_cap_and_picture(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = out(["ledger", "cap", str(path), "--epsilon", "2", "--delta", "1e-5"], capsys)
    assert text == "The cap is ε = 2 at δ = 1e-05.\n"
    text = out(["ledger", "show", str(path), "--plot", "spent.png"], capsys)
    assert "The cap is ε = 2" in text
    assert Path("spent.png").stat().st_size > 5_000


def test_export_has_every_entry(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(out(["ledger", "export", str(path)], capsys))
    kinds = [entry["kind"] for entry in found["entries"]]
    assert kinds == ["run", *["step"] * 8, "end", "run", *["step"] * 3]


def test_a_cap_for_a_ledger_to_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "all.sqlite"
    out(["ledger", "cap", str(file), "--epsilon", "2", "--delta", "1e-5"], capsys)
    text = out(["ledger", "show", str(file)], capsys)
    assert "Spent together: ε = 0 at δ = 1e-05, per record." in text


@pytest.mark.parametrize(("argv", "words"), [
    ("show nothing.sqlite", "'nothing.sqlite' was not found"),
    ("show shared.sqlite --delta 2", "delta must be"),
    ("cap shared.sqlite --epsilon -1 --delta 1e-5", "epsilon must be"),
    ("cap shared.sqlite --epsilon 1", "required: --delta"),
    ("erase shared.sqlite", "invalid choice: 'erase'"),
    ("shared.sqlite", "to show a ledger: dither ledger show FILE"),
    ("show notes.txt", "is not a database"),
])  # fmt: skip
def test_bad_input_is_one_line(
    argv: str, words: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.with_name("notes.txt").write_text("no ledger, but some text " * 100)
    assert words in error_line(["ledger", *argv.split()], capsys)


def test_training_goes_on_and_keeps_to_the_cap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = [
        "train", "--model", "linear", "--steps", "6", "--noise", "uniform", "--quiet",
        "--seed", "1", "--ledger", "all.sqlite", "--run-dir",
    ]  # fmt: skip
    out(["ledger", "cap", "all.sqlite", "--epsilon", "4", "--delta", "1e-5"], capsys)
    first = out([*command, "one"], capsys)
    assert out([*command, "one", "--resume"], capsys) == first
    assert len(Ledger("all.sqlite").runs) == 1
    assert "6 of 6" in out(["ledger", "show", "one"], capsys)
    assert "above the cap of ε = 4" in error_line([*command, "two"], capsys)
    assert not Path("two").exists()
    other = error_line([*command, "one", "--resume", "--epsilon", "2"], capsys)
    assert "epsilon must be what the run began with, 3, got 2" in other
    assert "resume needs a run directory" in error_line([*command[:-1], "--resume"], capsys)
