"""What is claimed of a run directory: never below the ledger, and nothing if files disagree."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.reports.run_directories import edit, reactive, text_of, trained
from tests.training.loops import noisy_plan, quiet_plan

from dither.reports import RunReport, run_report
from dither.reports.render import to_html
from dither.reports.text import headline, odds, reading
from dither.schedules import UnsafeRawAdaGradNorm

AUDIT: dict[str, Any] = {
    "time": "2026-01-01T00:00:00+00:00", "attack": "white-box", "steps": "6 of 6",
    "claimed": {"epsilon": 1.3, "delta": 1e-3}, "lower": 0.5, "confidence": 0.95,
    "is_violated": False, "verdict": "Not refuted.",
    "curves": {"false_positives": [0.0, 1.0], "true_positives": [0.0, 1.0], "allowed": None},
}  # fmt: skip


def check_not_confirmed(report: RunReport, words: str) -> None:
    """Assert that no ε is reported, and that a warning gives the reason."""
    assert report.claim.verdict == "not confirmed"
    assert report.claim.bound is None
    assert report.statement == []
    assert any(words in warning for warning in report.warnings), report.warnings
    assert "differentially private" not in text_of(report)


def epsilon(report: RunReport) -> float:
    assert report.claim.bound is not None
    return report.claim.bound.epsilon


def test_without_noise_there_is_no_privacy(tmp_path: Path) -> None:
    trained(tmp_path / "run", quiet_plan())
    report = run_report(tmp_path / "run")
    assert report.claim.verdict == "no privacy"
    assert headline(report)[1] == "NO privacy guarantee (ε = ∞): no noise was added."
    text = text_of(report)
    assert "differentially private" not in text
    assert "guesses" not in text


def test_raw_step_sizes_have_no_privacy(tmp_path: Path) -> None:
    trained(tmp_path / "run", reactive(UnsafeRawAdaGradNorm(b0_squared=4.0, nu=0.01)))
    report = run_report(tmp_path / "run")
    assert report.claim.verdict == "no privacy"
    assert "depend on gradients without noise" in headline(report)[1]
    assert "differentially private" not in text_of(report)


def test_a_seeded_run_is_not_proven(tmp_path: Path) -> None:
    trained(tmp_path / "run", seed=3, derived_from_private_data=("the set of classes",))
    report = run_report(tmp_path / "run")
    assert report.claim.verdict == "seeded"
    assert not report.claim.is_guarantee
    assert headline(report)[0].startswith("SEEDED: ")
    assert report.statement[0].startswith("NOT PROVEN: the set of classes was derived from")
    assert odds(report) == []
    edit(tmp_path / "run" / "result.json", seed=None)
    assert run_report(tmp_path / "run").claim.verdict == "seeded"


@pytest.mark.parametrize(("derived", "remedy"), [
    (("the set of classes",), "--classes A,B,…"),
    (("the number of records", "the set of classes"), "--dataset-size N"),
    (("bounds of columns",), "bounds in the schema"),
    (("a vocabulary",), "public knowledge"),
])  # fmt: skip
def test_what_was_derived_is_a_condition_that_is_said_once(
    tmp_path: Path, derived: tuple[str, ...], remedy: str
) -> None:
    trained(tmp_path / "run", derived_from_private_data=derived)
    report = run_report(tmp_path / "run")
    assert report.claim.verdict == "conditional"
    title, text = headline(report)
    assert title.startswith(f"NOT PROVEN: {'; '.join(derived)} ")
    assert remedy in text
    page = to_html(report)
    assert page.count("NOT PROVEN") == 1
    assert "differentially private" not in page
    # Every number below the claim is under its condition.
    assert "As odds, if that is public" in page
    assert reading(report).startswith("If that is public: an ε of ")
    is_listed = "the set of classes" in page.replace(title, "")
    assert is_listed == ("the set of classes" not in derived)
    assert report.statement[0].startswith("NOT PROVEN: ")


@pytest.mark.parametrize("name", ["run.json", "result.json"])
def test_each_file_may_name_what_was_derived(copy: Path, name: str) -> None:
    edit(copy / name, derived_from_private_data=["the set of classes"])
    report = run_report(copy)
    assert report.claim.verdict == "conditional"
    assert report.derived_from_private_data == ("the set of classes",)


def test_an_estimate_is_not_proven(copy: Path) -> None:
    edit(copy / "result.json", is_upper_bound=False, lower=None)
    report = run_report(copy)
    assert report.claim.verdict == "estimate"
    assert not report.claim.is_guarantee
    text = text_of(report)
    assert text.count("NOT PROVEN") == 1
    assert "NOT PROVEN: about ε = " in text
    assert "differentially private" not in text
    assert "guesses" not in text


@pytest.mark.parametrize("factor", [0.5, 1.0 - 1e-9, 2.0])
def test_the_larger_of_result_and_ledger_is_reported(copy: Path, factor: float) -> None:
    before = epsilon(run_report(copy))
    edit(copy / "result.json", epsilon=before * factor, lower=None)
    report = run_report(copy)
    assert epsilon(report) == before * max(1.0, factor)
    assert bool(report.warnings) == (factor == 0.5)


@pytest.mark.parametrize(("change", "words"), [
    ({"steps": 7}, "result.json has 7 steps, but the ledger only 6"),
    ({"adjacency": "replace-one"}, "differ in δ or in the adjacency"),
    ({"delta": 0.01}, "differ in δ or in the adjacency"),
    ({"plan": "0" * 64}, "result.json is of a plan that the ledger does not have"),
])  # fmt: skip
def test_a_result_of_another_run_is_not_confirmed(
    copy: Path, change: dict[str, Any], words: str
) -> None:
    edit(copy / "result.json", **change)
    check_not_confirmed(run_report(copy), words)


def test_a_run_does_not_get_the_epsilon_of_another(tmp_path: Path) -> None:
    shared, noisy, careful = tmp_path / "all.sqlite", tmp_path / "noisy", tmp_path / "careful"
    trained(noisy, noisy_plan(z=0.6), ledger=shared)
    trained(careful, noisy_plan(z=8.0), ledger=shared)
    name = json.loads((careful / "run.json").read_text(encoding="utf-8"))["run"]
    edit(noisy / "run.json", run=name)
    check_not_confirmed(run_report(noisy), "plan.json is not the plan")
    (noisy / "plan.json").unlink()
    check_not_confirmed(run_report(noisy), "result.json is of a plan")
    (noisy / "result.json").unlink()
    check_not_confirmed(run_report(noisy), "Neither plan.json nor result.json")


@pytest.mark.parametrize("name", ["ledger.sqlite", "ledger.sqlite.mark", "run.json"])
def test_without_a_ledger_that_has_the_run_no_epsilon_is_reported(copy: Path, name: str) -> None:
    (copy / name).unlink()
    report = run_report(copy)
    check_not_confirmed(report, "")
    title, text = headline(report)
    assert title == "Not confirmed: no ε is reported"
    assert "which nothing confirms" in text
    assert str(copy) not in " ".join(report.warnings)


def test_a_damaged_ledger_confirms_nothing(copy: Path) -> None:
    content = bytearray((copy / "ledger.sqlite").read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    (copy / "ledger.sqlite").write_bytes(bytes(content))
    check_not_confirmed(run_report(copy), "The ledger is damaged")


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe", b'{"steps": "many"}'])
@pytest.mark.parametrize("name", ["plan.json", "result.json", "canaries.json"])
def test_a_damaged_file_is_one_warning_and_the_rest_is_used(
    copy: Path, finished: Path, name: str, content: bytes
) -> None:
    (copy / name).write_bytes(content)
    report = run_report(copy)
    assert f"{name} is damaged, and is not used." in report.warnings
    assert epsilon(report) == pytest.approx(epsilon(run_report(finished)), rel=1e-9)


def test_an_audit_that_cannot_be_read_may_have_refuted_the_claim(copy: Path) -> None:
    (copy / "audit.json").write_bytes(b"{")
    check_not_confirmed(run_report(copy), "audit.json is damaged")


def test_a_damaged_reactive_plan_is_one_warning(adaptive: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(adaptive, tmp_path / "copy"))
    text = (directory / "plan.json").read_text(encoding="utf-8")
    (directory / "plan.json").write_text(text[:-20], encoding="utf-8")
    report = run_report(directory)
    assert report.plan_text is None
    assert report.warnings == ("plan.json is damaged, and is not used.",)


def test_an_incomplete_last_line_of_the_history_is_left_out(copy: Path) -> None:
    lines = (copy / "history.jsonl").read_text(encoding="utf-8").splitlines()
    (copy / "history.jsonl").write_text("\n".join([*lines, '{"step": 9, "eps']), encoding="utf-8")
    assert run_report(copy).warnings == ()
    (copy / "history.jsonl").write_text("\n".join(["?", *lines]), encoding="utf-8")
    report = run_report(copy)
    assert report.warnings == ("history.jsonl is damaged in line 1, which is left out.",)
    assert len(report.history) == len(lines)


def test_an_audit_that_refutes_comes_first(copy: Path) -> None:
    refuting = {**AUDIT, "lower": 4.0, "is_violated": True, "verdict": "VIOLATED: it is."}
    for audits, verdict in (([AUDIT], "proven"), ([refuting, AUDIT], "refuted")):
        (copy / "audit.json").write_text(json.dumps({"audits": audits}), encoding="utf-8")
        report = run_report(copy)
        assert report.claim.verdict == verdict
        assert report.claim.is_guarantee == (verdict == "proven")
    assert "An audit has refuted the claim" in report.warnings[0]
    assert headline(report)[0].startswith("REFUTED: ")
    text = text_of(report)
    assert "guesses" not in text
    assert "'REFUTED'" in text


def test_a_bound_that_is_not_a_number_is_damage(copy: Path) -> None:
    edit(copy / "result.json", epsilon=math.nan)
    assert "result.json is damaged, and is not used." in run_report(copy).warnings


@pytest.mark.parametrize("kind", ["missing", "file", "empty"])
def test_another_directory_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "file":
        path.write_text("text", encoding="utf-8")
    if kind == "empty":
        path.mkdir()
    with pytest.raises(ValueError, match="run_dir must be a run directory"):
        run_report(path)
