"""What a run directory says of its model: its schema, its kind, its evaluation and its audits.

The first three are read leniently: a part that is missing or unknown is left out of the report.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, final


@final
@dataclass(frozen=True)
class Audit:
    """One audit of audit.json: a lower bound on ε, and the ε that was claimed."""

    time: str
    attack: str
    steps: str
    claimed: float | None
    lower: float
    confidence: float
    is_violated: bool
    verdict: str
    curves: dict[str, list[float] | None]


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

    predicted: float
    observed: Estimate


@final
@dataclass(frozen=True)
class PaidEvaluation:
    """evaluation.json: the quality of the model on private records, with noise.

    Attributes:
        epsilon: what it costs each record in it.
        delta: δ of that.
        unit: what it protects.
        is_seeded: whether its noise can be computed from a seed.
        run: its name in the ledger.
        metrics: estimates by name.
        base_rates: the same for a model that knows no more than the share of each class.
        calibration: observed shares by predicted probability.
        confusion: noisy shares or counts, a row for each true class.
        classes: the classes of the confusion matrix.
    """

    epsilon: float | None
    delta: float | None
    unit: str
    is_seeded: bool
    run: str | None
    metrics: dict[str, Estimate]
    base_rates: dict[str, float]
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
    """Return the kind of model that model.json names, and its module if that has a name.

    >>> parse_model('{"class": "PrivateGAMClassifier"}')
    'PrivateGAMClassifier'
    """
    found = json.loads(text)
    module = found.get("module")
    return f"{found['class']} ({module})" if module else str(found["class"])


def parse_evaluation(text: str) -> PaidEvaluation:
    """Return what evaluation.json has.

    >>> parse_evaluation('{"auc": {"value": 0.8, "low": 0.7}}').metrics
    {'auc': Estimate(value=0.8, low=0.7, high=None)}
    """
    found = json.loads(text)
    privacy, classes = found.get("privacy") or {}, tuple(map(str, found.get("classes") or ()))
    metrics = _estimates({**found, **(found.get("metrics") or {})})
    shares = [_estimate(each) for each in found.get("class_shares") or ()]
    rows = found.get("confusion_matrix") or found.get("confusion") or ()
    bases = {name: metrics.pop(name) for name in [*metrics] if name.startswith("base_")}
    return PaidEvaluation(
        epsilon=_number(privacy.get("epsilon")),
        delta=_number(privacy.get("delta")),
        unit=str(privacy.get("unit", "record")),
        is_seeded=bool(found.get("is_seeded")),
        run=found.get("run"),
        metrics=metrics,
        base_rates=_base_rates(bases, [each.value for each in shares if each]),
        calibration=tuple(_bins(found.get("calibration") or ())),
        confusion=_confusion(rows, len(classes)),
        classes=classes,
    )


def _base_rates(bases: dict[str, Estimate], shares: list[float]) -> dict[str, float]:
    """Return the metrics of the shares of the classes; for two, of the share of one of them."""
    if not shares and "base_rate" in bases:
        shares = [bases["base_rate"].value, 1.0 - bases["base_rate"].value]
    found = {"auc": 0.5, "r2": 0.0}
    if shares:
        found["accuracy"] = max(shares)
    if len(shares) == 2:
        found["brier_score"] = found["brier"] = shares[0] * shares[1]
    for name in ("base_log_loss", "base_rate_log_loss"):
        if name in bases:
            found["log_loss"] = bases[name].value
    return found


def _bins(found: Iterable[Mapping[str, Any]]) -> Iterator[Bin]:
    """Yield the bins whose share is known: an interval of half the axis says nothing."""
    for each in found:
        observed = _estimate(each.get("observed"))
        predicted = each.get("predicted", 0.5 * (each["low"] + each["high"]))
        if observed is not None and (observed.high or 0.0) - (observed.low or 0.0) < 0.5:
            yield Bin(float(predicted), observed)


def _confusion(rows: Sequence[Sequence[Any]], classes: int) -> tuple[tuple[float, ...], ...]:
    """Return the matrix, if it has a number for each pair of classes."""
    found = [[each for each in map(_estimate, row) if each is not None] for row in rows]
    is_square = len(found) == classes and all(len(row) == classes for row in found)
    return tuple(tuple(each.value for each in row) for row in found) if is_square else ()


def _estimates(found: Mapping[str, Any]) -> dict[str, Estimate]:
    read = {name: _estimate(each) for name, each in found.items() if isinstance(each, Mapping)}
    return {name: each for name, each in read.items() if each is not None}


def _estimate(found: Any) -> Estimate | None:
    """Return a number or a mapping with "value", "low" and "high" as an estimate."""
    parts = found if isinstance(found, Mapping) else {"value": found}
    value = _number(parts.get("value"))
    if value is None:
        return None
    return Estimate(value, _number(parts.get("low")), _number(parts.get("high")))


def _number(found: Any) -> float | None:
    return float(found) if isinstance(found, Real) and math.isfinite(found) else None


def parse_audits(text: str) -> tuple[Audit, ...]:
    """Return the audits of audit.json, oldest first."""

    def audit(found: dict[str, Any]) -> Audit:
        names = ("time", "attack", "steps", "lower", "confidence", "is_violated", "verdict")
        values = {name: found[name] for name in (*names, "curves")}
        return Audit(**values, claimed=found["claimed"]["epsilon"])

    return tuple(audit(found) for found in json.loads(text)["audits"])


def parse_canaries(text: str) -> tuple[int, int | None]:
    """Return how many canaries were offered, and how many of them were included, if known."""
    found = json.loads(text)
    included = found.get("included")  # written when the run ends
    return int(found["count"]), None if included is None else sum(map(bool, included))
