"""Pipelines, searches and ensembles around an estimator: what they learn is told."""

import warnings
from typing import Any

import pytest
from joblib import parallel_config
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import BaggingClassifier, VotingClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import RANSACRegressor
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
)

from dither.estimators import (
    PrivacyCostWarning,
    PrivacyLeakWarning,
    PrivateLinearRegression,
    PrivateLogisticRegression,
)
from dither.estimators.callers import learning_steps

Table = tuple[Any, Any]
PUBLIC: dict[str, Any] = {"feature_bounds": (0, 16), "classes": range(10), "random_state": 0}


def test_a_scaler_in_front_is_warned_of(digits: Table) -> None:
    X, y = digits
    model = PrivateLogisticRegression(steps=5, **{**PUBLIC, "feature_bounds": (-3, 3)})
    with pytest.warns(PrivacyLeakWarning, match="Pipeline's step 'standardscaler' has"):
        pipeline = make_pipeline(StandardScaler(), model).set_output(transform="pandas").fit(X, y)
    assert not pipeline[-1].privacy_.is_upper_bound
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        harmless = make_pipeline(FunctionTransformer(), Normalizer(), clone(model)).fit(X, y)
    assert harmless[-1].privacy_.is_upper_bound
    assert pipeline.predict(X).shape == (len(X),)
    assert pipeline[-1].feature_names_in_[0] == "x0"


def test_what_learns_is_found_wherever_it_is(digits: Table, lengths: Table) -> None:
    model = PrivateLogisticRegression(steps=3, **{**PUBLIC, "feature_bounds": (-3, 3)})
    columns = ColumnTransformer([("same", "passthrough", [0]), ("scaled", MinMaxScaler(), [1, 2])])
    with pytest.warns(PrivacyLeakWarning, match="step 'columntransformer__scaled' has"):
        make_pipeline(Normalizer(), make_pipeline(columns, model)).fit(*digits)
    with pytest.warns(PrivacyLeakWarning) as caught:
        make_pipeline(StandardScaler(), make_pipeline(PolynomialFeatures(1), model)).fit(*digits)
    assert len(caught) == 1
    number = PrivateLinearRegression(steps=3, feature_bounds=(-1, 1), target_bounds=(-3, 3))
    X, y = lengths
    with pytest.warns(PrivacyLeakWarning, match="TransformedTargetRegressor's step"):
        TransformedTargetRegressor(number, transformer=StandardScaler()).fit(X, y)
    with pytest.warns(PrivacyLeakWarning, match="RANSACRegressor chooses or resamples"):
        RANSACRegressor(number, random_state=0, max_trials=1, min_samples=700).fit(X, y)
    frozen = FrozenEstimator(StandardScaler().fit(X))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make_pipeline(frozen, number).fit(X, y)[-1].privacy_.is_upper_bound


def test_many_fits_are_warned_of(digits: Table) -> None:
    X, y = digits
    model = PrivateLogisticRegression(steps=5, **PUBLIC)
    with (
        pytest.warns(PrivacyLeakWarning, match="GridSearchCV chooses"),
        pytest.warns(PrivacyCostWarning, match="each spends its ε"),
    ):
        search = GridSearchCV(model, {"clip_norm": [0.1, 1.0]}, cv=2).fit(X, y)
    assert search.best_params_["clip_norm"] in (0.1, 1.0)
    with pytest.warns(PrivacyCostWarning):
        assert cross_val_score(model, X, y, cv=2).shape == (2,)
    assert not search.best_estimator_.privacy_.is_upper_bound  # chosen by scores without noise
    with pytest.warns(PrivacyLeakWarning, match="BaggingClassifier chooses or resamples"):
        bags = BaggingClassifier(model, n_estimators=2).fit(X, y)
    assert not bags.estimators_[0].privacy_.is_upper_bound


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_a_scaler_behind_workers_is_not_forgotten(digits: Table, backend: str) -> None:
    model = PrivateLogisticRegression(steps=3, **{**PUBLIC, "feature_bounds": (-3, 3)})
    votes = VotingClassifier([("one", model), ("two", clone(model))], n_jobs=2)
    with parallel_config(backend):
        fitted = make_pipeline(StandardScaler(), votes).fit(*digits)
    assert [each.privacy_.is_upper_bound for each in fitted[-1].estimators_] == [False, False]


class Sly(Normalizer):
    """Says that it learns nothing, and does."""


@pytest.mark.parametrize(
    ("step", "learns"),
    [
        (StandardScaler(), True),
        (ColumnTransformer([("a", "passthrough", [0])], remainder=StandardScaler()), True),
        (ColumnTransformer([("a", "passthrough", [0])], remainder="drop"), False),
        (OneHotEncoder(), True),
        (OneHotEncoder(categories=[["a"]]), False),
        (OneHotEncoder(categories=[["a"]], max_categories=2), True),
        (OrdinalEncoder(categories=[["a"]], min_frequency=3), True),
        (RBFSampler(gamma="scale"), True),
        (RBFSampler(gamma=1.0), False),
        (CountVectorizer(), True),
        (CountVectorizer(vocabulary=["a"]), False),
        (Normalizer(), False),
        (Sly(), True),
        (object(), True),
        ("passthrough", False),
        (None, False),
        (make_pipeline(Normalizer(), MinMaxScaler()), True),
        (FeatureUnion([("a", MinMaxScaler())]), True),
    ],
)
def test_which_steps_learn(step: Any, learns: bool) -> None:
    assert bool([*learning_steps([("step", step)])]) is learns
