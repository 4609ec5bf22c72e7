"""What is reported of a run's folder: never better than the ledger, and nothing hidden."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.reports.folders import edit, public, reactive, trained
from tests.training.loops import RECORDS, data, model, noisy_plan, quiet_plan

import dither
from dither.ledger import Ledger
from dither.reports import RunReport, run_report, statement, to_html, to_json, to_markdown
from dither.reports.run.in_words import headline
from dither.schedules import AdaGradNorm, UnsafeRawAdaGradNorm
from dither.training.statement import paragraphs
from dither.types import SpentSoFar


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    trained(folder, evaluate=public(), averaging="ema")
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """A run that a test may damage."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def alarmed(report: RunReport, words: str) -> None:
    """Assert that an alarm has these words, and that every format shows it."""
    (found,) = [alarm for alarm in report.alarms if words in alarm]
    html, markdown, plain = to_html(report), to_markdown(report), json.loads(to_json(report))
    assert 'class="head bad"' in html
    assert html.count('role="alert"') == len(report.alarms)
    assert markdown.count("> **WARNING**") >= len(report.alarms)
    assert found in plain["alarms"]


def test_a_finished_run_says_what_the_run_itself_said(tmp_path: Path) -> None:
    result = trained(tmp_path / "run", evaluate=public(), averaging="ema")
    report = run_report(tmp_path / "run")
    assert report.claim.verdict == "proven"
    assert report.claim.bound == result.bound
    assert report.alarms == ()
    assert (report.state, report.paid_steps, report.recorded_steps) == ("ended", 6, 6)
    assert report.stated is not None
    said = " ".join(paragraphs(report.stated))
    assert said == " ".join(statement(result).split())
    assert report.metrics == result.metrics
    assert report.iterate_metrics == result.history[-1].iterate_metrics
    assert {chart.key for chart in report.charts} == {"noise", "reaching", "spending", "quality"}
    assert report.sessions[0]["versions"]["torch"] == torch.__version__
    assert report.plan_fingerprint == result.plan.fingerprint


def test_averaging_is_measured_with_and_without(tmp_path: Path) -> None:
    averaged = trained(tmp_path / "a", evaluate=public(), averaging="tail", seed=7)
    plain = trained(tmp_path / "b", evaluate=public(), seed=7)
    assert averaged.history[-1].iterate_metrics == plain.metrics
    assert averaged.metrics != plain.metrics
    assert plain.history[-1].iterate_metrics == {}
    reports = [run_report(tmp_path / name) for name in "ab"]
    assert [report.averaging for report in reports] == ["tail", "none"]
    lines = [
        next(chart for chart in report.charts if chart.key == "quality").series
        for report in reports
    ]
    assert [len(each) for each in lines] == [2, 1]
    assert lines[0][1].y == lines[1][0].y


def test_charts_are_the_plans_numbers(finished: Path) -> None:
    report = run_report(finished)
    charts = {chart.key: chart for chart in report.charts}
    plan = dither.Plan.from_json((finished / "plan.json").read_text(encoding="utf-8"))
    assert charts["noise"].series[0].y == tuple(plan.noise_multipliers.tolist())
    reaching = plan.stepsizes * plan.clip_norm * plan.noise_multipliers / plan.batch_size
    assert charts["reaching"].series[0].y == tuple(reaching.tolist())
    assert charts["spending"].series[0].y[-1] == plan.bound.epsilon
    assert charts["spending"].limit == ("budget of the plan", plan.bound.epsilon)
    for chart in report.charts:
        assert "(" in chart.x_name
        assert "(" in chart.y_name
        assert chart.words.endswith(".")


def test_folders_of_earlier_versions(copy: Path) -> None:
    """Before reports there were no sessions, no averaging and no metrics of iterates."""
    about = json.loads((copy / "run.json").read_text(encoding="utf-8"))
    kept = {key: about[key] for key in ("format", "run", "ledger", "folder")}
    (copy / "run.json").write_text(json.dumps(kept), encoding="utf-8")
    found = json.loads((copy / "result.json").read_text(encoding="utf-8"))
    for key in ("averaging", "iterate_metrics"):
        del found[key]
    (copy / "result.json").write_text(json.dumps(found), encoding="utf-8")
    rows = [
        json.loads(line)
        for line in (copy / "history.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    for row in rows:
        del row["iterate_metrics"]
    (copy / "history.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    report = run_report(copy)
    assert report.claim.verdict == "conditional"
    assert report.alarms == ()
    text = to_markdown(report)
    assert headline(report).title.startswith("NOT PROVEN unless public: at most ε = ")
    for words in (
        "NOT PROVEN: it is not recorded whether anything was read off the private data",
        "Whether the iterates were averaged is not recorded",
        "Versions of libraries are not recorded",
        "was read off the private data is not recorded",
    ):
        assert words in text


def test_without_noise_nothing_is_claimed(tmp_path: Path) -> None:
    trained(tmp_path / "run", quiet_plan(), evaluate=public())
    report = run_report(tmp_path / "run")
    assert report.claim.verdict == "nothing"
    assert headline(report).text == "This run claims NO privacy (ε = ∞): no noise was added."
    assert [chart.key for chart in report.charts] == ["quality"]
    for text in (to_html(report), to_markdown(report)):
        assert "differentially private" not in text
        assert "guesses right" not in text
    found = json.loads(to_json(report))
    assert found["claim"]["bound"]["epsilon"] is None
    assert found["odds"] is None


def test_raw_step_sizes_claim_nothing(tmp_path: Path) -> None:
    trained(tmp_path / "run", reactive(UnsafeRawAdaGradNorm(b0_squared=4.0, nu=0.01)))
    report = run_report(tmp_path / "run")
    assert report.claim.verdict == "nothing"
    assert "its step sizes follow the raw gradients" in headline(report).text
    assert "differentially private" not in to_markdown(report)


@pytest.mark.parametrize("noise", ["uniform", "filter"])
def test_step_sizes_that_react(tmp_path: Path, noise: str) -> None:
    result = trained(tmp_path / "run", reactive(AdaGradNorm(b0_squared=4.0, nu=0.01), noise))
    report = run_report(tmp_path / "run")
    assert report.claim.verdict == "proven"
    assert report.claim.bound == result.bound
    assert report.alarms == ()
    assert report.stated is not None
    assert " ".join(paragraphs(report.stated)) == " ".join(statement(result).split())
    reaching = next(chart for chart in report.charts if chart.key == "reaching")
    row = result.history[-1]
    assert reaching.series[0].y[-1] == pytest.approx(row.stepsize * row.noise_multiplier / 12)


def test_replacing_one_speaks_of_another_in_its_place(tmp_path: Path) -> None:
    trained(tmp_path / "run", noisy_plan(sampling="fixed"))
    text = to_markdown(run_report(tmp_path / "run"))
    assert "was it this record, or another given one in its place" in text
    assert "12 distinct records at random" in text
    assert "was this record in the data, or not" not in text
    assert "not been in the data" not in text


def test_a_seeded_run_protects_nobody_who_can_guess(tmp_path: Path) -> None:
    trained(tmp_path / "run", seed=3)
    report = run_report(tmp_path / "run")
    assert report.claim.verdict == "seeded"
    assert headline(report).title.startswith("SEEDED: ")
    assert "Nobody, from those who know or guess the seed" in to_markdown(report)
    assert json.loads(to_json(report))["odds"] is None
    assert 'class="head bad"' in to_html(report)
    edit(tmp_path / "run" / "result.json", seed=None)
    hidden = run_report(tmp_path / "run")
    assert hidden.claim.verdict == "seeded"
    alarmed(hidden, "differ in whether the run was seeded")


def test_what_was_read_off_the_data_is_told(tmp_path: Path) -> None:
    trained(
        tmp_path / "run", derived_from_private_data=("the number of records", "the set of classes")
    )
    report = run_report(tmp_path / "run")
    assert report.claim.verdict == "conditional"
    text = to_markdown(report)
    assert "the number of records and the set of classes were READ OFF the private data" in text
    said = "NOT PROVEN: the number of records was read off the private data; the set of classes was"
    assert f"> {said} read off the private data, which no noise protects." in text
    assert report.statement == json.loads(to_json(report))["statement"]
    assert report.statement[0].startswith(said)
    top = headline(report)
    assert top.title.startswith("NOT PROVEN unless public: at most ε = ")
    assert top.text.startswith("The number of records and the set of classes were READ OFF")


class Died(BaseException):
    """Like a kill."""


class Dying(torch.utils.data.Dataset[Any]):
    """Data that dies after some batches."""

    def __init__(self, batches: int) -> None:
        self._inputs, self._targets = data()
        self._left = batches

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Any:
        return self._inputs[index], self._targets[index]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self._left -= 1
        if self._left < 0:
            raise Died
        return [self[index] for index in indices]


def interrupted(folder: Path, plan: Any, after: int) -> None:
    with pytest.raises(Died):
        dither.train(
            model(),
            Dying(after),
            plan,
            run=dither.Run(folder, checkpoint_every=2),
            progress=False,
            every=1,
        )


def test_a_run_that_is_open_is_reported_at_the_cost_of_its_whole_plan(tmp_path: Path) -> None:
    plan = noisy_plan(steps=8)
    interrupted(tmp_path / "run", plan, after=5)
    report = run_report(tmp_path / "run")
    assert report.state == "open"
    assert report.claim.bound is not None
    assert report.claim.bound.epsilon == pytest.approx(plan.bound.epsilon, rel=1e-9)
    assert isinstance(report.claim.counted, SpentSoFar)
    assert report.claim.counted.epsilon < plan.bound.epsilon
    text = to_markdown(report)
    assert "The run is not over" in text
    assert "as if it had been fixed beforehand that the run stops here" in text


@pytest.mark.filterwarnings("ignore:.*steps were spent and lost")
def test_a_run_that_lost_steps_and_was_planned_anew(tmp_path: Path) -> None:
    plan = noisy_plan(steps=8)
    interrupted(tmp_path / "run", plan, after=5)
    result = dither.train(
        model(),
        data(),
        plan,
        run=dither.Run(tmp_path / "run", resume=True),
        progress=False,
        every=1,
    )
    report = run_report(tmp_path / "run")
    assert report.alarms == ()
    assert report.claim.verdict == "proven"
    assert report.claim.bound is not None
    assert result.bound.epsilon <= report.claim.bound.epsilon <= plan.bound.epsilon * (1 + 1e-6)
    assert report.replanned == 1
    assert (report.planned_steps, report.paid_steps) == (8, 9)
    assert len(report.sessions) == 2
    text = to_markdown(report)
    assert "1 paid for and lost on the way" in text
    assert "Fingerprint of the last plan" in text
    noise = next(chart for chart in report.charts if chart.key == "noise")
    assert [each.name for each in noise.series] == ["paid for", "planned"]


def test_runs_in_one_ledger_are_added_up(tmp_path: Path) -> None:
    shared = tmp_path / "all.sqlite"
    for name in ("one", "two"):
        trained(tmp_path / name, ledger=shared)
    report = run_report(tmp_path / "two")
    ledger = Ledger(shared)
    assert report.ledger is not None
    assert report.ledger["epsilon"] == ledger.total(1e-3).epsilon
    ledger.close()
    assert report.claim.bound is not None
    assert report.ledger["epsilon"] > report.claim.bound.epsilon
    assert "All 2 runs in the ledger together" in headline(report).text
    assert "the total is an odometer's" in to_markdown(report)
    chart = next(chart for chart in report.charts if chart.key == "ledger")
    assert chart.series[0].y[-1] == report.ledger["epsilon"]


def test_where_the_result_claims_less_than_the_ledger_the_ledger_is_believed(copy: Path) -> None:
    honest = run_report(copy).claim.bound
    assert honest is not None
    edit(copy / "result.json", epsilon=honest.epsilon / 2.0, lower=None)
    report = run_report(copy)
    assert report.claim.bound is not None
    assert report.claim.bound.epsilon == pytest.approx(honest.epsilon, rel=1e-9)
    alarmed(report, "but the ledger counts ε = ")


def test_where_the_result_claims_more_it_is_believed(copy: Path) -> None:
    honest = run_report(copy).claim.bound
    assert honest is not None
    edit(copy / "result.json", epsilon=honest.epsilon * 2.0)
    report = run_report(copy)
    assert report.claim.bound is not None
    assert report.claim.bound.epsilon == honest.epsilon * 2.0


@pytest.mark.parametrize(("change", "words"), [
    ({"steps": 7}, "steps were released that nobody has paid for"),
    ({"steps": 0}, "no run has less than one"),
    ({"steps": -1}, "no run has less than one"),
    ({"adjacency": "replace-one"}, "result.json speaks of replace-one neighbours"),
    ({"sampling": "fixed"}, "result.json speaks of fixed sampling, the ledger of poisson"),
    ({"sampling": "full"}, "result.json speaks of full sampling"),
    ({"unit": "hospital"}, "result.json claims to protect each 'hospital'"),
    ({"accountant": "magic"}, "result.json names the accountant 'magic'"),
    ({"accountant": "none"}, "result.json names the accountant 'none'"),
    ({"delta": 0.01}, "result.json has δ = 0.01, the ledger δ = 0.001"),
    ({"delta": 0.0}, "result.json has δ = 0, the ledger δ = 0.001"),
    ({"delta": 1e-300}, "result.json has δ = 1e-300, the ledger δ = 0.001"),
    ({"plan": "0" * 64}, "result.json is of a plan that the ledger does not know"),
])  # fmt: skip
def test_what_cannot_be_is_not_confirmed(copy: Path, change: dict[str, Any], words: str) -> None:
    edit(copy / "result.json", **change)
    report = run_report(copy)
    assert report.claim.verdict == "not confirmed"
    assert report.claim.bound is None
    alarmed(report, words)


def test_an_estimate_is_called_one(copy: Path) -> None:
    edit(copy / "result.json", is_upper_bound=False, lower=None)
    report = run_report(copy)
    assert report.claim.verdict == "not proven"
    text = to_markdown(report)
    assert "NOT PROVEN: about ε = " in text
    assert "is (ε = " not in text
    assert json.loads(to_json(report))["odds"] is None


@pytest.mark.parametrize("name", ["ledger.sqlite", "ledger.sqlite.mark", "run.json"])
def test_without_a_ledger_that_has_the_run_no_epsilon_is_reported(copy: Path, name: str) -> None:
    (copy / name).unlink()
    report = run_report(copy)
    assert report.claim.verdict == "not confirmed"
    assert report.claim.bound is None
    assert report.alarms
    top = headline(report)
    assert top.title == "Not confirmed"
    assert "nothing here supports it" in top.text
    text = to_markdown(report)
    assert "differentially private with" not in text
    assert str(copy) not in text


def test_a_damaged_ledger_is_told(copy: Path) -> None:
    content = bytearray((copy / "ledger.sqlite").read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    (copy / "ledger.sqlite").write_bytes(bytes(content))
    report = run_report(copy)
    assert report.claim.verdict == "not confirmed"
    alarmed(report, "nothing confirms what was spent")


@pytest.mark.parametrize("name", ["plan.json", "result.json", "canaries.json"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe", b"{}", b'{"steps": "many"}'])
def test_a_damaged_file_is_told_and_the_rest_reported(
    copy: Path, name: str, content: bytes
) -> None:
    honest = run_report(copy).claim.bound
    (copy / name).write_bytes(content)
    report = run_report(copy)
    alarmed(report, f"{name} is ")
    assert report.claim.bound is not None
    assert honest is not None
    assert report.claim.bound.epsilon == pytest.approx(honest.epsilon, rel=1e-9)


def test_a_plan_that_is_not_the_runs_is_not_used(copy: Path) -> None:
    (copy / "plan.json").write_text(noisy_plan(z=9.0).to_json(), encoding="utf-8")
    report = run_report(copy)
    assert report.plan_text is None
    assert report.claim.verdict == "not confirmed"
    assert report.claim.bound is None
    alarmed(report, "plan.json is another plan")


def test_a_history_that_was_cut_off(copy: Path) -> None:
    lines = (copy / "history.jsonl").read_text(encoding="utf-8").splitlines()
    (copy / "history.jsonl").write_text("\n".join([*lines, '{"step": 9, "eps']), encoding="utf-8")
    assert run_report(copy).alarms == ()
    (copy / "history.jsonl").write_text("\n".join(["?", *lines]), encoding="utf-8")
    alarmed(run_report(copy), "history.jsonl is damaged in line 1")


def test_an_audit_that_refutes_is_the_first_thing_to_read(copy: Path) -> None:
    audit = {
        "time": "2026-01-01T00:00:00+00:00", "attack": "white-box", "steps": "6 of 6",
        "claimed": {"epsilon": 1.0, "delta": 1e-3}, "lower": 4.0, "confidence": 0.95,
        "trials": 100, "guesses": 50, "right": 50, "is_violated": True,
        "verdict": "VIOLATED: it is.",
        "curves": {"false_positives": [0.0, 1.0], "true_positives": [0.0, 1.0], "allowed": None},
    }  # fmt: skip
    (copy / "audit.json").write_text(json.dumps({"audits": [audit]}), encoding="utf-8")
    report = run_report(copy)
    assert report.claim.verdict == "refuted"
    assert "An audit has refuted the claim" in report.alarms[0]
    assert headline(report).title.startswith("REFUTED: ")
    assert "An audit has refuted what this run states" in to_markdown(report)
    assert json.loads(to_json(report))["odds"] is None


def test_a_large_delta_is_told(tmp_path: Path) -> None:
    trained(tmp_path / "run", noisy_plan(delta=0.05))
    assert "This δ is NOT below 1/n = 1/120" in to_markdown(run_report(tmp_path / "run"))


@pytest.mark.parametrize("what", ["missing", "file", "empty"])
def test_what_is_no_folder_of_a_run(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x"
    if what == "file":
        path.write_text("no folder", encoding="utf-8")
    if what == "empty":
        path.mkdir()
    with pytest.raises(ValueError, match="run_dir must be the folder of a run"):
        run_report(path)


def test_the_report_is_the_same_every_time(finished: Path) -> None:
    one, two = run_report(finished), run_report(finished)
    for render in (to_html, to_markdown, to_json):
        assert render(one) == render(two)


def test_json_holds_everything_and_no_number_that_is_none(finished: Path) -> None:
    report = run_report(finished)
    found = json.loads(to_json(report), parse_constant=pytest.fail)
    assert found["format"] == "dither-report-1"
    assert report.claim.bound is not None
    assert found["claim"]["bound"]["epsilon"] == report.claim.bound.epsilon
    best = found["odds"]["best_guess"]
    e = math.exp(report.claim.bound.epsilon)
    assert best == pytest.approx((e + 1e-3) / (1.0 + e))
    assert len(found["statement"]) == 4
