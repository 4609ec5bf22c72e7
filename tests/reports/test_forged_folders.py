"""Folders in which files were changed, mixed up or damaged: nothing is claimed that is not so."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.reports.folders import edit, public, reactive, trained
from tests.training.loops import noisy_plan

from dither.reports import run_report, to_html, to_json, to_markdown
from dither.reports.run.in_words import headline
from dither.reports.run.rendering import points_of
from dither.reports.run.report import Chart, Series
from dither.schedules import AdaGradNorm

AUDIT: dict[str, Any] = {
    "time": "2026-01-01T00:00:00+00:00", "attack": "white-box", "steps": "6 of 6",
    "claimed": {"epsilon": 1.3, "delta": 1e-3}, "lower": 0.5, "confidence": 0.95,
    "trials": 100, "guesses": 50, "right": 50, "breach": None, "is_violated": False,
    "verdict": "Not refuted.",
    "curves": {"false_positives": [0.0, 1.0], "true_positives": [0.0, 1.0], "allowed": None},
}  # fmt: skip
LONG = "7" * 5000


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    trained(folder, evaluate=public())
    return folder


@pytest.fixture(scope="module")
def reacted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "reacted"
    trained(folder, reactive(AdaGradNorm(b0_squared=4.0, nu=0.01), "filter"))
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """A run that a test may damage."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


@pytest.fixture
def reactive_copy(reacted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(reacted, tmp_path / "reacted"))


def not_confirmed(folder: Path, words: str) -> None:
    """Assert that no ε is reported, in any format, and that an alarm says why."""
    report = run_report(folder)
    assert report.claim.verdict == "not confirmed"
    assert report.claim.bound is None
    assert report.statement == []
    assert any(words in alarm for alarm in report.alarms), report.alarms
    for text in (to_html(report), to_markdown(report), to_json(report)):
        assert "differentially private with respect" not in text
    assert headline(report).title == "Not confirmed"


def keep(folder: Path, *audits: Any) -> None:
    (folder / "audit.json").write_text(json.dumps({"audits": audits}), encoding="utf-8")


def test_a_run_does_not_get_the_epsilon_of_another(tmp_path: Path) -> None:
    shared = tmp_path / "all.sqlite"
    trained(tmp_path / "careless", noisy_plan(z=0.6), ledger=shared)
    trained(tmp_path / "careful", noisy_plan(z=8.0), ledger=shared)
    name = json.loads((tmp_path / "careful" / "run.json").read_text(encoding="utf-8"))["run"]
    careless = tmp_path / "careless"
    edit(careless / "run.json", run=name)
    not_confirmed(careless, "plan.json is another plan than the one")
    not_confirmed(careless, "result.json is of a plan that the ledger does not know")
    (careless / "plan.json").unlink()
    not_confirmed(careless, "result.json is of a plan that the ledger does not know")
    (careless / "result.json").unlink()
    not_confirmed(careless, "nothing shows that the ledger's run is the one of this folder")


def test_what_was_read_off_is_joined_from_all_files(copy: Path) -> None:
    edit(copy / "result.json", derived_from_private_data=["the set of classes"])
    report = run_report(copy)
    assert report.claim.verdict == "conditional"
    assert report.derived_from_private_data == ("the set of classes",)


def test_a_seeded_run_states_what_was_read_off_too(tmp_path: Path) -> None:
    trained(tmp_path / "run", seed=3, derived_from_private_data=("the number of records",))
    report = run_report(tmp_path / "run")
    assert report.claim.verdict == "seeded"
    assert report.statement[0].startswith("NOT PROVEN: the number of records was read off")


@pytest.mark.parametrize("content", [
    b"{", b"[]", b"{}", b"\xff", b'{"audits": 3}', b'{"audits": "no"}', b'{"audits": [{}]}',
    b'{"audits": [NaN]}', b'{"audits": [%s]}' % LONG.encode(),
])  # fmt: skip
def test_an_audit_that_cannot_be_read_may_have_refuted(copy: Path, content: bytes) -> None:
    (copy / "audit.json").write_bytes(content)
    not_confirmed(copy, "audit.json is damaged")
    text = to_markdown(run_report(copy))
    assert "This run was not audited" not in text
    assert "it may have refuted this run" in text


@pytest.mark.parametrize("change", [
    {"lower": "none"}, {"lower": -1.0}, {"claimed": None}, {"confidence": 3}, {"is_violated": 0},
    {"curves": {**AUDIT["curves"], "true_positives": [0.0]}},
    {"curves": {**AUDIT["curves"], "true_positives": None}},
])  # fmt: skip
def test_every_audit_is_looked_at_by_itself(copy: Path, change: dict[str, Any]) -> None:
    broken = {**AUDIT, **change}
    keep(copy, AUDIT, broken)
    not_confirmed(copy, "audit.json is damaged")
    assert len(run_report(copy).audits) == 1
    keep(copy, broken, {**AUDIT, "is_violated": True, "verdict": "VIOLATED: it is."})
    assert run_report(copy).claim.verdict == "refuted"
    keep(copy, AUDIT)
    assert run_report(copy).claim.verdict == "proven"


@pytest.mark.parametrize("change", [
    {"lower": 1.31},
    {"lower": 4.0, "claimed": {"epsilon": 5.0, "delta": 1e-3}},
    {"lower": 4.0, "claimed": {"epsilon": None, "delta": 0.01}},
    {"breach": {"false_positives": 0.1}},
])  # fmt: skip
def test_an_audit_refutes_by_its_numbers_whatever_it_says(
    copy: Path, change: dict[str, Any]
) -> None:
    keep(copy, {**AUDIT, **change})
    report = run_report(copy)
    assert report.claim.verdict == "refuted"
    assert "An audit has refuted the claim of this run. VIOLATED by" in report.alarms[0]
    assert "| REFUTED |" in to_markdown(report)


def test_a_lower_bound_at_a_smaller_delta_says_nothing_of_a_larger_one(copy: Path) -> None:
    keep(copy, {**AUDIT, "lower": 1.5, "claimed": {"epsilon": 2.0, "delta": 1e-6}})
    assert run_report(copy).claim.verdict == "proven"


@pytest.mark.parametrize(("old", "new"), [
    ("n = 120", "n = 1,200,000"),
    ("m = 12 ", "m = 1 "),
    ("up to 4 steps", "up to 2 steps"),
    ("poisson sampling of", "fixed sampling of"),
    ("(ε = 3,", "(ε = 0.1,"),
])  # fmt: skip
def test_a_plan_in_words_must_be_the_ledgers(reactive_copy: Path, old: str, new: str) -> None:
    path = reactive_copy / "plan.json"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    not_confirmed(reactive_copy, "plan.json is another plan")


@pytest.mark.parametrize(("old", "new"), [
    ("clip norm 1", "clip norm abc"),
    ("clip norm 1", "clip norm nan"),
    ("clip norm 1", "clip norm -1"),
    ("n = 120", f"n = {LONG}"),
    ("n = 120", "n = 1" + "0" * 400),
    ("\nfingerprint", "\nand more\nfingerprint"),
])  # fmt: skip
def test_a_damaged_plan_in_words_is_told(reactive_copy: Path, old: str, new: str) -> None:
    path = reactive_copy / "plan.json"
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    report = run_report(reactive_copy)
    assert report.plan_text is None
    assert report.alarms == ("plan.json is damaged or cannot be read, and is not used.",)


def test_never_below_the_ledger_by_any_digit(copy: Path) -> None:
    honest = run_report(copy).claim.bound
    assert honest is not None
    less = honest.epsilon * (1.0 - 1e-9)
    edit(copy / "result.json", epsilon=less, lower=None)
    report = run_report(copy)
    assert report.claim.bound is not None
    assert report.claim.bound.epsilon == honest.epsilon > less
    assert report.alarms == ()


def test_epsilon_in_tables_is_rounded_up() -> None:
    line = Series("spent", (1.0, 2.0), (1.0, 1.2345641))
    made = ("x", "x", "steps", "ε", (line,), "words.")
    privacy = points_of(Chart(*made, limit=("budget", 2.00000049), is_privacy=True))
    assert [row[2] for row in privacy.rows] == ["1", "1.23457", "2.00001"]
    other = points_of(Chart("x", "x", "steps", "z", (line,), "words."))
    assert [row[2] for row in other.rows] == ["1", "1.23456"]


def test_charts_of_epsilon_say_so(finished: Path) -> None:
    charts = {chart.key: chart.is_privacy for chart in run_report(finished).charts}
    assert charts["spending"]
    assert not charts["noise"]


def test_a_history_does_not_end_below_the_ledger(reactive_copy: Path) -> None:
    path = reactive_copy / "history.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lines = [json.dumps({**row, "epsilon": 0.001}) for row in rows]
    path.write_text("\n".join(lines), encoding="utf-8")
    report = run_report(reactive_copy)
    (spending,) = [chart for chart in report.charts if chart.key == "spending"]
    assert report.claim.counted is not None
    assert spending.series[0].y[-1] == report.claim.counted.epsilon > 0.1


_FILES = ["run.json", "result.json", "plan.json", "history.jsonl", "audit.json", "canaries.json"]


@pytest.mark.parametrize("content", [
    f'{{"steps": {LONG}}}\n{{}}', f'{{"step": {LONG}}}\n{{}}', "[" * 100_000 + "\n{}",
    '{"run": "\\ud800"}\n{}',
    '{"metrics": {"\\udfff": 1.0}}\n{}', f'{{"steps": {"9" * 4000}}}\n{{}}', "1e999\n{}",
])  # fmt: skip
@pytest.mark.parametrize("name", _FILES)
def test_whatever_is_in_a_file_there_is_a_report_with_an_alarm(
    copy: Path, name: str, content: str
) -> None:
    (copy / name).write_text(content, encoding="utf-8")
    report = run_report(copy)
    assert any(name in alarm for alarm in report.alarms), report.alarms
    for render in (to_html, to_markdown, to_json):
        assert render(report).encode()


@pytest.mark.parametrize("change", [
    {"metrics": {"\ud800": 1.0}}, {"metrics": {"accuracy": 10**400}}, {"seed": 10**400},
    {"steps": 10**90}, {"epsilon": 1e60}, {"epsilon": -1.0}, {"lower": 1e9}, {"plan": 7},
    {"unit": ["record"]}, {"averaging": "\udc80"}, {"derived_from_private_data": "all"},
])  # fmt: skip
def test_whatever_is_in_a_field_there_is_a_report(copy: Path, change: dict[str, Any]) -> None:
    honest = run_report(copy).claim.bound
    edit(copy / "result.json", **change)
    report = run_report(copy)
    assert report.alarms or "metrics" in change
    assert honest is not None
    assert report.claim.bound is not None
    assert report.claim.bound.epsilon == honest.epsilon
    for render in (to_html, to_markdown, to_json):
        assert render(report).encode()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "huge"])
@pytest.mark.parametrize("name", [
    *_FILES, "model.safetensors", "ledger.sqlite", "ledger.sqlite.mark", "ledger.sqlite-wal",
])  # fmt: skip
def test_only_plain_files_of_some_size_are_read(copy: Path, name: str, kind: str) -> None:
    path = copy / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as stream:
            stream.truncate(2**35)
    report = run_report(copy)
    assert any(name in alarm or "ledger" in alarm for alarm in report.alarms)
    assert to_html(report)


def test_names_that_are_no_text_can_be_written(finished: Path, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run\xff"))
    shutil.copytree(finished, folder)
    report = run_report(folder)
    for render in (to_html, to_markdown, to_json):
        assert "run?" in render(report).encode().decode()


def test_it_is_said_that_the_files_are_not_signed(finished: Path) -> None:
    for text in (to_html(run_report(finished)), to_json(run_report(finished))):
        assert "not signed: who can write to the folder can change what is reported" in text
        assert "The ledger is checked for damage, not for forgery." in text
