"""Statement and report of runs that protect users."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.reports.run_directories import reactive, text_of, trained
from tests.training.loops import RECORDS, noisy_plan
from torch import Tensor
from torch.nn import functional

from dither.planning import Plan, ReactivePlan
from dither.reports import run_report, statement
from dither.reports.render import to_json
from dither.schedules import AdaGradNorm
from dither.training import TrainResult

USERS = [place % 60 for place in range(RECORDS)]
_RECORD = re.compile(r"\brecords?\b")


def statement_of(plan: Plan | ReactivePlan, **facts: Any) -> str:
    """Return the statement of a run along a plan, on one line."""
    result = TrainResult(torch.nn.Linear(1, 1), plan, plan.bound, plan.steps, (), None, **facts)
    return " ".join(statement(result).split())


@pytest.mark.parametrize("settings", [{}, {"sampling": "fixed"}, {"batch_size": RECORDS}])
def test_a_statement_for_users_is_that_for_records_with_their_rows(
    settings: dict[str, Any],
) -> None:
    plan = noisy_plan(**settings)
    of_records, of_users = statement_of(plan), statement_of(plan.for_users(4))
    assert "user" not in of_records
    assert "one user" in of_users
    assert f"the number of users, n = {RECORDS:,};" in of_users
    assert "at most 4 rows take part" in of_users
    assert "protects its user alone" in of_users
    assert "Rows without an id" in of_users
    without_shape = of_users.replace("the shape of a record", "")
    assert not _RECORD.search(without_shape)


def test_weights_depend_on_the_rows_of_a_user() -> None:
    text = statement_of(noisy_plan().for_users(4), is_weighted=True)
    assert "on the rows of its user and public numbers alone" in text


def test_without_noise_nobody_is_said_to_be_protected() -> None:
    plan = Plan.unsafe_without_noise(steps=2, dataset_size=10, batch_size=5).for_users(3)
    assert "protected" not in statement_of(plan)


@pytest.mark.parametrize("is_reactive", [False, True])
def test_a_report_says_user(tmp_path: Path, is_reactive: bool) -> None:
    plan = reactive(AdaGradNorm(b0_squared=4.0, nu=0.01)) if is_reactive else noisy_plan()
    trained(tmp_path / "run", plan, users=USERS, rows_per_user=2)
    report = run_report(tmp_path / "run")
    assert report.claim.verdict == "proven"
    assert report.warnings == ()
    assert report.unit == "user"
    content = json.loads(to_json(report))
    assert content["unit"] == "user"
    assert content["rows_per_user"] == 2
    assert content["claim"]["bound"]["unit"] == "user"
    text = text_of(report)
    assert "for each user" in text
    assert f"{RECORDS:,} users, at most 2 rows of each" in text
    sentences = [
        *content["odds"]["text"].values(),
        content["reading"],
        *content["headline"].values(),
    ]
    assert not any(_RECORD.search(each) for each in sentences)
    assert "Several rows of a person" not in content["not_covered"]
    assert "protects its user alone" in content["not_covered"]["Rows about several people"]


class InterruptedRunError(Exception):
    """Stands for the end of a process."""


def test_an_open_run_protects_users(tmp_path: Path) -> None:
    calls = iter(range(4))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if next(calls, None) is None:
            raise InterruptedRunError
        return functional.cross_entropy(outputs, targets, reduction="none")

    with pytest.raises(InterruptedRunError):
        trained(tmp_path / "run", users=USERS, rows_per_user=2, loss=loss)
    report = run_report(tmp_path / "run")
    assert report.state == "open"
    assert report.unit == "user"
    assert report.claim.spent is not None
    assert report.claim.spent.unit == "user"
    assert "for each user" in text_of(report)


def test_an_evaluation_for_records_adds_nothing_to_a_claim_for_users(tmp_path: Path) -> None:
    trained(tmp_path / "run", users=USERS)
    content = {"privacy": {"epsilon": 0.5, "delta": 1e-5, "unit": "record"}}
    (tmp_path / "run/evaluation.json").write_text(json.dumps(content), encoding="utf-8")
    report = run_report(tmp_path / "run")
    assert report.claim.verdict == "not confirmed"
    assert any("protects users, but the evaluation records" in each for each in report.warnings)
    content["privacy"]["unit"] = "user"
    (tmp_path / "run/evaluation.json").write_text(json.dumps(content), encoding="utf-8")
    assert run_report(tmp_path / "run").claim.evaluated == "added"
