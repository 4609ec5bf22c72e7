"""``dither train`` and ``dither predict`` on tables: from a file and its schema to predictions."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score
from tests.cli.errors import error_line
from tests.docs.pages import ROOT

import dither
from dither import Plan
from dither.cli import main
from dither.data import directory
from dither.evaluation import Evaluation
from dither.ledger import Ledger
from dither.reports import run_report
from dither.types import rounded

DATA, RECORDS = directory().resolve(), 400  # before the tests change the folder
COLUMNS = {
    "id": {"kind": "ignored"},
    "age": {"kind": "number", "bounds": [0, 100], "missing": 50},
    "sex": {"kind": "category", "values": ["f", "m"]},
}
CLASSES = {"column": "ill", "classes": ["yes", "no"]}
NUMBERS = {"column": "days", "bounds": [0, 100]}
TRAIN = ["train", "--data", "patients.csv", "--schema", "schema.json", "--steps", "5"]


def write_schema(columns: dict[str, Any], target: dict[str, Any]) -> None:
    fields = {"confirmed": True, "target": target, "columns": columns}
    Path("schema.json").write_text(json.dumps(fields), encoding="utf-8")


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """Work in a folder with a table: people above 60 are ill, and their days grow with age."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    rng = np.random.default_rng(0)
    age = rng.integers(0, 100, RECORDS)
    frame = pd.DataFrame(
        {
            "id": [f"{k:04}" for k in range(RECORDS)],
            "age": [None if k % 20 == 0 else value for k, value in enumerate(age)],
            "sex": rng.choice(["f", "m", "x", ""], RECORDS),
            "ill": np.where(age > 60, "yes", "no"),
            "days": age,
        }
    )
    frame.to_csv("patients.csv", index=False)
    frame.to_csv("patients.csv.gz", index=False)
    frame.to_parquet("patients.parquet", index=False)
    write_schema(COLUMNS, CLASSES)
    return frame


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(argv) == 0
    captured = capsys.readouterr()
    # On a slow machine progress is shown.
    assert all(line.startswith("training: ") for line in captured.err.splitlines())
    return captured.out


@pytest.mark.parametrize("name", ["patients.csv", "patients.csv.gz", "patients.parquet"])
def test_a_table_becomes_a_run_directory_and_predictions(
    name: str, table: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["train", "--data", name, "--schema", "schema.json", "--epsilon", "20"]
    out = run([*argv, "--purpose", "plan beds", "--dataset-size", "390"], capsys)
    assert "PrivateGAMClassifier" in out
    assert "The model is (ε = " in out
    assert "Next: dither predict patients-run new.csv -o scores.csv" in out
    model = dither.load("patients-run")
    assert model.privacy.epsilon <= 20.0
    assert model.privacy_statement() in out
    assert model.plan_.dataset_size == 390
    assert Ledger("patients-run").total(model.privacy.delta).epsilon == model.privacy.epsilon
    about = json.loads(Path("patients-run/run.json").read_text(encoding="utf-8"))
    assert (about["data"], about["purpose"]) == (name, "plan beds")
    said = run(["predict", "patients-run", name, "-o", "scores.csv", "--id", "id"], capsys)
    assert said == "400 predictions are in scores.csv.\n"
    scores = pd.read_csv("scores.csv", dtype={"id": str})
    assert [*scores] == ["id", "prediction", "p_no", "p_yes"]
    assert scores["id"].tolist() == table["id"].tolist()
    assert scores["prediction"].tolist() == model.predict(table).tolist()
    np.testing.assert_allclose(scores[["p_no", "p_yes"]], model.predict_proba(table), rtol=1e-6)
    assert roc_auc_score(table["ill"] == "yes", scores["p_yes"]) > 0.9
    shown = run(["predict", "patients-run", name], capsys)
    assert shown.splitlines()[0] == "prediction,p_no,p_yes"
    assert len(shown.splitlines()) == RECORDS + 1


def test_a_target_with_bounds_is_a_regression(
    table: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    write_schema(COLUMNS, NUMBERS)
    argv = ["train", "--data", "patients.csv", "--schema", "schema.json", "--epsilon", "50"]
    argv += ["--public-test", "patients.parquet", "--holdout", "0.25", "--evaluate-epsilon", "20"]
    found = json.loads(run([*argv, "--json"], capsys))
    assert found["model"] == "PrivateGAMRegressor"
    assert found["metrics"]["r2"] > 0.8
    assert found["evaluation"]["r2"]["high"] > 0.8
    written = json.loads(Path("patients-run/result.json").read_text(encoding="utf-8"))
    assert written["metrics"] == found["metrics"]
    # The target is not needed to predict; its bounds hold for any new record.
    table.drop(columns=["days", "ill"]).to_csv("new.csv", index=False)
    run(["predict", "patients-run", "new.csv", "-o", "scores.parquet"], capsys)
    scores = pd.read_parquet("scores.parquet")
    assert [*scores] == ["prediction"]
    assert scores["prediction"].corr(table["days"]) > 0.9


def test_without_numbers_the_default_is_linear_and_models_can_be_chosen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for options, model in (
        (["--drop", "age"], "PrivateLogisticRegression"),
        (["--model", "linear"], "PrivateLogisticRegression"),
        (["--model", "gam"], "PrivateGAMClassifier"),
        (["--model", "mlp", "--batch-size", "100"], "PrivateMLPClassifier"),
    ):
        found = json.loads(run([*TRAIN, *options, "--run-dir", "run", "--json"], capsys))
        assert found["model"] == model == type(dither.load("run")).__name__
        shutil.rmtree("run")


def test_the_default_budget_is_that_of_estimators_and_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = run(TRAIN, capsys)
    assert 0.99 < dither.load("patients-run").privacy.epsilon <= 1.0
    assert "(default: --epsilon 1)" in out
    line = error_line([*TRAIN, "--schema", "none.toml"], capsys)  # before the directory
    assert "none.toml" in line
    assert "another run costs ε again" in error_line(TRAIN, capsys)
    assert "default" not in run([*TRAIN, "--epsilon", "1", "--run-dir", "other"], capsys)


def test_options_make_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"epsilon": "2", "delta": "1e-4", "clip-norm": "0.5", "batch-size": "100"}
    options |= {"noise": "uniform", "schedule": "linear:start=2,end=1", "dataset-size": "380"}
    argv = [*TRAIN, *(word for k, v in options.items() for word in (f"--{k}", v)), "--quiet"]
    assert run(argv, capsys).count("\n") == 1
    assert Plan.from_json(Path("patients-run/plan.json").read_text("utf-8")) == dither.plan(
        epsilon=2.0, delta=1e-4, dataset_size=380, batch_size=100, steps=5, clip_norm=0.5,
        stepsizes=dither.schedules.Linear(2.0, 1.0), noise="uniform",
    )  # fmt: skip


def test_correlated_noise_of_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*TRAIN[:-1], "24", "--batch-size", "10", "--epsilon", "8", "--noise", "correlated"]
    out = " ".join(run([*argv, "--model", "linear"], capsys).split())
    made = Plan.from_json(Path("patients-run/plan.json").read_text("utf-8"))
    assert (made.sampling, made.bands > 1) == ("cyclic", True)
    assert f"correlated within {made.bands} consecutive steps" in out


def test_a_dropped_column_has_no_influence(
    table: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    run([*TRAIN, "--drop", "age, id", "--quiet"], capsys)
    model = dither.load("patients-run")
    other = table.assign(age=0)
    np.testing.assert_array_equal(model.predict_proba(table), model.predict_proba(other))
    assert model.predict_proba(table.drop(columns="age")).shape == (RECORDS, 2)


@pytest.mark.parametrize("shared", [False, True])
def test_of_training_and_evaluation_on_a_split_the_larger_cost_counts(
    shared: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [*TRAIN, "--epsilon", "2", "--holdout", "0.2", "--evaluate-epsilon", "1.5"]
    out = run([*argv, *(["--ledger", "all.sqlite"] if shared else [])], capsys)
    evaluation = Evaluation.from_json(Path("patients-run/evaluation.json").read_text("utf-8"))
    model = dither.load("patients-run")
    assert str(evaluation) in out
    assert evaluation.classes == ("yes", "no")  # the last one that is declared is the positive one
    assert evaluation.privacy.delta == model.privacy.delta
    assert model.plan_.dataset_size == 320
    assert "n = 320, counted in the data" in model.privacy_statement()
    ledger = Ledger("all.sqlite" if shared else "patients-run", create=False)
    runs = {run.entry.part: run.entry for run in ledger.runs.values()}
    assert {*runs} == {"training", "holdout"}
    assert runs["training"].split == runs["holdout"].split
    assert runs["holdout"].epsilon == pytest.approx(1.5, rel=0.01)
    total = ledger.total(model.privacy.delta).epsilon
    assert total == max(model.privacy.epsilon, evaluation.privacy.epsilon)
    assert f"the larger of both costs counts: ε = {total:.4g}" in out
    assert run_report("patients-run").claim.bound.epsilon == total  # type: ignore[union-attr]
    # Another draw is another split: it adds up.
    run([*argv, "--ledger", str(ledger.path), "--run-dir", "again", "--quiet"], capsys)
    assert ledger.total(model.privacy.delta).epsilon > 2.0


def test_an_evaluation_that_costs_more_than_the_training_is_what_is_claimed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = [*TRAIN, "--epsilon", "0.3", "--holdout", "0.2", "--evaluate-epsilon", "2"]
    out = run([*argv, "--quiet"], capsys)
    evaluation = Evaluation.from_json(Path("patients-run/evaluation.json").read_text("utf-8"))
    assert f"(ε = {rounded(evaluation.privacy.epsilon, 4)}, " in out
    assert "training ε = 0.3, evaluation ε = 2" in out
    run(["report", "patients-run", "-o", "report.json"], capsys)
    report = json.loads(Path("report.json").read_text(encoding="utf-8"))
    assert report["headline"]["title"].startswith("At most ε = 2 at")
    assert "Training costs ε = 0.3 at" in report["odds"]["text"]["Evaluation"]
    assert report["claim"]["bound"]["epsilon"] == evaluation.privacy.epsilon
    assert report["reading"].startswith("An ε of 2 ")


def test_the_parts_of_a_split_are_all_records(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], table: pd.DataFrame
) -> None:
    seen: dict[str, list[str]] = {}
    write_schema({**COLUMNS, "id": {"kind": "text"}}, CLASSES)
    original = dither.Schema.encode

    def encode(self: dither.Schema, frame: pd.DataFrame, **settings: Any) -> Any:
        seen[str(len(seen))] = frame["id"].tolist()
        return original(self, frame, **settings)

    monkeypatch.setattr(dither.Schema, "encode", encode)
    run([*TRAIN, "--holdout", "0.5", "--evaluate-epsilon", "1", "--quiet"], capsys)
    training, holdout = seen.values()
    assert sorted([*training, *holdout]) == table["id"].tolist()
    # 200 ± 10: six standard deviations.
    assert 140 <= len(holdout) <= 260


def test_a_cap_is_checked_before_training(capsys: pytest.CaptureFixture[str]) -> None:
    Ledger("all.sqlite").cap(1.0, 1e-4)
    line = error_line([*TRAIN, "--epsilon", "2", "--ledger", "all.sqlite", "--quiet"], capsys)
    assert "above the cap of ε = 1" in line
    assert not Path("patients-run").exists()
    assert Ledger("all.sqlite").total(1e-4).epsilon == 0.0


def test_a_seeded_run_repeats_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*TRAIN, "--seed", "7", "--holdout", "0.2", "--evaluate-epsilon", "1", "--json"]
    one, two = (json.loads(run([*argv, "--run-dir", name], capsys)) for name in ("one", "two"))
    names = [each["evaluation"].pop("run") for each in (one, two)]
    assert names == [[*Ledger(name).runs][-1] for name in ("one", "two")]
    assert {**one, "run_dir": ""} == {**two, "run_dir": ""}
    assert "SEEDED with 7:" in one["statement"]
    assert one["evaluation"]["is_seeded"]


def test_of_private_data_nothing_is_printed_but_what_is_public(
    table: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for k, frame in enumerate((table, table[:210].assign(age=3, sex="m", ill="no"))):
        frame.to_csv("patients.csv", index=False)
        argv = [*TRAIN, "--dataset-size", "300", "--json"]
        said.append(json.loads(run([*argv, "--run-dir", f"run{k}"], capsys)))
        kept = [Path(f"run{k}", name).read_text("utf-8") for name in ("plan.json", "result.json")]
        said[k] |= {"kept": kept, "run_dir": ""}
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--optimizer adam", "optimizer must not be given for a table, got 'adam' for 'patients."),
        ("--resume", "resume must not be given for a table, got True"),
        ("--canaries 200", "canaries must not be given for a table, got 200"),
        ("--classes a,b", "classes must not be given for a table, got 'a,b'"),
        ("--sampling fixed", "sampling must not be given for a table, got 'fixed'"),
        ("--compute 10 --epsilon 3", "compute must not be given for the model 'gam', got 10"),
        ("--model cnn", "model must be one of auto, gam, linear, mlp, got 'cnn'"),
        ("--model mine:make", "model must be one of auto, gam, linear, mlp, got 'mine:make'"),
        ("--holdout 0.1", "holdout needs --evaluate-epsilon, got 0.1 alone"),
        ("--evaluate-epsilon 1", "evaluate_epsilon needs --holdout, got 1 alone"),
        ("--holdout 1 --evaluate-epsilon 1", "holdout must be strictly between 0 and 1, got 1"),
        ("--holdout 0.1 --evaluate-epsilon 0", "evaluate_epsilon must be a positive, finite"),
        ("--drop ill", "drop must be columns of the schema, id, age, sex, got 'ill'"),
        ("--drop age,sex", "columns must have at least one column that is not ignored"),
        ("--seed -1", "seed must be from 0 to 4294967295 for a table, got -1"),
        ("--batch-size 401", "batch_size must be at most dataset_size = 400, got 401"),
        ("--data none.csv", "table must be a file that exists, got 'none.csv'"),
        ("--schema none.toml", "none.toml"),
        ("--schema draft.toml", "confirmed"),
        ("--schema plain.json", "schema must have a target to train on, got none in 'plain.json'"),
        ("--public-test patients.csv", "public_test must be another file than the private data"),
        ("--public-test none.csv", "table must be a file that exists, got 'none.csv'"),
        ("--run-dir .", "run_dir must be new or empty, got '.': give another with --run-dir"),
        ("--run-dir schema.json", "run_dir must be new or empty, got 'schema.json'"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    options: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    Path("draft.toml").write_text(
        "confirmed = false\n[columns.age]\nkind = 'yes/no'\n", encoding="utf-8"
    )
    Path("plain.json").write_text(json.dumps({"confirmed": True, "columns": COLUMNS}), "utf-8")
    before = {path.name for path in tmp_path.iterdir()}
    assert message in error_line([*TRAIN, "--quiet", *options.split()], capsys)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_cells_of_the_target_are_private_and_checked_before_training(
    table: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    table.assign(ill="SECRET").to_csv("patients.csv", index=False)
    for more in ([], ["--holdout", "0.5", "--evaluate-epsilon", "1"]):
        line = error_line([*TRAIN, "--ledger", "all.sqlite", "--quiet", *more], capsys)
        assert "ill" in line
        assert "'yes', 'no'; some" in line
        assert "drop or correct those rows first" in line
        assert "SECRET" not in line
    assert not Path("patients-run").exists()
    assert not Path("all.sqlite").exists() or not Ledger("all.sqlite").runs


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "patients.csv", "-o", "there.csv"], "output must be a new file, got 'there.csv'"),
        (["run", "patients.csv", "-o", "scores.txt"], "output must end in one of .csv, .parquet"),
        (["run", "patients.csv", "-o", "no/scores.csv"], "output must be in an existing directory"),
        (["run", "there.csv"], "table must have every column of the schema, but has no 'age'"),
        (["run", "none.csv"], "table must be a file that exists, got 'none.csv'"),
        (
            ["run", "patients.csv", "--id", "name"],
            "--id must be a column of 'patients.csv', got 'name'",
        ),
        (["run", "patients.csv", "--id", "prediction"], "id must be no column of the predictions"),
        (["none", "patients.csv"], "must be a run directory with model.json, got 'none'"),
        (["digits", "patients.csv"], "run_dir must have a schema to predict from a table"),
        (
            ["digits", "wide.npz"],
            "must have the shape of the training records, (1, 8, 8), got (3,)",
        ),
    ],
)
def test_bad_predictions_are_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run([*TRAIN, "--run-dir", "run", "--quiet"], capsys)
    if "digits" in argv:
        run(["train", "--steps", "1", "--run-dir", "digits", "--quiet"], capsys)
    Path("there.csv").write_text("sex\nf\n", encoding="utf-8")
    np.savez("wide.npz", x=np.zeros((2, 3)))
    assert message in error_line(["predict", *argv], capsys)
    assert Path("there.csv").read_text("utf-8") == "sex\nf\n"


def test_an_output_is_overwritten_by_force(capsys: pytest.CaptureFixture[str]) -> None:
    run([*TRAIN, "--run-dir", "run", "--quiet"], capsys)
    Path("there.csv").write_text("mine", encoding="utf-8")
    run(["predict", "run", "patients.csv", "-o", "there.csv", "--force"], capsys)
    assert Path("there.csv").read_text("utf-8").startswith("prediction,")


def test_images_are_predicted_from_arrays(capsys: pytest.CaptureFixture[str]) -> None:
    run(["train", "--steps", "3", "--model", "linear", "--run-dir", "run", "--quiet"], capsys)
    test = dither.data.load("digits").test
    assert test is not None
    np.savez("new.npz", x=test.inputs.numpy())
    run(["predict", "run", "new.npz", "-o", "scores.csv"], capsys)
    scores = pd.read_csv("scores.csv", dtype={"prediction": str})
    assert scores["prediction"].tolist() == dither.load("run").predict(test.inputs).tolist()
    np.testing.assert_allclose(scores.iloc[:, 1:].sum(axis=1), 1.0, rtol=1e-6)


def test_the_report_has_what_the_run_says(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*TRAIN, "--holdout", "0.2", "--evaluate-epsilon", "1", "--purpose", "plan beds"]
    run([*argv, "--quiet"], capsys)
    run(["report", "patients-run", "-o", "report.json"], capsys)
    report = json.loads(Path("report.json").read_text("utf-8"))
    assert report["claim"]["verdict"] == "proven"
    assert (report["data"], report["purpose"]) == ("patients.csv", "plan beds")
    assert report["evaluation"]["epsilon"] <= 1.0
    assert report["warnings"] == []


def test_adult_from_the_file_to_the_scores(capsys: pytest.CaptureFixture[str]) -> None:
    """The defaults of the command line on a real table: 32,561 records at ε = 1."""
    train, test = (DATA / f"adult/{part}.csv.gz" for part in ("train", "test"))
    schema = ROOT / "benchmarks/schemas/adult.toml"
    argv = ["train", "--data", str(train), "--schema", str(schema), "--epsilon", "1", "--quiet"]
    assert "the model is in train-run" in run(argv, capsys)
    run(["predict", "train-run", str(test), "-o", "scores.csv"], capsys)
    truth = pd.read_csv(test)["income"]
    assert roc_auc_score(truth == ">50K", pd.read_csv("scores.csv")["p_>50K"]) >= 0.9
