"""Fitted estimators in run directories: safetensors and JSON, nothing that executes code."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from dither.estimators.base import PrivateEstimator
from dither.estimators.bounds import FeatureScaling, TargetScaling
from dither.estimators.gam import PrivateGAMClassifier, PrivateGAMRegressor
from dither.estimators.leaks import Leaks
from dither.estimators.linear import (
    Linear,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateSVC,
)
from dither.estimators.modules import (
    PrivateClassifier,
    PrivateMLPClassifier,
    PrivateMLPRegressor,
    PrivateRegressor,
)
from dither.ledger import Ledger, load_checkpoint
from dither.ledger.files import write_atomic
from dither.planning import Plan
from dither.planning.serialization import from_json_value
from dither.schema import Schema
from dither.training.loop import TrainResult, plan_text, save_result
from dither.training.models import MODELS
from dither.training.recipe import Recipe
from dither.training.run_directory import MODEL, PLAN, RECIPE, RESULT, SCHEMA, Run, RunDirectory
from dither.training.statement import derived_clause
from dither.types import PrivacyBound
from dither.validate import InvalidTypeError, InvalidValueError

_FORMAT = "dither-model-1"
_ESTIMATORS: dict[str, type[Any]] = {
    each.__name__: each
    for each in (
        PrivateClassifier,
        PrivateGAMClassifier,
        PrivateGAMRegressor,
        PrivateLinearRegression,
        PrivateLogisticRegression,
        PrivateMLPClassifier,
        PrivateMLPRegressor,
        PrivateRegressor,
        PrivateSVC,
    )
}
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
    if result.bound.epsilon != result.plan.bound.epsilon:
        raise InvalidValueError(
            "estimator must be fitted by itself to be saved: a ledger cannot have the cost of a "
            "search, whose best estimator this is"
        )
    derived = tuple(each.removesuffix(_DERIVED) for each in estimator._leaks)
    run = Run(
        directory, ledger=estimator.ledger, data=data, purpose=purpose, part=part,
        derived_from_private_data=derived, is_counted=estimator.dataset_size is None,
    )  # fmt: skip
    place = RunDirectory(run, directory)
    if estimator.ledger is not None:
        place.run = _run_in_ledger(estimator.ledger, result.plan)
    ledger = place.begin(plan_text(result.plan), result.recipe)
    if estimator.ledger is None:
        _charge(ledger, place.run, result)
    ledger.close()
    if hasattr(estimator, "schema_"):
        place.write(SCHEMA, estimator.schema_.to_json())
    place.write(MODEL, json.dumps(_facts(estimator), indent=2, ensure_ascii=False))
    save_result(result, place, _tensors(estimator), metrics=metrics)


_DERIVED = " were derived from the private data"


def _run_in_ledger(ledger: Any, plan: Any) -> str:
    """Return the latest run of a plan in the ledger that a fit was charged to."""
    opened = ledger if isinstance(ledger, Ledger) else Ledger(ledger, create=False)
    names = [name for name, run in opened.runs.items() if run.entry.fingerprint == plan.fingerprint]
    if not names:
        raise InvalidValueError(f"ledger must have the fit, got {str(opened.path)!r} without it")
    return names[-1]


def _charge(ledger: Ledger, name: str, result: TrainResult) -> None:
    """Charge all steps of a fit, before its model can be seen."""
    account = ledger.register(result.plan, name=name, is_seeded=result.seed is not None)
    for step, z in enumerate(result.plan.least_noise.tolist()):
        account.finish(step, z)
    account.end()


def _facts(estimator: PrivateEstimator) -> dict[str, Any]:
    """Return what model.json has besides tensors: JSON values."""
    parameters = {
        name: value
        for name, value in estimator.get_params(deep=False).items()
        if name not in _NOT_SAVED and value is not None and _is_plain(value)
    }
    classes, names = (getattr(estimator, name, None) for name in ("classes_", "feature_names_in_"))
    targets = getattr(estimator, "_targets", None)
    return {
        "format": _FORMAT,
        "class": type(estimator).__name__,
        "parameters": parameters,
        "module": getattr(estimator, "_module_name", None),
        "classes": None if classes is None else classes.tolist(),
        "features": None if names is None else [*map(str, names)],
        "shape": [*estimator._shape],
        "targets": None if targets is None else [targets.center, targets.half_range],
        "norm": None if np.isinf(estimator._scaling.norm) else estimator._scaling.norm,
        "leaks": estimator._leaks,
        "is_weighted": estimator._is_weighted,
        "weight_noise": getattr(estimator, "_weight_noise", None),
        "has_schema": estimator.schema is not None,
    }


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
        "format": _FORMAT,
        "class": PrivateClassifier.__name__,
        "parameters": {k: v for k, v in parameters.items() if k in known and _is_plain(v)},
        "module": module,
        "classes": [*classes],
        "features": None,
        "shape": [*shape],
        "targets": None,
        "norm": None,
        "leaks": [derived_clause(each) for each in result.derived_from_private_data],
        "is_weighted": False,
        "weight_noise": None,
        "has_schema": False,
    }
    text = json.dumps(facts, indent=2, ensure_ascii=False)
    write_atomic(Path(directory) / MODEL, text.encode())


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str)


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
        return tensors | {name: torch.tensor(each) for name, each in weights.items()}
    module: nn.Module = estimator.module_
    return tensors | {f"module.{name}": each for name, each in module.state_dict().items()}


def load(
    directory: str | Path, *, module: nn.Module | Callable[..., nn.Module] | None = None
) -> Any:
    """Return the model of a run directory, as `save` or ``dither train`` wrote it.

    Nothing in the directory is executed.

    Args:
        directory: the run directory.
        module: for models of one's own, the untrained module or the function that makes it, as
            `PrivateClassifier` takes it.

    Returns:
        A fitted estimator, with ``predict``, ``privacy``, and ``predict_proba`` for classes.

    Example:
        >>> import tempfile
        >>> from sklearn.datasets import load_digits
        >>> X, y = load_digits(return_X_y=True)
        >>> model = PrivateLogisticRegression(feature_bounds=(0, 16), classes=range(10))
        >>> path = model.fit(X, y).save(tempfile.mkdtemp())
        >>> loaded = load(path)
        >>> bool((loaded.predict(X) == model.predict(X)).all()), loaded.privacy == model.privacy
        (True, True)
    """
    path = Path(directory)
    facts = _read_json(path / MODEL)
    if facts.get("format") != _FORMAT or facts.get("class") not in _ESTIMATORS:
        raise InvalidValueError(f"{str(path / MODEL)!r} must be a model of {_FORMAT}")
    kind = _ESTIMATORS[facts["class"]]
    parameters = dict(facts["parameters"])
    if kind in (PrivateClassifier, PrivateRegressor):
        parameters["module"] = _find_module(facts, module, path)
    estimator: PrivateEstimator = kind(**parameters)
    if (path / SCHEMA).exists():
        estimator.schema_ = Schema.load(path / SCHEMA)
        estimator.schema = estimator.schema_ if facts["has_schema"] else None
    tensors, _ = load_checkpoint(path / "model.safetensors")
    _restore(estimator, facts, tensors, _read_result(path))
    return estimator


def _find_module(facts: dict[str, Any], module: Any, path: Path) -> Any:
    name = facts["module"]
    if module is None and name in MODELS:
        build = MODELS[name]
        return lambda features, outputs: build(_as_shape(features), outputs)
    if module is None:
        raise InvalidTypeError(
            f"module must be given to load a model of one's own from {str(path)!r}, got None"
        )
    return module


def _as_shape(features: Any) -> tuple[int, ...]:
    return (features,) if isinstance(features, int) else tuple(features)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidValueError(
            f"directory must be a run directory with {path.name}, got {str(path.parent)!r}"
        ) from None
    except ValueError:
        raise InvalidValueError(f"{str(path)!r} is damaged") from None
    return found


def _read_result(path: Path) -> TrainResult:
    found = _read_json(path / RESULT)
    epsilon = float(from_json_value(found["bound"]["epsilon"]))
    bound = PrivacyBound(**{**found["bound"], "epsilon": epsilon})
    plan = Plan.from_json((path / PLAN).read_text(encoding="utf-8"))
    file = path / RECIPE
    recipe = Recipe.from_json(file.read_text(encoding="utf-8")) if file.exists() else None
    return TrainResult(
        nn.Identity(), plan, bound, found["steps"], (), found["seed"], (), recipe, found["factor"]
    )


def _restore(
    estimator: PrivateEstimator,
    facts: dict[str, Any],
    tensors: dict[str, Tensor],
    result: TrainResult,
) -> None:
    arrays = {
        name.removeprefix("features."): each.numpy()
        for name, each in tensors.items()
        if name.startswith("features.")
    }
    norm = np.inf if facts["norm"] is None else facts["norm"]
    estimator._store_scaling(
        FeatureScaling(**arrays, norm=norm)
        if arrays
        else FeatureScaling.by(np.ones(facts["shape"]))  # of dither.train
    )
    estimator._is_weighted = facts["is_weighted"]
    if facts["classes"] is not None:
        estimator.classes_ = np.array(facts["classes"])
    if facts["targets"] is not None:
        estimator._targets = TargetScaling(*facts["targets"])
    estimator.n_features_in_ = facts["shape"][0]
    if facts["features"] is not None:
        estimator.feature_names_in_ = np.array(facts["features"], dtype=object)
        estimator.n_features_in_ = len(facts["features"])
    if isinstance(estimator, Linear):
        estimator._weight_noise = facts["weight_noise"]
        estimator.coef_ = tensors["coef"].numpy()
        intercept = tensors["intercept"].numpy()
        estimator.intercept_ = intercept if intercept.ndim else float(intercept)
    else:
        _restore_module(estimator, facts, tensors)
        estimator.recipe_ = result.recipe
    leaks = Leaks()
    leaks.descriptions += facts["leaks"]
    estimator._store_result(result, leaks)


def _restore_module(estimator: Any, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    estimator._module_name = facts["module"]
    outputs = 1 if facts["classes"] is None else len(facts["classes"])
    module = estimator._new_module(tuple(facts["shape"]), outputs, None).eval()
    is_scaled = any(name.startswith("features.") for name in tensors)  # else of dither.train
    state = {
        name.removeprefix("module.") if is_scaled else name: each
        for name, each in tensors.items()
        if name.startswith("module.") or not is_scaled
    }
    dtype = next(iter(state.values())).dtype
    estimator.module_ = module.to(dtype) if dtype.is_floating_point else module
    try:
        estimator.module_.load_state_dict(state)
    except RuntimeError as problem:
        raise InvalidValueError(
            f"module must be the one that was trained, got another: {str(problem).splitlines()[0]}"
        ) from None
