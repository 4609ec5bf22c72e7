"""Class weights and sample weights of estimators: what they mean and what they refuse."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.utils.validation import has_fit_parameter
from torch import nn

from dither.estimators import (
    PrivateClassifier,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
    PrivateMLPRegressor,
    PrivateSearchCV,
    PrivateSVC,
)

RECORDS = 20_000
RNG = np.random.default_rng(1)
X = RNG.uniform(-1.0, 1.0, (RECORDS, 4))
SCORES = X @ [2.0, -1.5, 1.0, 0.0] - 3.0
Y = np.where(SCORES + RNG.logistic(size=RECORDS) > 0.0, "yes", "no")
SHARES = {"yes": 0.1, "no": 0.9}  # about: 9 % are "yes"
PUBLIC: dict[str, Any] = {"feature_bounds": (-1, 1), "classes": ["yes", "no"], "random_state": 0}
FEW = slice(0, 400)


def weights_of(model: Any) -> NDArray[Any]:
    """Return what was learnt, as one vector."""
    if hasattr(model, "coef_"):
        return np.append(model.coef_.ravel(), model.intercept_)
    return np.concatenate([p.detach().numpy().ravel() for p in model.module_.parameters()])


def test_balanced_classes_are_those_of_a_balanced_population() -> None:
    truth = LogisticRegression(class_weight="balanced", C=1e6).fit(X, Y)
    plain = PrivateLogisticRegression(epsilon=3.0, clip_norm=1.0, **PUBLIC).fit(X, Y)
    model = clone(plain).set_params(class_weight="balanced", class_shares=SHARES).fit(X, Y)
    expected = truth.predict_proba(X)[:, 1]
    # Shares that are a tenth too high move every logit by 0.1, a probability by at most 0.025.
    assert np.abs(model.predict_proba(X)[:, 1] - expected).mean() < 0.05
    assert np.abs(plain.predict_proba(X)[:, 1] - expected).mean() > 0.2
    assert abs(plain.predict_proba(X)[:, 1].mean() - np.mean(Y == "yes")) < 0.02
    assert model.privacy_.epsilon <= 3.0
    assert model.privacy_.is_upper_bound


def test_sample_weights_move_the_optimum() -> None:
    y = np.where(X[:, 3] > 0.0, 0.5, -0.5) * X[:, 0] + 0.05 * X[:, 2]
    given = np.where(X[:, 3] > 0.0, 5.0, 1.0)
    truth = LinearRegression().fit(X, y, sample_weight=given)
    model = PrivateLinearRegression(
        epsilon=3.0, feature_bounds=(-1, 1), target_bounds=(-1, 1), clip_norm=1.0, max_weight=5.0,
        random_state=0,
    )  # fmt: skip
    weighted = clone(model).fit(X, y, sample_weight=given)
    assert np.abs(weighted.coef_ - truth.coef_).max() < 0.06
    assert np.abs(model.fit(X, y).coef_ - truth.coef_).max() > 0.2


def test_small_weights_do_not_move_the_mean_of_a_regression() -> None:
    x = X[:1000]
    y = 0.7 + 0.1 * x[:, 0]
    model = PrivateLinearRegression(
        epsilon=0.5, feature_bounds=(-1, 1), target_bounds=(-1, 1), random_state=0
    )
    weighted = model.fit(x, y, sample_weight=np.full(1000, 0.1))
    # The mean of targets in −1 … 1 with a tenth of the signal has an error of about 0.05; a start
    # at the mean of w·y, 0.07, is still 0.2 away.
    assert abs(weighted.predict(x).mean() - y.mean()) < 0.1


@pytest.mark.parametrize(
    "model",
    [
        PrivateLogisticRegression(steps=9, noise="uniform", **PUBLIC),
        PrivateSVC(steps=9, noise="uniform", **PUBLIC),
        PrivateMLPClassifier((4,), steps=4, noise="uniform", **PUBLIC),
        PrivateClassifier(nn.Linear, steps=4, noise="uniform", **PUBLIC),
    ],
)
def test_equal_weights_are_equal_fits(model: Any) -> None:
    x, y = X[FEW], Y[FEW]

    def fit(sample_weight: Any = None, **parameters: Any) -> NDArray[Any]:
        made = clone(model).set_params(**parameters)
        return weights_of(made.fit(x, y, sample_weight=sample_weight))

    is_yes = y == "yes"
    of_classes = fit(class_weight={"yes": 4.0})  # the other has 1
    assert np.array_equal(of_classes, fit(np.where(is_yes, 4.0, 1.0), max_weight=4.0))
    assert np.array_equal(of_classes, fit(np.where(is_yes, 8.0, 2.0), max_weight=8.0))
    assert np.array_equal(of_classes, fit(np.where(is_yes, 9.0, 0.25)))  # clipped to 1
    both = fit(np.full(len(y), 0.5), class_weight={"yes": 2.0, "no": 0.5})
    assert np.array_equal(both, fit(np.where(is_yes, 0.5, 0.125)))
    shares: list[Any] = [{"yes": 0.2, "no": 0.8}, [0.2, 0.8], np.array([0.201, 0.804])]
    for given in shares:  # in the order of classes, not of classes_
        balanced = fit(class_weight="balanced", class_shares=given)
        assert np.allclose(balanced, of_classes, rtol=1e-6)
    assert np.array_equal(fit(), fit(np.ones(len(y))))
    assert not np.allclose(fit(), of_classes, rtol=1e-2)


def test_records_of_weight_0_are_not_learnt_from() -> None:
    x, given = X[:4000], Y[:4000]
    weights = np.where(given == "yes", 1.0, 0.0)
    model = PrivateMLPClassifier((4,), epsilon=10.0, steps=20, **PUBLIC)
    assert np.mean(model.fit(x, given, sample_weight=weights).predict(x) == "yes") > 0.8
    assert np.mean(model.fit(x, given).predict(x) == "yes") < 0.2
    regressor = PrivateMLPRegressor(
        (4,), epsilon=10.0, steps=20, feature_bounds=(-1, 1), target_bounds=(-1, 1), random_state=0
    )
    y = np.where(given == "yes", 0.9, -0.9)
    assert regressor.fit(x, y, sample_weight=weights).predict(x).mean() > 0.4
    assert regressor.fit(x, y).predict(x).mean() < -0.4


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"class_weight": "balanced"}, "give public shares as class_shares={label: share, …}"),
        ({"class_weight": "even"}, "The 'class_weight' parameter"),
        ({"class_weight": {"maybe": 2.0}}, "class_weight must have labels that are classes, got"),
        ({"class_weight": {"yes": 0.0}}, r"class_weight\['yes'\] must be a positive, finite"),
        ({"class_shares": [0.5, 0.4]}, "class_shares must add up to 1 within 1 %, got a sum of"),
        ({"class_shares": [0.5, 0.3, 0.2]}, "class_shares must have one share per class, 2, got 3"),
        ({"class_shares": {"yes": 1.0}}, "class_shares must have one share per class, 2, got 1"),
        ({"class_shares": [1.0, 0.0]}, r"class_shares\['no'\] must be a positive"),
        ({"max_weight": 0.0}, "The 'max_weight' parameter"),
    ],
)
def test_bad_weights_are_refused(parameters: dict[str, Any], message: str) -> None:
    model = PrivateLogisticRegression(**PUBLIC).set_params(**parameters)
    with pytest.raises(ValueError, match=message) as caught:
        model.fit(X[FEW], Y[FEW])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda w: w[1:], "sample_weight.shape"),
        (lambda w: -w, "Negative values in data passed to `sample_weight`"),
        (lambda w: w * np.nan, "Input sample_weight contains NaN"),
        (lambda w: 0.0 * w, "zero"),
    ],
)
def test_bad_sample_weights_are_refused(
    spoil: Callable[[NDArray[Any]], NDArray[Any]], message: str
) -> None:
    model = PrivateLogisticRegression(**PUBLIC)
    with pytest.raises(ValueError, match=message):
        model.fit(X[FEW], Y[FEW], sample_weight=spoil(np.ones(400)))


def test_a_statement_says_what_sample_weights_must_be() -> None:
    model = PrivateLogisticRegression(steps=3, **PUBLIC)
    words = "each is taken to depend on its own record and public numbers alone"
    weighted = model.fit(X[FEW], Y[FEW], sample_weight=np.ones(400)).privacy_statement()
    assert words in " ".join(weighted.split())
    assert words not in " ".join(model.fit(X[FEW], Y[FEW]).privacy_statement().split())


def test_a_search_takes_class_weights_and_no_sample_weights() -> None:
    model = PrivateLogisticRegression(steps=5, class_shares=[0.1, 0.9], **PUBLIC)
    grid = {"class_weight": [None, "balanced"]}
    search = PrivateSearchCV(model, grid, epsilon=3.0, random_state=0).fit(X[FEW], Y[FEW])
    assert search.best_params_["class_weight"] in (None, "balanced")
    assert not has_fit_parameter(search, "sample_weight")
    with pytest.raises(ValueError, match="param_grid must have parameters among"):
        PrivateSearchCV(model, {"class_shares": [[0.1, 0.9]]}).fit(X[FEW], Y[FEW])
