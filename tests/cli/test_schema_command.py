import json
import re
from pathlib import Path

import pytest
from tests.cli.errors import error_line

from dither.cli import main
from dither.data import directory
from dither.schema import Schema
from dither.validate import InvalidValueError

ADULT = directory() / "adult" / "train.csv.gz"
TABLE = "id,age,sex,born,ill\n1,61,f,1960-01-02,no\n2,,m,1971-03-04,yes\n3,45,f,1980-05-06,no\n"
SCHEMA = """
confirmed = true
target = { column = "ill", classes = ["no", "yes"] }
[columns]
id = { kind = "ignored" }
age = { kind = "number", bounds = [0, 120] }
dose = { kind = "number", bounds = [0, 10] }
sex = { kind = "category", values = ["f", "m"] }
smoker = { kind = "yes/no" }
height = { kind = "number", bounds = [0, 250] }
"""
CENSUS = {
    "age": [0, 100], "fnlwgt": [0, 2_000_000], "education_num": [1, 16],
    "capital_gain": [0, 100_000], "capital_loss": [0, 5_000], "hours_per_week": [0, 100],
}  # fmt: skip


@pytest.fixture
def patients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "patients.csv").write_text(TABLE, encoding="utf-8")
    return tmp_path


def test_a_draft_is_written_and_the_next_steps_are_three_lines(
    patients: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schema", "patients.csv"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 3
    assert "fill in the 3 lines" in out
    text = (patients / "schema.toml").read_text(encoding="utf-8")
    with pytest.raises(InvalidValueError, match="classes of target, bounds of column 'age', val"):
        Schema.load(patients / "schema.toml")
    text = text.replace('classes = "?"', 'classes = ["no", "yes"]')
    text = text.replace('bounds = ["?", "?"]', "bounds = [0, 120]")
    (patients / "schema.toml").write_text(text.replace('values = "?"', 'values = ["f", "m"]'))
    with pytest.raises(InvalidValueError, match="confirmed must be true, got False"):
        Schema.load(patients / "schema.toml")
    confirmed = (
        (patients / "schema.toml").read_text().replace("confirmed = false", "confirmed = true")
    )
    (patients / "schema.toml").write_text(confirmed)
    schema = Schema.load(patients / "schema.toml")
    assert schema.encode("patients.csv").shape == (3, 5)
    assert schema.encode_target("patients.csv").tolist() == ["no", "yes", "no"]


def test_as_json(patients: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["schema", "patients.csv", "--target", "sex", "-o", "draft.toml", "--fill", "--json"]
    assert main(argv) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["draft"] == "draft.toml"
    assert out["to_fill"] == []
    assert out["schema"]["target"] == {"column": "sex", "classes": ["f", "m"]}
    assert out["schema"]["columns"]["age"] == {"kind": "number", "bounds": [40, 70]}
    assert not out["schema"]["confirmed"]


@pytest.mark.skipif(not ADULT.exists(), reason="DITHER_DATA has no adult/")
def test_the_full_cycle_on_a_real_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "schema.toml"
    assert main(["schema", str(ADULT), "-o", str(path)]) == 0
    text = path.read_text(encoding="utf-8").replace("confirmed = false", "confirmed = true")
    text = text.replace('classes = "?"', 'classes = ["<=50K", ">50K"]')
    for name, bounds in CENSUS.items():
        pattern = rf'(\[columns\.{name}\]\n.*\nbounds = )\["\?", "\?"\]'
        text, found = re.subn(pattern, rf"\g<1>{bounds}", text)
        assert found == 1
    text = text.replace('values = "?"', 'values = ["Private", "Male", "United-States"]')
    path.write_text(text, encoding="utf-8")
    schema = Schema.load(path)
    assert len(schema.columns) == 14
    features = schema.encode(ADULT, numbers="spline")
    assert features.shape == (32_561, 6 * 17 + 8 * 5)
    assert (features.sum(axis=1) == 14.0).all()
    labels = schema.encode_target(ADULT)
    assert (labels == ">50K").sum() == 7_841  # as the set's description says: 24.08 %


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("nothing.csv", "table must be a file that exists, got 'nothing.csv'"),
        ("patients.xls", "table must be a file of .csv, .csv.gz, .parquet, got 'patients.xls'"),
        ("ragged.csv", "table 'ragged.csv' line 3 must have 2 cells, got 1"),
        ("patients.csv --target weight", "target must be one of age, born, id, ill, sex"),
        ("patients.csv -o old.toml", "output must be a new file, but 'old.toml' exists"),
        ("patients.csv -o draft.json", "output must end in one of .toml, got 'draft.json'"),
        ("patients.csv -o no/such/draft.toml", "output must be in an existing directory"),
    ],
)
def test_bad_input_is_one_line(
    argv: str, message: str, patients: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (patients / "ragged.csv").write_text("a,b\n1,2\n3\n", encoding="utf-8")
    (patients / "old.toml").write_text("mine", encoding="utf-8")
    assert message in error_line(["schema", *argv.split()], capsys)
    assert (patients / "old.toml").read_text(encoding="utf-8") == "mine"
    assert len([*patients.iterdir()]) == 3


def test_a_check_shows_what_a_schema_does_not_understand(
    patients: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = 'id,age,dose,sex,smoker,ill,ward\n1,,7,f,ja,no,a\n2,"61,5",3,F,nein,yes,b\n'
    (patients / "patients.csv").write_text(table + "3,45,9,x,yes,krank,a\n4,300,1,m,,no,a\n")
    (patients / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    argv = ["schema", "patients.csv", "--check", "schema.toml"]
    assert main([*argv, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["columns"] == {
        "age": {"missing": 0.25, "no number": 0.25, "out of bounds": 0.25},
        "dose": {"missing": 0.0, "no number": 0.0, "out of bounds": 0.0},
        "sex": {"missing": 0.0, "other": 0.5},
        "smoker": {"missing": 0.25, "other": 0.5},
        "ill": {"missing": 0.0, "other": 0.25},
    }
    assert found["marked"] == ["age", "smoker"]
    assert (found["absent"], found["unknown"]) == (["height"], ["ward"])
    assert main(argv) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert "private" in first
    assert "publish" in first
    assert [line.split()[1] for line in lines if line.startswith("CHECK")] == ["age", "smoker"]
    assert len([*patients.iterdir()]) == 2
