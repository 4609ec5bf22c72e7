"""The report of a run directory: its content."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.reports.run_directories import describe, edit, public, reactive, text_of, trained
from tests.training.loops import RECORDS, data, model, noisy_plan

import dither
from dither.ledger import Ledger
from dither.planning import Plan
from dither.reports import run_report, statement
from dither.reports.document import Charts, Table, front_of, what_of
from dither.reports.odds import membership_odds
from dither.reports.render import to_html, to_json
from dither.reports.scale import DEPLOYMENTS, scale_svg
from dither.reports.text import not_covered, odds
from dither.schedules import AdaGradNorm
from dither.training.statement import paragraphs
from dither.types import SpentSoFar, rounded


def test_a_finished_run_has_the_bound_and_the_statement_of_the_result(tmp_path: Path) -> None:
    result = trained(tmp_path / "run", evaluate=public(), averaging="ema")
    report = run_report(tmp_path / "run")
    assert report.claim.verdict == "proven"
    assert report.claim.bound == result.bound
    assert report.warnings == ()
    assert (report.state, report.spent_steps, report.planned_steps) == ("ended", 6, 6)
    assert report.facts is not None
    assert " ".join(paragraphs(report.facts)) == " ".join(statement(result).split())
    assert report.metrics == result.metrics
    assert {chart.key for chart in report.charts} == {
        "noise",
        "spending",
        "metric",
    }
    assert report.sessions[0]["versions"]["torch"] == torch.__version__
    assert report.fingerprints == (result.plan.fingerprint,)


def test_weights_of_records_are_an_assumption_that_is_said(tmp_path: Path) -> None:
    for name, weights in (("plain", None), ("weighted", lambda y: 0.5 + 0.0 * y)):
        result = trained(tmp_path / name, record_weights=weights)
        report = run_report(tmp_path / name)
        assert " ".join(report.statement) == " ".join(statement(result).split())
        assert ("Sample weights were given" in report.statement[-1]) is (weights is not None)
        assert ("Weights" in dict(odds(report))) is (weights is not None)


def test_averaging_is_measured_with_and_without(tmp_path: Path) -> None:
    averaged = trained(tmp_path / "a", evaluate=public(), averaging="tail", seed=7)
    plain = trained(tmp_path / "b", evaluate=public(), seed=7)
    assert averaged.history[-1].iterate_metrics == plain.metrics
    assert averaged.metrics != plain.metrics
    assert plain.history[-1].iterate_metrics == {}
    reports = [run_report(tmp_path / name) for name in "ab"]
    assert [report.averaging for report in reports] == ["tail", None]
    lines = [
        next(chart for chart in report.charts if chart.key == "metric").series for report in reports
    ]
    assert [len(each) for each in lines] == [2, 1]
    assert lines[0][1].y == lines[1][0].y


def test_charts_show_the_numbers_of_the_plan(finished: Path) -> None:
    report = run_report(finished)
    charts = {chart.key: chart for chart in report.charts}
    plan = dither.Plan.from_json((finished / "plan.json").read_text(encoding="utf-8"))
    assert charts["noise"].series[0].y == tuple(plan.noise_multipliers.tolist())
    assert charts["spending"].series[0].y[-1] == plan.bound.epsilon
    assert charts["spending"].limit == ("budget of the plan", plan.bound.epsilon)
    for chart in report.charts:
        assert chart.description.endswith(".")


@pytest.mark.parametrize("noise", ["uniform", "filter"])
def test_reactive_step_sizes(tmp_path: Path, noise: str) -> None:
    result = trained(tmp_path / "run", reactive(AdaGradNorm(b0_squared=4.0, nu=0.01), noise))
    report = run_report(tmp_path / "run")
    assert report.claim.verdict == "proven"
    assert report.claim.bound == result.bound
    assert report.warnings == ()
    assert report.facts is not None
    assert " ".join(paragraphs(report.facts)) == " ".join(statement(result).split())


@pytest.mark.parametrize("is_reactive", [False, True])
def test_automatic_clipping(tmp_path: Path, is_reactive: bool) -> None:
    plan = reactive(AdaGradNorm(b0_squared=4.0, nu=0.01)) if is_reactive else noisy_plan()
    result = trained(tmp_path / "run", replace(plan, clipping="automatic"))
    report = run_report(tmp_path / "run")
    assert report.warnings == ()
    assert report.facts is not None
    text = " ".join(paragraphs(report.facts))
    assert text == " ".join(statement(result).split())
    assert "to an l2 norm below 1 (automatic clipping)" in text


def test_replace_one_adjacency(tmp_path: Path) -> None:
    trained(tmp_path / "run", noisy_plan(sampling="fixed"))
    text = text_of(run_report(tmp_path / "run"))
    assert "which of two given records was in the data" in text
    assert "with any other record in its place" in text
    assert "12 distinct records uniformly at random" in text
    assert "add or remove" not in text


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


def interrupted(directory: Path, plan: Any, after: int) -> None:
    with pytest.raises(Died):
        dither.train(
            model(),
            Dying(after),
            plan,
            run=dither.Run(directory, checkpoint_every=2),
            progress=False,
            every=1,
        )


def test_an_open_run_is_reported_at_the_cost_of_its_full_plan(tmp_path: Path) -> None:
    plan = noisy_plan(steps=8)
    interrupted(tmp_path / "run", plan, after=5)
    report = run_report(tmp_path / "run")
    assert report.state == "open"
    assert report.claim.bound is not None
    assert report.claim.bound.epsilon == pytest.approx(plan.bound.epsilon, rel=1e-9)
    assert isinstance(report.claim.spent, SpentSoFar)
    assert report.claim.spent.epsilon < plan.bound.epsilon
    text = text_of(report)
    assert "The run has not ended" in text
    assert "if the number of steps was fixed in advance" in text


@pytest.mark.filterwarnings("ignore:.*steps were spent and lost")
def test_a_run_that_lost_steps_and_was_planned_again(tmp_path: Path) -> None:
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
    assert report.warnings == ()
    assert report.claim.verdict == "proven"
    assert report.claim.bound is not None
    assert result.bound.epsilon <= report.claim.bound.epsilon <= plan.bound.epsilon * (1 + 1e-6)
    assert len(report.fingerprints) == 2
    assert (report.planned_steps, report.spent_steps) == (8, 9)
    assert len(report.sessions) == 2
    text = text_of(report)
    assert "1 after a crash; they stay spent" in text
    assert "the noise of the remaining steps was planned again" in text
    noise = next(chart for chart in report.charts if chart.key == "noise")
    assert [each.name for each in noise.series] == ["spent", "planned"]


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
    assert "All 2 runs in the ledger together" in dict(odds(report))["All runs"]
    assert "Other runs" not in not_covered(report)
    assert "the total is an odometer's" in text_of(report)


def test_parts_of_a_random_split_do_not_add_up(tmp_path: Path) -> None:
    shared = Ledger(tmp_path / "all.sqlite")
    trained(tmp_path / "run", ledger=shared.part("tenth", "training"))
    describe(tmp_path / "run")
    alone = run_report(tmp_path / "run")
    assert alone.claim.bound is not None
    assert alone.claim.training is not None
    assert alone.claim.bound.epsilon == alone.claim.training.epsilon + 0.125
    assert alone.claim.bound.delta == pytest.approx(alone.claim.training.delta + 1e-6)
    assert "they add up" in dict(odds(alone))["Evaluation"]
    assert alone.warnings == ("The ledger does not have the evaluation: its cost is added.",)
    evaluation = dither.Plan.from_noise_multipliers(
        [9.0], delta=1e-3, dataset_size=RECORDS, batch_size=RECORDS
    )
    shared.part("tenth", "holdout").register(evaluation, name="holdout").finish(0, 9.0)
    file = tmp_path / "run" / "evaluation.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), "run": "holdout"}))
    report = run_report(tmp_path / "run")
    assert report.claim.evaluated == "part"
    assert "so the larger counts" in dict(odds(report))["Evaluation"]
    assert "All runs" not in dict(odds(report))  # the claim has both
    assert "the training part of a random split" in dict(what_of(report).rows)["Data"]
    assert report.ledger is not None
    assert report.claim.bound is not None
    assert report.ledger["epsilon"] == report.claim.bound.epsilon
    assert "holdout" in text_of(report)
    shared.part("tenth", "holdout").register(evaluation).finish(0, 9.0)
    text = dict(odds(run_report(tmp_path / "run")))["All runs"]
    assert "in the most expensive part of every split" in text


def test_what_was_trained_on_what_for_which_purpose(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trained(run, data="patients.csv", purpose="beds")
    assert dict(what_of(run_report(run)).rows).keys() == {"Data", "Purpose", "State"}
    describe(run)
    facts = dict(what_of(run_report(run)).rows)
    assert facts.pop("State").startswith("Ended 2")
    assert facts == {
        "Data": f"patients.csv, {RECORDS} records",
        "Columns": "2 number, 1 category, 1 ignored",
        "Target": "readmitted: no or yes",
        "Model": "PrivateGAMClassifier",
        "Purpose": "beds",
    }
    bounds = {"column": "cost", "bounds": [0, 20000]}
    (run / "schema.json").write_text(json.dumps({"target": bounds, "columns": {}}))
    assert dict(what_of(run_report(run)).rows)["Target"] == "cost: 0 to 20,000"


def test_a_paid_evaluation_is_beside_the_base_rate(copy: Path) -> None:
    describe(copy)
    report = run_report(copy)
    (table, charts, public_table) = front_of(report)[-1].blocks
    assert isinstance(table, Table)
    assert table.rows == (
        ("accuracy", "0.914", "0.904 to 0.924", "0.9"),
        ("AUC", "0.758", "0.738 to 0.778", "0.5"),
        ("log loss", "0.256", "0.246 to 0.266", "0.293"),
        ("Brier score", "0.07", "0.06 to 0.08", "0.09"),
    )
    assert isinstance(charts, Charts)
    (line, diagonal) = charts.charts[0].series
    assert line.x == pytest.approx((8.0, 40.0))
    assert line.y == pytest.approx((12.0, 33.0))
    assert line.low == pytest.approx((11.0, 28.0))
    assert line.high == pytest.approx((13.0, 38.0))
    assert diagonal.x == diagonal.y
    assert isinstance(public_table, Table)
    assert "ε = 0.125 at δ = 1e-06" in dict(odds(report))["Evaluation"]
    assert "('no', '0.8', '0.1')" in text_of(report)
    assert "('records', '2,000', '1,960 to 2,040', '')" in text_of(report)


@pytest.mark.parametrize("content", ["{}", '{"metrics": null, "calibration": [], "classes": ["a"]}',
    '{"confusion": [[1, 2]], "classes": ["a", "b"], "auc": {"value": NaN}, "privacy": {}}',
])  # fmt: skip
def test_a_part_of_an_evaluation_that_is_missing_is_left_out(copy: Path, content: str) -> None:
    (copy / "evaluation.json").write_text(content, encoding="utf-8")
    report = run_report(copy)
    assert report.warnings == ()
    assert report.evaluation is not None
    assert (report.evaluation.metrics, report.evaluation.confusion) == ({}, ())
    assert "Evaluation" not in dict(odds(report))
    assert to_html(report)
    json.loads(to_json(report), parse_constant=pytest.fail)


def test_metrics_of_an_evaluation_may_be_in_a_part_of_their_own(copy: Path) -> None:
    metrics = {"accuracy": {"value": 0.9}, "base_rate": {"value": 0.2}}
    content = {"metrics": metrics, "is_seeded": True, "privacy": {"epsilon": 1.0}}
    (copy / "evaluation.json").write_text(json.dumps(content), encoding="utf-8")
    report = run_report(copy)
    assert report.evaluation is not None
    assert [*report.evaluation.metrics] == ["accuracy"]
    assert report.evaluation.base_rates["accuracy"] == 0.8
    assert report.claim.verdict == "seeded"


def test_an_evaluation_on_the_same_records_adds_up(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "all.sqlite")
    result = trained(tmp_path / "run", ledger=ledger)
    plan = dither.plan(epsilon=2.0, delta=1e-3, dataset_size=RECORDS, batch_size=RECORDS, steps=1)
    account = ledger.register(plan, name="evaluation")
    account.finish(0, float(plan.charges[0]))
    account.end()
    content = {"run": "evaluation", "privacy": {"epsilon": plan.bound.epsilon, "delta": 1e-3}}
    file = tmp_path / "run/evaluation.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    report = run_report(tmp_path / "run")
    assert report.claim.bound is not None
    assert report.claim.bound.epsilon == ledger.total(1e-3).epsilon > result.bound.epsilon
    assert (
        json.loads(to_json(report))["odds"]["best_guess"]
        == membership_odds(ledger.total(1e-3).epsilon, 1e-3).best_guess
    )
    content["privacy"] = {"epsilon": 9.0, "delta": 1e-3}  # more than the ledger has
    file.write_text(json.dumps(content), encoding="utf-8")
    more = run_report(tmp_path / "run").claim
    assert more.bound is not None
    assert more.bound.epsilon >= 9.0


@pytest.mark.parametrize("name", ["schema.json", "model.json", "evaluation.json"])
def test_a_damaged_description_is_one_warning(copy: Path, name: str) -> None:
    (copy / name).write_text("[]", encoding="utf-8")
    report = run_report(copy)
    assert report.warnings == (f"{name} is damaged, and is not used.",)
    assert report.claim.verdict == "proven"


def test_only_what_applies_is_listed_as_not_covered(tmp_path: Path) -> None:
    always = {"Several rows of a person", "Groups", "Other channels"}
    cases: dict[str, tuple[dict[str, Any], set[str]]] = {
        "alone": ({}, {"Other runs"}),
        "measured": ({"evaluate": public()}, {"Other runs", "Public test data"}),
        "shared": ({"ledger": tmp_path / "all.sqlite"}, set()),
    }
    for name, (settings, more) in cases.items():
        trained(tmp_path / name, **settings)
        assert not_covered(run_report(tmp_path / name)).keys() == always | more
    text = text_of(run_report(tmp_path / "alone"))
    assert "--holdout 0.1 --evaluate-epsilon E" in text
    assert "--holdout" not in text_of(run_report(tmp_path / "measured"))


def test_published_deployments_are_those_of_the_documentation() -> None:
    page = Path(dither.__file__).parents[2] / "docs" / "epsilon.md"
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    for each in DEPLOYMENTS:
        name, wanted = each.name.split()[0], {each.low, each.high}
        numbers = " ".join(line.split("|")[2] for line in rows if name in line.split("|")[1])
        assert wanted <= {float(text) for text in numbers.replace("to", " ").split()}


@pytest.mark.parametrize("epsilon", [0.01, 2.5, 400.0])
def test_any_epsilon_is_in_its_place_on_the_scale(epsilon: float) -> None:
    drawn = scale_svg(epsilon, "This run", "one record")
    width = float(re.findall(r'viewBox="0 0 ([0-9.]+) ', drawn)[0])
    marks = re.findall(r'<use xlink:href="[^"]*" x="([0-9.]+)" [^>]*?--line-([14])', drawn)
    published = [float(x) for x, colour in marks if colour == "1"]
    (mine,) = (float(x) for x, colour in marks if colour == "4")
    lows = [math.log(each.low) for each in DEPLOYMENTS]
    per_unit = (published[-1] - published[0]) / (lows[-1] - lows[0])
    assert mine == pytest.approx(published[0] + (math.log(epsilon) - lows[0]) * per_unit, abs=0.01)
    assert 0.0 < mine < width


def test_a_large_delta_is_pointed_out(tmp_path: Path) -> None:
    trained(tmp_path / "run", noisy_plan(delta=0.05))
    assert "This δ is NOT below 1/n = 1/120" in text_of(run_report(tmp_path / "run"))


def test_reports_are_deterministic(finished: Path) -> None:
    one, two = run_report(finished), run_report(finished)
    for render in (to_html, to_json):
        assert render(one) == render(two)


def test_json_is_complete_and_finite(finished: Path) -> None:
    report = run_report(finished)
    found = json.loads(to_json(report), parse_constant=pytest.fail)
    assert found["format"] == "dither-report-2"
    assert report.claim.bound is not None
    assert found["claim"]["bound"]["epsilon"] == report.claim.bound.epsilon
    best = found["odds"]["best_guess"]
    e = math.exp(report.claim.bound.epsilon)
    assert best == pytest.approx((e + 1e-3) / (1.0 + e))
    assert len(found["statement"]) == 4
    assert found["not_covered"] == not_covered(report)


def test_the_history_does_not_end_below_the_ledger(adaptive: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(adaptive, tmp_path / "copy"))
    path = directory / "history.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lines = [json.dumps({**row, "epsilon": 0.001}) for row in rows]
    path.write_text("\n".join(lines), encoding="utf-8")
    report = run_report(directory)
    (spending,) = [chart for chart in report.charts if chart.key == "spending"]
    assert report.claim.spent is not None
    assert spending.series[0].y[-1] == report.claim.spent.epsilon > 0.1


def test_what_the_recipe_chose_is_in_the_report(tmp_path: Path) -> None:
    x, y = data()
    result = dither.train(
        model(), (x, y), epsilon=2.0, compute=300, progress=False, run=dither.Run(tmp_path / "run")
    )
    assert result.recipe is not None
    report = run_report(tmp_path / "run")
    assert report.settings == tuple(result.recipe.rows())
    assert " ".join(report.statement).split() == dither.reports.statement(result).split()
    assert result.recipe.reasons["learning_rate"] in text_of(report)
    assert json.loads(to_json(report))["settings"][0] == ["epsilon", "2", "given"]
    # A recipe of another plan is not used.
    edit(tmp_path / "run" / "recipe.json", batch_size=3)
    assert run_report(tmp_path / "run").settings == ()
    assert "recipe.json is damaged" in " ".join(run_report(tmp_path / "run").warnings)


def test_a_person_with_several_rows(finished: Path) -> None:
    report = run_report(finished)
    plan = Plan.from_json((finished / "plan.json").read_text())
    assert report.groups == tuple(plan.for_group(size) for size in (2, 5, 10))
    text = not_covered(report)["Several rows of a person"]
    assert f"5 records: ε = {rounded(plan.for_group(5).epsilon, 4)}" in text
    found = json.loads(to_json(report))["groups"]
    assert [group["unit"] for group in found] == [group.unit for group in report.groups]


def test_groups_are_not_stated_where_the_plan_is_not_all(
    finished: Path, adaptive: Path, tmp_path: Path
) -> None:
    """Reactive step sizes have another plan, and an evaluation is paid besides."""
    assert run_report(adaptive).groups == ()
    evaluated = Path(shutil.copytree(finished, tmp_path / "evaluated"))
    describe(evaluated)
    report = run_report(evaluated)
    assert report.claim.is_guarantee
    assert report.groups == ()
    assert "k have k·ε" in not_covered(report)["Several rows of a person"]
