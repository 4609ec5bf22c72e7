"""Fitted estimators in run directories: safetensors and JSON, nothing that executes code."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from dither.estimators.base import PrivateEstimator
from dither.estimators.gam import PrivateGAMClassifier, PrivateGAMRegressor
from dither.estimators.leaks import derived_values
from dither.estimators.linear import (
    Linear,
)
from dither.estimators.modules import (
    PrivateClassifier,
)
from dither.ledger import Ledger
from dither.ledger.files import write_atomic
from dither.planning import Plan
from dither.training.loop import TrainResult, save_result
from dither.training.run_directory import MODEL, SCHEMA, Run, RunDirectory
from dither.training.statement import derived_clause
from dither.validate import InvalidTypeError, InvalidValueError

FORMAT = "dither-model-1"
_NOT_SAVED = ("ledger", "module", "random_state", "schema", "verbose")


def save(
    estimator: PrivateEstimator,
    directory: str | Path,
    *,
    data: str,
    purpose: str,
    part: tuple[str, str] | None,
    metrics: Mapping[str, float],
) -> None:
    """Write a fitted estimator to a new run directory; see `PrivateEstimator.save`."""
    check_is_fitted(estimator, "privacy_")
    result: TrainResult = estimator._result
    plan = _plan_to_save(result)
    run = Run(
        directory, ledger=estimator.ledger, data=data, purpose=purpose, part=part,
        derived_from_private_data=derived_values(estimator._leaks),
        is_counted=estimator.dataset_size is None,
    )  # fmt: skip
    place = RunDirectory(run, directory)
    texts = {MODEL: json.dumps(_facts(estimator), indent=2, ensure_ascii=False, allow_nan=False)}
    if has_schema(estimator):
        texts[SCHEMA] = estimator.schema_.to_json()
    if estimator.ledger is not None:
        place.run = _run_in_ledger(estimator.ledger, result)
    ledger = place.begin(plan.to_json(), result.recipe)
    if estimator.ledger is None:
        _charge(ledger, place.run, plan, is_seeded=result.seed is not None)
    ledger.close()
    for name, text in texts.items():
        place.write(name, text)
    hashes = {name: text_hash(text) for name, text in texts.items()}
    facts = {"sha256": hashes}
    save_result(result, place, _tensors(estimator), facts=facts, metrics=metrics)


def _plan_to_save(result: TrainResult) -> Plan:
    if not isinstance(result.plan, Plan):
        raise InvalidValueError(
            "stepsizes must be fixed in advance for a model that is saved, got a reactive schedule"
        )
    if result.bound.epsilon != result.plan.bound.epsilon:
        raise InvalidValueError(
            "estimator must be fitted by itself to be saved: a ledger cannot have the cost of a "
            "search, whose best estimator this is"
        )
    return result.plan


def has_schema(estimator: PrivateEstimator) -> bool:
    """Return whether an estimator encodes tables."""
    is_additive = isinstance(estimator, PrivateGAMClassifier | PrivateGAMRegressor)
    return is_additive or estimator.schema is not None


def _run_in_ledger(ledger: Any, result: TrainResult) -> str:
    """Return the run of a fit in the ledger: by its name, else the latest with its plan."""
    opened = ledger if isinstance(ledger, Ledger) else Ledger(ledger, create=False)
    names = [
        name
        for name, run in opened.runs.items()
        if run.entry.fingerprint == result.plan.fingerprint and result.run in (None, name)
    ]
    if opened is not ledger:
        opened.close()
    if not names:
        raise InvalidValueError(f"ledger must have the fit, got {str(opened.path)!r} without it")
    return names[-1]


def _charge(ledger: Ledger, name: str, plan: Plan, *, is_seeded: bool) -> None:
    """Charge all steps of a fit, before its model can be seen."""
    account = ledger.register(plan, name=name, is_seeded=is_seeded)
    for step, z in enumerate(plan.charges.tolist()):
        account.finish(step, z)
    account.end()


def _facts(estimator: PrivateEstimator) -> dict[str, Any]:
    """Return what model.json has besides tensors: JSON values."""
    given = estimator.get_params(deep=False)
    plain = {name: _plain(value) for name, value in given.items() if name not in _NOT_SAVED}
    names = getattr(estimator, "feature_names_in_", None)
    targets, noise = (getattr(estimator, name, None) for name in ("_targets", "_weight_noise"))
    return {
        "format": FORMAT,
        "class": type(estimator).__name__,
        "parameters": {name: value for name, value in plain.items() if value is not None},
        "module": getattr(estimator, "_module_name", None),
        **_class_facts(getattr(estimator, "classes_", None)),
        "n_features": estimator.n_features_in_,
        "features": None if names is None else [*map(str, names)],
        "shape": [*estimator._shape],
        "targets": None if targets is None else [targets.center, targets.half_range],
        "norm": None if np.isinf(estimator._scaling.norm) else estimator._scaling.norm,
        "leaks": estimator._leaks,
        "is_weighted": estimator._is_weighted,
        "weight_noise": noise,
        "bins": getattr(estimator, "bins_", None),
        "has_schema": estimator.schema is not None,
    }


def _class_facts(classes: Any) -> dict[str, Any]:
    if classes is None:
        return {"classes": None}
    labels = classes.tolist()
    if not all(isinstance(label, str | int | float) for label in labels):
        raise InvalidTypeError(
            f"classes must be texts, numbers or truth values for a model that is saved, got "
            f"{type(labels[0]).__name__}"
        )
    return {"classes": labels, "dtype": classes.dtype.str}


def _plain(value: Any) -> Any:
    """Return a parameter as a JSON value; None if it is none."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple | range):
        parts = [_plain(each) for each in value]
        return None if any(part is None for part in parts) else parts
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if isinstance(value, bool | int | str) else None


def describe_module(
    directory: str | Path,
    result: TrainResult,
    *,
    module: str,
    shape: tuple[int, ...],
    classes: Sequence[str],
    parameters: Mapping[str, Any],
) -> None:
    """Write model.json beside the model of `dither.train`, so that `load` finds it.

    Args:
        directory: the run directory, where the run has ended.
        result: what `train` returned.
        module: one of `dither.training.MODELS`, or the name of a module of one's own, which `load`
            must then be given.
        shape: of a record.
        classes: the names of the classes.
        parameters: settings of the run; those that `PrivateClassifier` has not are left out.
    """
    known = PrivateClassifier._get_param_names()
    facts = {
        "format": FORMAT,
        "class": PrivateClassifier.__name__,
        "parameters": {
            name: _plain(value)
            for name, value in parameters.items()
            if name in known and _plain(value) is not None
        },
        "module": module,
        "classes": [*classes],
        "features": None,
        "shape": [*shape],
        "targets": None,
        "norm": None,
        "leaks": [derived_clause(each) for each in result.derived_from_private_data],
        "is_weighted": result.is_weighted,
        "weight_noise": None,
        "has_schema": False,
    }
    text = json.dumps(facts, indent=2, ensure_ascii=False)
    write_atomic(Path(directory) / MODEL, text.encode())


def _tensors(estimator: PrivateEstimator) -> dict[str, Tensor]:
    scaling = estimator._scaling
    arrays = {
        name: torch.tensor(getattr(scaling, name))
        for name in ("offset", "factor", "lower", "upper")
        if getattr(scaling, name) is not None
    }
    tensors = {f"features.{name}": each for name, each in arrays.items()}
    if isinstance(estimator, Linear):
        weights = {"coef": estimator.coef_, "intercept": estimator.intercept_}
        return tensors | {
            name: torch.tensor(each, dtype=torch.float64) for name, each in weights.items()
        }
    module: nn.Module = estimator.module_
    return tensors | {f"module.{name}": each for name, each in module.state_dict().items()}


def text_hash(text: str) -> str:
    """Return the SHA-256 of a file's text."""
    return hashlib.sha256(text.encode()).hexdigest()
