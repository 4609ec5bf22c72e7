"""The paper's experiments from the command line: what is listed, and what is refused."""

import json
from pathlib import Path

import pytest
from experiments.reproduction.__main__ import main

import experiments

EXPERIMENTS = (
    "figure1", "figure2", "table-decay-to-zero", "table-inverse-sqrt", "figure3", "table-adaptive",
    "figure-constant-vs-decay", "state-of-the-art",
)  # fmt: skip


def error(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit, match="2"):
        main(argv)
    return capsys.readouterr().err


def test_the_list_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--profile", "small"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [*EXPERIMENTS]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("figure9", "argument NAME: invalid choice: 'figure9'"),
        ("list --profile huge", "argument --profile: invalid choice: 'huge'"),
        ("figure2 --seeds 0", "seeds must be"),
        ("figure2 --jobs 0", "jobs must be"),
        ("figure2 --jobs two", "invalid int value: 'two'"),
        ("report --out nowhere", "out must be a directory with finished runs, got 'nowhere'"),
        ("figure2 --paper nowhere", "paper must be a directory with cifar10_tables.csv"),
    ],
)
def test_bad_input_is_refused(
    argv: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert message in error(argv.split(), capsys)
    assert list(tmp_path.iterdir()) == []


def test_finished_runs_are_not_mixed_with_new_ones_by_accident(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needed = ("run", "steps", "accuracies", "epsilon", "more", "seconds")
    line = json.dumps({"kind": "head", **dict.fromkeys(needed)})
    (tmp_path / "runs.jsonl").write_text(line + "\n")
    said = error(["figure2", "--out", str(tmp_path)], capsys)
    assert "unless --resume is given" in said
    assert "with 1 finished runs" in said


def test_a_report_needs_runs_of_its_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = Path(experiments.__file__).parent / "records" / "small" / "runs.jsonl"
    first = small.read_text(encoding="utf-8").splitlines()[0]
    (tmp_path / "runs.jsonl").write_text(first + "\n", encoding="utf-8")
    said = error(["report", "--profile", "smoke", "--out", str(tmp_path)], capsys)
    assert "out must be a directory with runs of profile 'smoke', got" in said
    assert [file.name for file in tmp_path.iterdir()] == ["runs.jsonl"]
