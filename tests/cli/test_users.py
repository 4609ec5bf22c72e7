"""``dither train --users``: people instead of rows, of arrays and of tables."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.cli.errors import error_line

import dither
from dither import Plan
from dither.cli import _build_parser, main
from dither.cli.train_table import _read_schema, _split
from dither.ledger import Ledger
from dither.reports import run_report

ROWS, PEOPLE = 240, 60
SCANS = [
    "train", "--data", "scans.npz", "--classes", "0,1", "--steps", "4", "--batch-size", "30",
    "--model", "linear", "--users", "patient",
]  # fmt: skip
VISITS = ["train", "--data", "visits.csv", "--schema", "schema.json", "--steps", "5"]
BY_PATIENT = [*VISITS, "--users", "patient"]


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
    table = pd.DataFrame({"patient": ids, "age": values[:, 0], "day": np.arange(ROWS)})
    table["ill"] = np.where(values[:, 0] > 0.0, "yes", "no")
    table.to_csv("visits.csv", index=False)
    table[["age"]].to_csv("new.csv", index=False)
    write_schema()


def write_schema(**more: str) -> None:
    fields = {
        "confirmed": True,
        **more,
        "target": {"column": "ill", "classes": ["no", "yes"]},
        "columns": {"age": {"kind": "number", "bounds": [-3, 3]}, "day": {"kind": "ignored"}},
    }
    Path("schema.json").write_text(json.dumps(fields), encoding="utf-8")


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
    bound = run_report(Path("run")).claim.bound
    assert bound is not None
    assert bound.unit == "user"
    predicted = run(["predict", "run", "scans.npz"], capsys)
    assert len(predicted.splitlines()) == ROWS + 1


def test_a_run_with_users_is_resumed_with_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*SCANS, "--run-dir", "run", "--checkpoint-every", "2"]
    found = json.loads(run([*argv, "--json"], capsys))
    assert found["run"]["unit"] == "user"
    run([*argv, "--resume", "--quiet"], capsys)
    assert len(Ledger("run").runs) == 1
    line = error_line([*argv, "--resume", "--quiet", "--rows-per-user", "2"], capsys)
    assert "state must be of the same rows_per_user" in line


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


@pytest.mark.parametrize("model", ["linear", "gam", "mlp"])
def test_a_table_protects_people(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run([*BY_PATIENT, "--model", model, "--json"], capsys))
    assert (found["unit"], found["dataset_size"], found["rows_per_user"]) == ("user", PEOPLE, 8)
    assert (plan_of("visits-run").unit, plan_of("visits-run").rows_per_user) == ("user", 8)
    saved = dither.load("visits-run")
    assert (saved.privacy.unit, saved.schema.users) == ("user", "patient")
    bound = run_report(Path("visits-run")).claim.bound
    assert bound is not None
    assert bound.unit == "user"
    assert "per user." in run(["ledger", "show", "visits-run"], capsys)
    lines = run(["predict", "visits-run", "new.csv"], capsys).splitlines()
    assert lines[0] == "prediction,p_no,p_yes"
    lines = run(["predict", "visits-run", "visits.csv", "--id", "patient"], capsys).splitlines()
    assert lines[1].startswith("p0,")


def test_the_schema_names_the_users_and_the_command_line_another_column(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_schema(users="patient")
    options = ["--rows-per-user", "2", "--missing", "own", "--run-dir"]
    out = run([*VISITS, *options, "run1"], capsys)
    assert f"n = {PEOPLE + 20}, at most 2 rows of each in a step" in out
    assert (plan_of("run1").dataset_size, plan_of("run1").rows_per_user) == (PEOPLE + 20, 2)
    run([*VISITS, "--users", "day", "--run-dir", "run2"], capsys)
    assert plan_of("run2").dataset_size == ROWS


def test_a_holdout_has_all_rows_of_its_users(capsys: pytest.CaptureFixture[str]) -> None:
    paid = ["--holdout", "0.3", "--evaluate-epsilon", "3"]
    arguments = _build_parser().parse_args([*BY_PATIENT, *paid])
    arguments.holdout = 0.3
    schema = _read_schema(arguments)
    parts = _split(arguments, schema, schema.read("visits.csv"))
    assert parts.holdout is not None
    assert not ({*parts.train["patient"]} & {*parts.holdout["patient"]}) - {""}
    assert len(parts.train) + len(parts.holdout) == ROWS
    assert (parts.train_size, parts.holdout_size) == (42, 18)
    found = json.loads(run([*BY_PATIENT, *paid, "--json"], capsys))
    assert found["dataset_size"] == 42
    assert found["evaluation"]["privacy"]["unit"] == "user"
    runs = Ledger("visits-run").runs.values()
    assert {each.entry.part for each in runs} == {"training", "holdout"}
    assert {each.entry.unit for each in runs} == {"user"}
    out = run([*BY_PATIENT, *paid, "--run-dir", "again"], capsys)
    assert "A user is in one part only, so the larger of both costs counts" in " ".join(out.split())
    assert out.count("users ") >= 2


def test_mistakes_in_tables_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for options, words in (
        (["--users", "nobody"], "users: table must have every column of the schema, but has no"),
        (["--users", "age"], "users must be a column of ids, neither the target nor a feature"),
        (["--missing", "own"], "missing needs the column of users, --users, got 'own' alone"),
    ):
        assert words in error_line([*VISITS, *options], capsys)
    assert not Path("visits-run").exists()
