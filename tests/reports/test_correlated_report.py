"""Reports and ledgers of runs with correlated noise, which are charged by cycles."""

from pathlib import Path

import numpy as np
import pytest
from tests.reports.run_directories import text_of, trained
from tests.reports.test_run_report import interrupted
from tests.training.loops import data, model, noisy_plan

import dither
from dither import Plan
from dither.cli import main
from dither.ledger import Ledger
from dither.ledger.entries import RunEntry, from_text, to_text
from dither.reports import run_report, statement
from dither.reports.charts import Chart
from dither.reports.document import what_of
from dither.reports.report import Cycles, RunReport
from dither.training.statement import paragraphs

THETA = (1.0, 0.5, 0.2)


def correlated_plan() -> Plan:
    """Eight steps in three cycles: the last is shorter."""
    z = [1.0, 1.0, 1.0, 1.5, 1.5, 1.5, 2.0, 2.0]
    return Plan.from_noise_multipliers(
        z, delta=1e-3, dataset_size=noisy_plan().dataset_size, batch_size=12, correlation=THETA
    )


def chart_of(report: RunReport, key: str) -> Chart:
    return next(chart for chart in report.charts if chart.key == key)


def test_the_report_says_what_was_done(tmp_path: Path) -> None:
    result = trained(tmp_path / "run", correlated_plan())
    report = run_report(tmp_path / "run")
    assert report.warnings == ()
    assert report.claim.verdict == "proven"
    assert report.claim.bound == result.bound
    assert result.bound.sampling == "cyclic"
    assert (report.state, report.spent_steps, report.planned_steps) == ("ended", 8, 8)
    assert report.cycles == Cycles(bands=3, spent=3, planned=3)
    assert report.facts is not None
    assert " ".join(paragraphs(report.facts)) == " ".join(statement(result).split())
    assert "cyclic Poisson sampling. Charged: 3 of 3 cycles of 3 steps." in repr(what_of(report))
    text = text_of(report)
    assert "'Cycles recorded in the ledger', '3 of 3 cycles of 3 steps'" in text
    assert "early" not in text
    noise, spending = chart_of(report, "noise"), chart_of(report, "spending")
    assert noise.title == "Noise per step, correlated within 3 steps"
    [line] = noise.series
    assert line.y == tuple(correlated_plan().noise_multipliers)
    assert (spending.series[0].x[-1], spending.series[0].y[-1]) == (8.0, result.bound.epsilon)


def test_independent_noise_has_no_cycles(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    report = run_report(tmp_path / "run")
    assert report.cycles is None
    assert "Noise" not in dict(what_of(report).rows)
    assert "ycle" not in text_of(report)


def test_a_cycle_that_was_begun_is_charged(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", correlated_plan(), after=4)
    report = run_report(tmp_path / "run")
    assert report.state == "open"
    assert report.cycles == Cycles(bands=3, spent=2, planned=3)
    assert report.spent_steps == 6
    assert report.claim.bound is not None
    assert report.claim.bound.epsilon == pytest.approx(correlated_plan().bound.epsilon, rel=1e-6)
    assert chart_of(report, "noise").series[0].y == (1.0, 1.0, 1.0, 1.5, 1.5, 1.5)


@pytest.mark.filterwarnings("ignore:.*steps were charged in whole cycles")
def test_a_run_that_lost_a_part_of_a_cycle(tmp_path: Path) -> None:
    plan = correlated_plan()
    interrupted(tmp_path / "run", plan, after=5)
    run = dither.Run(tmp_path / "run", resume=True)
    result = dither.train(model(), data(), plan, run=run, progress=False, every=1)
    report = run_report(tmp_path / "run")
    assert report.warnings == ()
    assert report.claim.verdict == "proven"
    assert report.claim.bound is not None
    assert result.bound.epsilon <= report.claim.bound.epsilon <= plan.bound.epsilon * (1 + 1e-6)
    assert report.cycles is not None
    assert report.cycles.spent == report.cycles.planned
    assert len(report.fingerprints) == 2
    assert report.facts is not None
    assert (report.facts.steps, report.facts.charges) == (8, report.cycles.spent)
    lost = report.cycles.spent - 3
    assert f"'Cycles lost', '{lost} after a crash" in text_of(report)
    assert "Steps lost" not in text_of(report)
    assert np.isfinite(chart_of(report, "noise").series[0].y).all()


def test_a_result_with_more_steps_than_were_charged_is_not_confirmed(tmp_path: Path) -> None:
    trained(tmp_path / "run", correlated_plan())
    path = tmp_path / "run" / "result.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"steps": 8', '"steps": 9'), encoding="utf-8")
    report = run_report(tmp_path / "run")
    assert report.claim.verdict == "not confirmed"
    assert "has 9 steps, but the ledger only 8" in report.warnings[0]


def test_the_ledger_counts_cycles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    plan, path = correlated_plan(), tmp_path / "all.sqlite"
    trained(tmp_path / "one", plan, ledger=path)
    trained(tmp_path / "two", ledger=path)
    ledger = Ledger(path)
    first, second = ledger.summary(1e-3)["runs"]
    assert (first["bands"], first["spent"], first["planned"]) == (3, 3, 3)
    assert (second["bands"], second["spent"], second["planned"]) == (1, 6, 6)
    assert first["epsilon"] == plan.bound.epsilon
    names = [*ledger.runs]
    assert ledger.total_of(names[0], delta=1e-3) == plan.bound
    assert ledger.total_of(names[1], delta=1e-3).sampling == "poisson"
    assert ledger.total(1e-3).sampling == "cyclic and poisson"
    ledger.close()
    assert main(["ledger", "show", str(path)]) == 0
    out = capsys.readouterr().out
    assert "3 of 3 cycles of 3 steps" in out
    assert "6 of 6 " in out


def test_entries_without_bands_are_what_they_were(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.register(noisy_plan(), name="steps").end()
    ledger.register(correlated_plan(), name="cycles").end()
    runs = [entry for entry in ledger.entries if isinstance(entry, RunEntry)]
    ledger.close()
    kind, text = to_text(runs[0])
    assert "bands" not in text
    assert from_text(kind, 1, text) == runs[0]
    assert '"bands": 3' in to_text(runs[1])[1]
    assert runs[1].sample_rate == pytest.approx(3 * runs[0].sample_rate)
