"""Fitted estimators in run directories: safetensors and JSON, nothing that executes code."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from dither.estimators.base import PrivateEstimator
from dither.estimators.bounds import FeatureScaling, TargetScaling
from dither.estimators.gam import PrivateGAMClassifier, PrivateGAMRegressor
from dither.estimators.leaks import Leaks, derived_values
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
from dither.planning import Plan
from dither.planning.serialization import from_json_value
from dither.schema import Schema
from dither.training.loop import TrainResult, save_result
from dither.training.models import MODELS
from dither.training.recipe import Recipe
from dither.training.run_directory import MODEL, PLAN, RECIPE, RESULT, SCHEMA, Run, RunDirectory
from dither.types import PrivacyBound
from dither.validate import InvalidTypeError, InvalidValueError

_FORMAT = "dither-model-1"
_WEIGHTS = "model.safetensors"
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
_ROUNDING = 1e-6  # another machine may round ε differently


def save(
    estimator: PrivateEstimator,
    directory: str | Path,
    *,
    data: str,
    purpose: str,
    part: tuple[str, str] | None,
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
    if _has_schema(estimator):
        texts[SCHEMA] = estimator.schema_.to_json()
    if estimator.ledger is not None:
        place.run = _run_in_ledger(estimator.ledger, plan)
    ledger = place.begin(plan.to_json(), result.recipe)
    if estimator.ledger is None:
        _charge(ledger, place.run, plan, is_seeded=result.seed is not None)
    ledger.close()
    for name, text in texts.items():
        place.write(name, text)
    hashes = {name: _hash(text) for name, text in texts.items()}
    save_result(result, place, _tensors(estimator), facts={"sha256": hashes})


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


def _has_schema(estimator: PrivateEstimator) -> bool:
    is_additive = isinstance(estimator, PrivateGAMClassifier | PrivateGAMRegressor)
    return is_additive or estimator.schema is not None


def _run_in_ledger(ledger: Any, plan: Plan) -> str:
    """Return the latest run of a plan in the ledger that a fit was charged to."""
    opened = ledger if isinstance(ledger, Ledger) else Ledger(ledger, create=False)
    names = [name for name, run in opened.runs.items() if run.entry.fingerprint == plan.fingerprint]
    if opened is not ledger:
        opened.close()
    if not names:
        raise InvalidValueError(f"ledger must have the fit, got {str(opened.path)!r} without it")
    return names[-1]


def _charge(ledger: Ledger, name: str, plan: Plan, *, is_seeded: bool) -> None:
    """Charge all steps of a fit, before its model can be seen."""
    account = ledger.register(plan, name=name, is_seeded=is_seeded)
    for step, z in enumerate(plan.least_noise.tolist()):
        account.finish(step, z)
    account.end()


def _facts(estimator: PrivateEstimator) -> dict[str, Any]:
    """Return what model.json has besides tensors: JSON values."""
    given = estimator.get_params(deep=False)
    plain = {name: _plain(value) for name, value in given.items() if name not in _NOT_SAVED}
    names = getattr(estimator, "feature_names_in_", None)
    targets, noise = (getattr(estimator, name, None) for name in ("_targets", "_weight_noise"))
    return {
        "format": _FORMAT,
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


def load(
    directory: str | Path, *, module: nn.Module | Callable[..., nn.Module] | None = None
) -> Any:
    """Return the model of a run directory, as `save` or ``dither train`` wrote it.

    Nothing in the directory is executed. The model is for predictions: parameters that are no
    numbers, texts or lists of them are not in the directory, and None.

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
    texts = {name: _read(path, name) for name in (MODEL, PLAN, RESULT)}
    with _damage(path, MODEL):
        facts = json.loads(texts[MODEL])
        if facts["format"] != _FORMAT or facts["class"] not in _ESTIMATORS:
            raise InvalidValueError(f"{str(path / MODEL)!r} must be a model of {_FORMAT}")
        kind, parameters = _ESTIMATORS[facts["class"]], dict(facts["parameters"])
        is_own = kind in (PrivateClassifier, PrivateRegressor)
    if is_own:
        parameters["module"] = _find_module(facts, module, path)
    with _damage(path, MODEL):
        estimator: PrivateEstimator = kind(**parameters)
        estimator._validate_params()
    if _has_schema(estimator) or facts.get("has_schema"):
        texts[SCHEMA] = _read(path, SCHEMA)
        estimator.schema_ = Schema.load(path / SCHEMA)
    result = _read_result(path, texts)
    tensors = _read_tensors(path, texts)
    with _damage(path, MODEL):
        _restore(estimator, facts, tensors, result)
    return estimator


@contextmanager
def _damage(path: Path, name: str) -> Iterator[None]:
    """Turn what a damaged file leads to into one line that names it."""
    try:
        yield
    except (InvalidValueError, InvalidTypeError):
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise InvalidValueError(f"{str(path / name)!r} is damaged") from None


def _read(path: Path, name: str) -> str:
    try:
        return (path / name).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidValueError(
            f"directory must be a run directory with {name}, got {str(path)!r}"
        ) from None
    except UnicodeDecodeError:
        raise InvalidValueError(f"{str(path / name)!r} is damaged") from None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _find_module(facts: dict[str, Any], module: Any, path: Path) -> Any:
    name = facts.get("module")
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


def _read_result(path: Path, texts: dict[str, str]) -> TrainResult:
    """Return the result of the run, whose ε must be that of its plan."""
    with _damage(path, PLAN):
        plan = Plan.from_json(texts[PLAN])
    with _damage(path, RESULT):
        found = json.loads(texts[RESULT])
        epsilon = float(from_json_value(found["bound"]["epsilon"]))
        bound = PrivacyBound(**{**found["bound"], "epsilon": epsilon})
        is_complete = found["plan"] == plan.fingerprint and found["steps"] == plan.steps
        claims_less = epsilon < plan.bound.epsilon * (1.0 - _ROUNDING) or bound.delta < plan.delta
        if is_complete and claims_less:
            raise InvalidValueError(f"{str(path / RESULT)!r} must have the ε and δ of its plan")
        file = path / RECIPE
        recipe = Recipe.from_json(file.read_text(encoding="utf-8")) if file.exists() else None
        return TrainResult(
            nn.Identity(), plan, bound, found["steps"], (), found["seed"], (), recipe,
            found["factor"],
        )  # fmt: skip


def _read_tensors(path: Path, texts: dict[str, str]) -> dict[str, Tensor]:
    """Return the weights, if the files that they were written with are unchanged."""
    if not (path / _WEIGHTS).exists():
        raise InvalidValueError(
            f"directory must be a run directory with {_WEIGHTS}, got {str(path)!r}"
        )
    tensors, facts = load_checkpoint(path / _WEIGHTS)
    for name, expected in facts.get("sha256", {}).items():
        if _hash(texts.get(name, "")) != expected:
            raise InvalidValueError(
                f"{str(path / name)!r} must be as the model was saved with, but was changed"
            )
    return tensors


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
    estimator._store_scaling(FeatureScaling(**arrays, norm=norm))
    estimator.schema = estimator.schema_ if facts["has_schema"] else None
    estimator._is_weighted = facts["is_weighted"]
    if facts["classes"] is not None:
        estimator.classes_ = np.array(facts["classes"], dtype=facts.get("dtype"))
    if facts["targets"] is not None:
        estimator._targets = TargetScaling(*facts["targets"])
    estimator.n_features_in_ = facts.get("n_features", facts["shape"][0])
    if facts["features"] is not None:
        estimator.feature_names_in_ = np.array(facts["features"], dtype=object)
    if facts["bins"] is not None:
        estimator.bins_ = facts["bins"]
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
    outputs = 1 if facts["classes"] is None else len(facts["classes"])
    module = estimator._new_module(tuple(facts["shape"]), outputs, None).eval()
    state = {
        name.removeprefix("module."): each
        for name, each in tensors.items()
        if name.startswith("module.")
    }
    dtype = next(each.dtype for each in state.values() if each.is_floating_point())
    estimator.module_ = module.to(dtype)
    try:
        estimator.module_.load_state_dict(state)
    except RuntimeError as problem:
        raise InvalidValueError(
            f"module must be the one that was trained, got another: {str(problem).splitlines()[0]}"
        ) from None
