"""Load fitted models from run directories; nothing in them is executed."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
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
from dither.estimators.saving import FORMAT, has_schema, text_hash
from dither.ledger import load_checkpoint
from dither.planning import Plan
from dither.planning.serialization import from_json_value
from dither.schema import Schema
from dither.training.loop import TrainResult
from dither.training.models import MODELS
from dither.training.recipe import Recipe
from dither.training.run_directory import MODEL, PLAN, RECIPE, RESULT, SCHEMA
from dither.types import PrivacyBound
from dither.validate import InvalidTypeError, InvalidValueError

_WEIGHTS = "model.safetensors"
_ROUNDING = 1e-6  # another machine may round ε differently
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
        >>> from dither.estimators import PrivateLogisticRegression
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
        if facts["format"] != FORMAT or facts["class"] not in _ESTIMATORS:
            raise InvalidValueError(f"{str(path / MODEL)!r} must be a model of {FORMAT}")
        kind, parameters = _ESTIMATORS[facts["class"]], dict(facts["parameters"])
        is_own = kind in (PrivateClassifier, PrivateRegressor)
    if is_own:
        parameters["module"] = _find_module(facts, module, path)
    with _damage(path, MODEL):
        estimator: PrivateEstimator = kind(**parameters)
        estimator._validate_params()
    if has_schema(estimator) or facts.get("has_schema"):
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
        if text_hash(texts.get(name, "")) != expected:
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
    scaling = FeatureScaling(**arrays, norm=norm) if arrays else None  # none of dither.train
    estimator._store_scaling(scaling or FeatureScaling.by(np.ones(facts["shape"])))
    estimator.schema = estimator.schema_ if facts["has_schema"] else None
    estimator._is_weighted = facts["is_weighted"]
    if facts["classes"] is not None:
        estimator.classes_ = np.array(facts["classes"], dtype=facts.get("dtype"))
    if facts["targets"] is not None:
        estimator._targets = TargetScaling(*facts["targets"])
    estimator.n_features_in_ = facts.get("n_features", facts["shape"][0])
    if facts["features"] is not None:
        estimator.feature_names_in_ = np.array(facts["features"], dtype=object)
    if facts.get("bins") is not None:
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
    estimator._module_name = facts["module"]
    outputs = 1 if facts["classes"] is None else len(facts["classes"])
    module = estimator._new_module(tuple(facts["shape"]), outputs, None).eval()
    is_scaled = any(name.startswith("features.") for name in tensors)  # else of dither.train
    state = {
        name.removeprefix("module.") if is_scaled else name: each
        for name, each in tensors.items()
        if name.startswith("module.") or not is_scaled
    }
    dtype = next(each.dtype for each in state.values() if each.is_floating_point())
    estimator.module_ = module.to(dtype)
    try:
        estimator.module_.load_state_dict(state)
    except RuntimeError as problem:
        raise InvalidValueError(
            f"module must be the one that was trained, got another: {str(problem).splitlines()[0]}"
        ) from None
