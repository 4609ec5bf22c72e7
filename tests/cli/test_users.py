"""``dither train --users``: people instead of rows, of arrays and of tables."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.errors import error_line

from dither import Plan
from dither.cli import main
from dither.ledger import Ledger
from dither.reports import run_report

ROWS, PEOPLE = 240, 60
SCANS = [
    "train", "--data", "scans.npz", "--classes", "0,1", "--steps", "4", "--batch-size", "30",
    "--model", "linear", "--users", "patient",
]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with scans of 60 people; some have many, some one, 20 rows have no id."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    rng = np.random.default_rng(0)
    owners = np.concatenate([np.arange(PEOPLE), np.zeros(100), rng.integers(5, 30, 60)])
    ids = np.array([*(f"p{int(k)}" for k in owners), *[""] * 20])
    values = rng.normal(size=(ROWS, 3))
    np.savez("scans.npz", x=values, y=(values[:, 0] > 0.0).astype(int), patient=ids)


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(argv) == 0
    return capsys.readouterr().out


def plan_of(directory: str) -> Plan:
    return Plan.from_json(Path(directory, "plan.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("options", "people", "rows"),
    [
        ([], PEOPLE, 8),
        (["--rows-per-user", "3"], PEOPLE, 3),
        (["--missing", "own"], PEOPLE + 20, 8),
        (["--dataset-size", "70"], 70, 8),
    ],
)
def test_a_run_on_arrays_protects_people(
    options: list[str], people: int, rows: int, capsys: pytest.CaptureFixture[str]
) -> None:
    out = run([*SCANS, *options, "--run-dir", "run"], capsys)
    plan = plan_of("run")
    assert (plan.unit, plan.dataset_size, plan.rows_per_user) == ("user", people, rows)
    assert f"n = {people}" in out
    assert ("counted in the data, taken as public" in out) == ("--dataset-size" not in options)
    assert "remove one user" in " ".join(out.split())
    assert Ledger("run").summary(1e-4)["unit"] == "user"
    assert "per user." in run(["ledger", "show", "run"], capsys)
    assert run_report(Path("run")).claim.bound.unit == "user"  # type: ignore[union-attr]
    predicted = run(["predict", "run", "scans.npz"], capsys)
    assert len(predicted.splitlines()) == ROWS + 1


def test_a_run_with_users_is_resumed_with_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*SCANS, "--run-dir", "run", "--checkpoint-every", "2"]
    found = json.loads(run([*argv, "--json"], capsys))
    assert [each["unit"] for each in found["runs"].values()] == ["user"]
    run([*argv, "--resume", "--quiet"], capsys)
    assert len(Ledger("run").runs) == 1
    line = error_line([*argv, "--resume", "--quiet", "--rows-per-user", "2"], capsys)
    assert "state must be of the same plan" in line


def test_a_canary_is_a_user(capsys: pytest.CaptureFixture[str]) -> None:
    run([*SCANS, "--run-dir", "run", "--canaries", "100"], capsys)
    assert plan_of("run").dataset_size == PEOPLE  # as it was before canaries


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--users", "nobody"], "must hold the array nobody"),
        (["--users", "x"], "users must be an array of one id per record, 240 in all, got shape"),
        (["--rows-per-user", "0"], "rows_per_user must be an integer of at least 1, got 0"),
    ],
)
def test_mistakes_are_one_line(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in error_line([*SCANS, *options], capsys)


def test_users_need_a_column_or_an_array(capsys: pytest.CaptureFixture[str]) -> None:
    line = error_line(["train", "--users", "who"], capsys)
    assert "users must be a column of a table or an array of a .npz file, got 'who'" in line
    for option, value in (("--rows-per-user", "3"), ("--missing", "own")):
        line = error_line(["train", "--data", "scans.npz", option, value], capsys)
        assert f"{option[2:].replace('-', '_')} needs the column of users, --users" in line
