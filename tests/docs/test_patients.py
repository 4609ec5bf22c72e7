"""The page of the patient table runs as a reader does it: from top to bottom."""

import json
import shlex
from pathlib import Path

import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score
from tests.docs.pages import DOCS, blocks_of

from dither import Schema, cli
from dither.evaluation import Evaluation

PAGE = DOCS / "start/patients.md"


def test_the_page_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__page__"}
    said = ""
    for block in blocks_of(PAGE):
        if block.language == "python":
            exec(compile(block.text, str(PAGE), "exec"), namespace)  # noqa: S102 - our own page
        elif block.language == "console":
            capsys.readouterr()
            for line in block.text.replace("\\\n", " ").splitlines():
                program, *arguments = shlex.split(line)
                assert program == "dither"
                assert cli.main(arguments) == 0
            said = capsys.readouterr().out
        elif block.options == "" and "P000000" not in block.text:  # what the commands above say
            for line in block.text.splitlines():
                assert line == "…" or line in said.splitlines(), line
    table = pd.read_csv("patients.csv")
    assert (table["readmitted"] == "yes").mean() == pytest.approx(0.086, abs=0.001)
    Schema.load("schema.toml").encode_target("patients.csv")
    evaluation = Evaluation.from_json(Path("patients-run/evaluation.json").read_text("utf-8"))
    assert evaluation.log_loss is not None
    assert evaluation.base_log_loss is not None
    assert Path("patients-run/report.html").stat().st_size > 10_000
    # New patients, of whom only the page's own function knows the truth.
    scores = pd.read_csv("scores.csv")
    assert [*scores] == ["patient_id", "prediction", "p_no", "p_yes"]
    truth = namespace["patients"](1_000, seed=1)["readmitted"] == "yes"  # type: ignore[operator]
    assert roc_auc_score(truth, scores["p_yes"]) > 0.7
    about = json.loads(Path("patients-run/run.json").read_text("utf-8"))
    assert about["purpose"] == "Offer help after discharge"
