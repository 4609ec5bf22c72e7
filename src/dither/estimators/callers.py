"""Who calls ``fit``: a pipeline whose scaler learns from private data, a search that fits often.

scikit-learn does not tell an estimator where it is used, so the frames of the call are looked at.
What is found there leads to warnings, and to a claim that is marked as not proven. What is not
known to learn nothing counts as learning.
"""

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from joblib import Parallel
from sklearn.base import MetaEstimatorMixin
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import AdditiveChi2Sampler, RBFSampler
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
)
from sklearn.random_projection import GaussianRandomProjection, SparseRandomProjection

from dither.estimators.leaks import Leaks, PrivacyCostWarning, warn

_LEARN_NOTHING = (
    AdditiveChi2Sampler,
    Binarizer,
    FeatureHasher,
    FrozenEstimator,
    FunctionTransformer,
    GaussianRandomProjection,
    HashingVectorizer,
    Normalizer,
    PolynomialFeatures,
    SparseRandomProjection,
    str,
    type(None),
)
_FITS_OFTEN = "sklearn.model_selection"


def look_at_callers(leaks: Leaks) -> None:
    """Warn if a step of the same pipeline learns from the data, or if this is one fit of many."""
    owners: dict[int, Any] = {}
    modules: list[str] = []
    for frame in _frames():
        owner = frame.f_locals.get("self")
        owners[id(owner)] = owner
        modules.append(str(frame.f_globals.get("__name__", "")))
    for owner in owners.values():
        _look_at(owner, leaks)
    is_worker = any(name.startswith("joblib.") for name in modules)
    if is_worker and not any(isinstance(owner, Parallel) for owner in owners.values()):
        leaks.add(
            "what the callers of a joblib worker, which it cannot see, may have learned was",
            "fit without n_jobs",
        )
    if any(name.startswith(_FITS_OFTEN) for name in modules):
        warn(
            "this fit is one of several on the same records: each spends its ε, together they "
            "cost more, and scores of private data have no noise; "
            "dither.estimators.PrivateSearchCV pays for a whole search",
            PrivacyCostWarning,
        )


def _look_at(owner: object, leaks: Leaks) -> None:
    """Note what an object that calls may have learned."""
    name, steps = type(owner).__name__, []
    if isinstance(owner, Pipeline):
        steps = owner.steps[:-1]
    elif isinstance(owner, TransformedTargetRegressor):
        steps = [("transformer", owner.transformer)]
    elif isinstance(owner, MetaEstimatorMixin) and not type(owner).__module__.startswith("dither."):
        leaks.add(
            f"what {name} chooses or resamples records and settings by was",
            "fit the private estimator by itself, or search with PrivateSearchCV",
        )
    for step in learning_steps(steps):
        leaks.add(
            f"what {name}'s step {step!r} has learned was",
            "give bounds instead, take a step that learns nothing, or fit it on public data and "
            "wrap it in sklearn.frozen.FrozenEstimator",
        )


def learning_steps(steps: list[Any]) -> Iterator[str]:
    """Yield the names of transformers whose fit may take something from the data."""
    for name, step, *_ in steps:
        inner = _inner(step)
        if inner is not None:
            yield from (f"{name}__{each}" for each in learning_steps(inner))
        elif _learns(step):
            yield name


def _inner(step: Any) -> list[Any] | None:
    """Return the steps that a step is made of."""
    if type(step) is Pipeline:
        return list(step.steps)
    if type(step) is ColumnTransformer:
        return [*step.transformers, ("remainder", step.remainder)]
    return list(step.transformer_list) if type(step) is FeatureUnion else None


def _learns(step: Any) -> bool:
    kind = type(step)  # a subclass may do anything
    if kind in (OneHotEncoder, OrdinalEncoder):
        counts = step.min_frequency is not None or step.max_categories is not None
        return counts or isinstance(step.categories, str)
    if kind is RBFSampler:
        return isinstance(step.gamma, str)
    if kind is CountVectorizer:
        return step.vocabulary is None
    return kind not in _LEARN_NOTHING


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back
