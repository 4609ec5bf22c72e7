"""``dither report``: from a run to a page without reading anything else."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.cli.errors import error_line

from dither.cli import main
from dither.cli.run_directory import append_audit

TRAIN = ["train", "--model", "linear", "--noise", "uniform", "--quiet", "--steps", "6"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    k = np.arange(60)
    np.savez(tmp_path / "own.npz", x=np.stack([k % 7, k % 5], axis=1), y=k % 2)
    return tmp_path


def test_from_data_of_ones_own_to_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--data", "own.npz", "--batch-size", "20", "--run-dir", "run1"]
    assert main([*TRAIN, *own]) == 0
    capsys.readouterr()
    before = {path.name for path in Path("run1").iterdir()}
    assert main(["report", "run1"]) == 0
    assert capsys.readouterr().out == f"The report is in {Path('run1/report.html')}.\n"
    assert {path.name for path in Path("run1").iterdir()} == {*before, "report.html"}
    text = Path("run1/report.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert text.count("NOT PROVEN") == 1
    assert "NOT PROVEN: the set of classes taken from the private data" in text
    assert "--classes A,B,…" in text
    assert "<dt>Data</dt><dd>own.npz, 60 records</dd>" in text
    assert str(Path.cwd()) not in text
    assert main(["report", "run1"]) == 0


def test_what_is_public_is_given_and_not_read_off(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--data", "own.npz", "--batch-size", "20"]
    assert main([*TRAIN, *own, "--run-dir", "run1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "NOT PROVEN: the set of classes derived from the private data" in said
    counted = "the number of records, n = 60, counted in the data"
    for name, more, n in (
        ("run2", ["--purpose", "Plan beds"], counted),
        ("run3", ["--dataset-size", "64"], "the number of records, n = 64"),
    ):
        assert main([*TRAIN, *own, "--classes", "0,1,2", *more, "--run-dir", name]) == 0
        said = capsys.readouterr().out
        assert "NOT PROVEN" not in said
        assert (counted in said) == (n == counted)
        assert main(["report", name, "-o", f"{name}.json"]) == 0
        found = json.loads(Path(f"{name}.json").read_text(encoding="utf-8"))
        assert found["claim"]["verdict"] == "proven"
        assert found["odds"]["text"]["Taken as public"] == f"{n}."
        assert found["purpose"] == ("Plan beds" if name == "run2" else None)
        assert "NOT PROVEN" not in json.dumps(found)


def test_the_suffix_decides(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--seed", "1", "--run-dir", "run"]) == 0
    for suffix in (".html", ".json", ".HTML"):
        capsys.readouterr()
        assert main(["report", "run", "-o", f"out{suffix}"]) == 0
        assert capsys.readouterr().out == f"The report is in out{suffix}.\n"
        text = Path(f"out{suffix}").read_text(encoding="utf-8")
        assert "SEEDED" in text
        if suffix == ".json":
            assert json.loads(text)["claim"]["verdict"] == "seeded"
    assert not Path("run/report.html").exists()


def test_warnings_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--run-dir", "run"]) == 0
    Path("run/ledger.sqlite").unlink()
    capsys.readouterr()
    assert main(["report", "run", "-o", "out.json"]) == 0
    assert capsys.readouterr().out == "The report is in out.json, with 1 warning.\n"


def test_an_audit_is_kept_in_the_folder_and_none_is_overwritten(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*TRAIN, "--run-dir", "run", "--canaries", "100"]) == 0
    for argv in (["--attack", "one-run"], ["--trials", "300", "--seed", "2"]):
        assert main(["audit", "--run-dir", "run", *argv]) == 0
    kept = json.loads(Path("run/audit.json").read_text(encoding="utf-8"))["audits"]
    assert [each["attack"] for each in kept] == ["one-run", "white-box"]
    assert main(["report", "run", "-o", "out.json"]) == 0
    found = json.loads(Path("out.json").read_text(encoding="utf-8"))
    assert found["warnings"] == []
    assert [each["verdict"] for each in found["audits"]] == [each["verdict"] for each in kept]
    assert found["canaries"][0] == 100


def test_no_audit_is_lost_when_two_are_added_at_once(folder: Path) -> None:
    def append_twenty(name: str) -> None:
        for number in range(20):
            append_audit(folder, {"attack": f"{name}{number}", "is_violated": True})

    # flock excludes every other open file, also one of the same process.
    threads = [threading.Thread(target=append_twenty, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = json.loads((folder / "audit.json").read_text(encoding="utf-8"))["audits"]
    assert {each["attack"] for each in kept} == {f"{name}{k}" for name in "ab" for k in range(20)}
    assert len(kept) == 40


@pytest.mark.parametrize(("argv", "words"), [
    (["nothing"], "run_dir must be a run directory"),
    (["own.npz"], "run_dir must be a run directory"),
    (["."], "run_dir must be a run directory"),
    ([".", "-o", "x.pdf"], "output must end in one of .html, .json, got 'x.pdf'"),
    ([".", "-o", "none/x.html"], "output must be in an existing directory"),
    ([], "required: RUN_DIR"),
])  # fmt: skip
def test_bad_input_is_one_line_and_nothing_is_written(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert words in error_line(["report", *argv], capsys)
    assert [path.name for path in folder.iterdir()] == ["own.npz"]
