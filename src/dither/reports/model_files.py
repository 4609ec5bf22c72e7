"""What a run directory says of its model: schema.json, model.json and evaluation.json.

They are read leniently: a part that is missing or unknown is left out of the report.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, final

SCHEMA, MODEL_CLASS, EVALUATION = "schema.json", "model.json", "evaluation.json"


@final
@dataclass(frozen=True)
class Schema:
    """Summary of schema.json: how many columns there are of each kind, and the target."""

    kinds: dict[str, int]
    target: str | None
    classes: tuple[str, ...]
    bounds: tuple[float, ...]


@final
@dataclass(frozen=True)
class Estimate:
    """A number with its confidence interval, if there is one."""

    value: float
    low: float | None = None
    high: float | None = None


@final
@dataclass(frozen=True)
class Bin:
    """The records of a range of predicted probabilities: how often the class was observed."""

    low: float
    high: float
    observed: Estimate


@final
@dataclass(frozen=True)
class PaidEvaluation:
    """evaluation.json: the quality of the model on private records, with noise.

    Attributes:
        epsilon: what it costs each record in it.
        delta: δ of that.
        metrics: estimates by name.
        calibration: observed shares by predicted probability.
        confusion: noisy counts, a row for each true class.
        classes: the classes of the confusion matrix.
    """

    epsilon: float | None
    delta: float | None
    metrics: dict[str, Estimate]
    calibration: tuple[Bin, ...]
    confusion: tuple[tuple[float, ...], ...]
    classes: tuple[str, ...]


def parse_schema(text: str) -> Schema:
    """Return the summary of schema.json.

    >>> parse_schema('{"target": {"column": "y", "classes": [0, 1]}, "columns": {}}').classes
    ('0', '1')
    """
    found = json.loads(text)
    target = found.get("target") or {}
    return Schema(
        kinds=dict(Counter(str(column["kind"]) for column in found["columns"].values())),
        target=target.get("column"),
        classes=tuple(map(str, target.get("classes") or ())),
        bounds=tuple(target.get("bounds") or ()),
    )


def parse_model(text: str) -> str:
    """Return the kind of model that model.json names.

    >>> parse_model('{"class": "PrivateGAMClassifier"}')
    'PrivateGAMClassifier'
    """
    return str(json.loads(text)["class"])


def parse_evaluation(text: str) -> PaidEvaluation:
    """Return what evaluation.json has.

    >>> parse_evaluation('{"metrics": {"auc": {"value": 0.8, "low": 0.7}}}').metrics
    {'auc': Estimate(value=0.8, low=0.7, high=None)}
    """
    found = json.loads(text)
    privacy = found.get("privacy") or {}
    metrics = {name: _estimate(value) for name, value in (found.get("metrics") or {}).items()}
    classes = tuple(map(str, found.get("classes") or ()))
    bins = [(each, _estimate(each.get("observed"))) for each in found.get("calibration") or ()]
    return PaidEvaluation(
        epsilon=_number(privacy.get("epsilon")),
        delta=_number(privacy.get("delta")),
        metrics={name: value for name, value in metrics.items() if value is not None},
        calibration=tuple(
            Bin(float(each["low"]), float(each["high"]), observed)
            for each, observed in bins
            if observed is not None
        ),
        confusion=_confusion(found.get("confusion") or (), len(classes)),
        classes=classes,
    )


def _number(found: Any) -> float | None:
    return float(found) if isinstance(found, Real) and math.isfinite(found) else None


def _confusion(rows: Sequence[Sequence[Any]], classes: int) -> tuple[tuple[float, ...], ...]:
    """Return the matrix, if it has a row and a column for each class."""
    is_square = len(rows) == classes and all(len(row) == classes for row in rows)
    return tuple(tuple(map(float, row)) for row in rows) if is_square else ()


def _estimate(found: Any) -> Estimate | None:
    """Return a number or a mapping with "value", "low" and "high" as an estimate."""
    parts = found if isinstance(found, Mapping) else {"value": found}
    value = _number(parts.get("value"))
    if value is None:
        return None
    return Estimate(value, _number(parts.get("low")), _number(parts.get("high")))
