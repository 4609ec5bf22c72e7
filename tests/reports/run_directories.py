"""Run directories, as `dither.train` leaves them, for the tests of reports."""

import json
from pathlib import Path
from typing import Any

from tests.training.loops import RECORDS, data, model, noisy_plan

import dither
from dither import Plan, Public
from dither.planning import ReactivePlan
from dither.reports import RunReport
from dither.reports.document import sections_of
from dither.reports.text import headline
from dither.training import TrainResult


def trained(
    directory: Path, plan: Plan | ReactivePlan | None = None, **settings: Any
) -> TrainResult:
    """Train a small model into a run directory, unseeded."""
    run = {
        name: settings.pop(name)
        for name in ("ledger", "derived_from_private_data")
        if name in settings
    }
    given = {"every": 2, "progress": False, "run": dither.Run(directory, **run), **settings}
    return dither.train(model(), data(), plan or noisy_plan(), **given)


def text_of(report: RunReport) -> str:
    """Return all text of a report."""
    return "\n".join([*headline(report), *report.warnings, *map(repr, sections_of(report))])


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
