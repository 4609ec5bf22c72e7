"""Who calls ``fit``: a pipeline whose scaler learns from private data, a search that fits often.

scikit-learn does not tell an estimator where it is used, so the frames of the call are looked at.
What is found there leads to warnings, and to a claim that is marked as not proven.
"""

import sys
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any

from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import RBFSampler
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, PolynomialFeatures
from sklearn.random_projection import GaussianRandomProjection, SparseRandomProjection
from sklearn.utils import get_tags

from dither.estimators.leaks import Leaks, PrivacyCostWarning

_LEARN_NOTHING = (
    str,
    FrozenEstimator,
    GaussianRandomProjection,
    PolynomialFeatures,
    RBFSampler,
    SparseRandomProjection,
)
_FIT_OFTEN = (
    "sklearn.calibration",
    "sklearn.ensemble",
    "sklearn.feature_selection",
    "sklearn.model_selection",
    "sklearn.multiclass",
    "sklearn.multioutput",
    "sklearn.semi_supervised",
)


def look_at_callers(leaks: Leaks) -> None:
    """Warn if a step of the same pipeline learns from the data, or if this is one fit of many."""
    owners: dict[int, Any] = {}
    fits_often = False
    for frame in _frames():
        owner = frame.f_locals.get("self")
        owners[id(owner)] = owner
        fits_often |= str(frame.f_globals.get("__name__", "")).startswith(_FIT_OFTEN)
    for owner in owners.values():
        steps = owner.steps[:-1] if isinstance(owner, Pipeline) else []
        if isinstance(owner, TransformedTargetRegressor):
            steps = [("transformer", owner.transformer)]
        for name in learning_steps(steps):
            leaks.add(
                f"what {type(owner).__name__}'s step {name!r} has learned was",
                "give bounds instead, take a step that learns nothing, or fit it on public data "
                "and wrap it in sklearn.frozen.FrozenEstimator",
            )
    if fits_often:
        _warn_of_many_fits()


def learning_steps(steps: list[tuple[str, Any]]) -> Iterator[str]:
    """Yield the names of transformers whose fit takes something from the data."""
    for name, step, *_ in steps:
        if isinstance(step, Pipeline):
            yield from (f"{name}__{inner}" for inner in learning_steps(step.steps))
        elif isinstance(step, ColumnTransformer):
            yield from (f"{name}__{inner}" for inner in learning_steps(step.transformers))
        elif isinstance(step, FeatureUnion):
            yield from (f"{name}__{inner}" for inner in learning_steps(step.transformer_list))
        elif _learns(step):
            yield name


def _learns(step: object) -> bool:
    if step is None or isinstance(step, _LEARN_NOTHING):
        return False
    if isinstance(step, OneHotEncoder | OrdinalEncoder) and not isinstance(step.categories, str):
        return False
    return bool(get_tags(step).requires_fit)


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _warn_of_many_fits() -> None:
    warnings.warn(
        "this fit is one of several on the same records: each spends its ε, together they cost "
        "more, and scores of private data have no noise; dither.estimators.PrivateSearchCV pays "
        "for a whole search",
        PrivacyCostWarning,
        stacklevel=4,
    )
