"""Run directories, as `dither.train` leaves them, for the tests of reports."""

import json
from pathlib import Path
from typing import Any

from tests.training.loops import RECORDS, data, model, noisy_plan

import dither
from dither import Plan, Public
from dither.planning import ReactivePlan
from dither.reports import RunReport
from dither.reports.appendix import appendix_of
from dither.reports.document import front_of, what_of
from dither.reports.text import headline
from dither.training import TrainResult


def trained(
    directory: Path, plan: Plan | ReactivePlan | None = None, **settings: Any
) -> TrainResult:
    """Train a small model into a run directory, unseeded."""
    run = {
        name: settings.pop(name)
        for name in ("ledger", "derived_from_private_data", "data", "purpose")
        if name in settings
    }
    given = {"every": 2, "progress": False, "run": dither.Run(directory, **run), **settings}
    return dither.train(model(), data(), plan or noisy_plan(), **given)


def text_of(report: RunReport) -> str:
    """Return all text of a report, but that of its pictures."""
    sections = what_of(report), *front_of(report), *appendix_of(report)
    return "\n".join([*headline(report), *report.warnings, *map(repr, sections)])


def interval(value: float, half: float) -> dict[str, float]:
    return {"value": value, "low": value - half, "high": value + half}


def describe(directory: Path, classes: tuple[str, str] = ("no", "yes")) -> None:
    """Add what a run on a table has: a schema, a kind of model, and a paid evaluation."""
    kinds = {"age": "number", "weight": "number", "sex": "category", "id": "ignored"}
    files = {
        "schema.json": {
            "target": {"column": "readmitted", "classes": classes},
            "columns": {name: {"kind": kind} for name, kind in kinds.items()},
        },
        "model.json": {"class": "PrivateGAMClassifier", "parameters": {}},
        "evaluation.json": {
            "format": "dither-evaluation-1",
            "privacy": {"epsilon": 0.125, "delta": 1e-6},
            "records": interval(2000.0, 40.0), "noise": 12.5, "is_seeded": False,
            "accuracy": interval(0.914, 0.01), "auc": interval(0.758, 0.02),
            "log_loss": interval(0.256, 0.01), "brier_score": interval(0.07, 0.01),
            "base_log_loss": interval(0.293, 0.0), "r2": None,
            "class_shares": [interval(0.9, 0.02), interval(0.1, 0.02)],
            "calibration": [
                {"low": 0.0, "high": 0.2, "predicted": 0.08, "observed": interval(0.12, 0.01)},
                {"low": 0.2, "high": 0.6, "observed": interval(0.33, 0.05)},
                {"low": 0.5, "high": 0.6, "observed": interval(0.5, 0.3)},
                {"low": 0.6, "high": 1.0, "observed": None},
            ],
            "confusion_matrix": [[interval(0.8, 0.1), 0.1], [0.06, 0.04]],
            "classes": classes,
        },
    }  # fmt: skip
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content), encoding="utf-8")


def public() -> Public:
    return Public(data(40))


def reactive(stepsizes: Any, noise: Any = "uniform") -> ReactivePlan:
    plan: ReactivePlan = dither.plan(
        epsilon=3.0, delta=1e-3, dataset_size=RECORDS, batch_size=12, steps=4,
        stepsizes=stepsizes, noise=noise,
    )  # fmt: skip
    return plan


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file; of its bound if they are a bound's."""
    found = json.loads(path.read_text(encoding="utf-8"))
    for name, value in changes.items():
        part = found["bound"] if name in found.get("bound", {}) else found
        part[name] = value
    path.write_text(json.dumps(found), encoding="utf-8")
