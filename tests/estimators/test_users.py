"""Estimators that protect users: what is counted, drawn, released, saved and searched for."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import dither
from dither.estimators import (
    PrivateClassifier,
    PrivateGAMClassifier,
    PrivateGAMRegressor,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
    PrivateMLPRegressor,
    PrivateRegressor,
    PrivateSearchCV,
    PrivateSVC,
)
from dither.estimators.splines import default_bins
from dither.estimators.trials import noisy_score
from dither.randomness import Source
from dither.schema import Schema

RNG = np.random.default_rng(0)
COUNTS = RNG.integers(1, 13, 400)
IDS = RNG.permutation(np.repeat(np.arange(COUNTS.size), COUNTS))
RECORDS, USERS = IDS.size, COUNTS.size
X = RNG.uniform(-1.0, 1.0, (RECORDS, 3))
Y = X[:, 0] + 0.3 * RNG.normal(size=RECORDS) > 0.0
COMMON: dict[str, Any] = {"epsilon": 5.0, "feature_bounds": (-1, 1), "random_state": 0}
FOR_CLASSES: dict[str, Any] = {**COMMON, "classes": [False, True]}
FOR_NUMBERS: dict[str, Any] = {**COMMON, "target_bounds": (-1, 1)}
FEW: dict[str, Any] = {"steps": 40, "noise": "uniform"}
ESTIMATORS = [
    PrivateLogisticRegression(**FOR_CLASSES),
    PrivateSVC(**FOR_CLASSES),
    PrivateGAMClassifier(**FOR_CLASSES),
    PrivateMLPClassifier((8,), **FOR_CLASSES, **FEW),
    PrivateClassifier(nn.Linear, **FOR_CLASSES, **FEW),
    PrivateLinearRegression(**FOR_NUMBERS),
    PrivateGAMRegressor(**FOR_NUMBERS),
    PrivateMLPRegressor((8,), **FOR_NUMBERS, **FEW),
    PrivateRegressor(nn.Linear, **FOR_NUMBERS, **FEW),
]
BY_NAME = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)


def targets(estimator: Any) -> Any:
    return Y if hasattr(estimator, "classes") else X[:, 0]


@BY_NAME
def test_users_are_counted_and_protected(estimator: Any, tmp_path: Path) -> None:
    y = targets(estimator)
    fitted = estimator.fit(X, y, users=IDS)
    assert (fitted.privacy_.unit, fitted.plan_.unit) == ("user", "user")
    assert fitted.plan_.dataset_size == USERS
    assert fitted.plan_.rows_per_user == 8
    assert fitted.privacy_.delta == pytest.approx(0.1 / USERS)
    assert fitted.privacy_.epsilon <= 5.0
    assert fitted.privacy_.is_upper_bound
    assert fitted.score(X, y) > 0.6
    module = {"module": nn.Linear} if hasattr(fitted, "module") else {}
    loaded = dither.load(fitted.save(tmp_path / "run"), **module)
    assert loaded.plan_ == fitted.plan_
    assert loaded.privacy == fitted.privacy
    assert (loaded.predict(X) == fitted.predict(X)).all()


@BY_NAME
def test_a_fit_on_users_with_one_record_each_is_one_on_records(estimator: Any) -> None:
    """With the same plan, and the same users drawn."""
    some, y = X[:USERS], targets(estimator)[:USERS]
    by_user = estimator.fit(some, y, users=np.arange(USERS)).predict(some)
    by_record = estimator.fit(some, y)
    assert by_record.privacy_.unit == "record"
    assert np.mean(np.abs(by_user * 1.0 - by_record.predict(some) * 1.0)) < 0.02


def test_settings_follow_the_number_of_users() -> None:
    fitted = PrivateGAMClassifier(**FOR_CLASSES, rows_per_user=3).fit(X, Y, users=IDS)
    other = PrivateGAMClassifier(**FOR_CLASSES).fit(X[:USERS], Y[:USERS])
    assert fitted.bins_ == other.bins_ == default_bins(USERS, 5.0)
    assert default_bins(RECORDS, 5.0) != fitted.bins_ or RECORDS * 5.0 < 3000.0
    assert fitted.plan_ == other.plan_.for_users(3)
    given = PrivateLogisticRegression(**FOR_CLASSES, dataset_size=500).fit(X, Y, users=IDS)
    assert given.plan_.dataset_size == 500


def test_records_without_a_user_are_left_out_or_their_own() -> None:
    ids = [None if each < 100 else f"user {each}" for each in IDS]
    left = int((IDS < 100).sum())
    for missing, expected in (("drop", USERS - 100), ("own", USERS - 100 + left)):
        model = PrivateLogisticRegression(**FOR_CLASSES, missing=missing)
        assert model.fit(X, Y, users=ids).plan_.dataset_size == expected
    # What is left out has no effect.
    one, other = (
        PrivateLogisticRegression(**FOR_CLASSES).fit(X, labels, users=ids).coef_
        for labels in (Y, np.where(IDS < 100, ~Y, Y))
    )
    assert np.array_equal(one, other)


def test_a_user_with_many_records_counts_like_one_with_few() -> None:
    """A fit on records learns what one user says a thousand times; one on users does not."""
    x = np.concatenate([X[:200], np.full((1000, 3), 0.5)])
    y = np.concatenate([X[:200, 0] > 0.0, np.zeros(1000, bool)])
    ids = np.concatenate([np.arange(200), np.full(1000, 200)])
    how: dict[str, Any] = {**FOR_CLASSES, "epsilon": 1e3, "delta": 1e-4}
    # Noise is small, and every user is in every step.
    by_user = PrivateLogisticRegression(**how).fit(x, y, users=ids)
    by_record = PrivateLogisticRegression(**how).fit(x, y)
    assert by_user.predict([[0.5, 0.5, 0.5]])[0]
    assert not by_record.predict([[0.5, 0.5, 0.5]])[0]


def test_weights_of_users() -> None:
    flipped = np.where(IDS % 2 == 0, ~Y, Y)  # of users who do not count
    weights = (IDS % 2 == 1).astype(float)
    for estimator in (PrivateLogisticRegression(**FOR_CLASSES), PrivateSVC(**FOR_CLASSES)):
        fitted = estimator.fit(X, flipped, sample_weight=weights, users=IDS)
        assert fitted.score(X, Y) > 0.85
        assert estimator.fit(X, flipped, users=IDS).score(X, Y) < 0.7


TABLE_SCHEMA: dict[str, Any] = {
    "users": "patient",
    "target": {"column": "ill", "classes": ["no", "yes"]},
    "columns": {"dose": {"kind": "number", "bounds": [-1, 1]}},
}


def test_a_schema_names_the_column_of_users() -> None:
    table = pd.DataFrame({"dose": X[:, 0], "ill": np.where(Y, "yes", "no"), "patient": IDS})
    for kind in (PrivateLogisticRegression, PrivateGAMClassifier):
        model = kind(epsilon=5.0, schema=TABLE_SCHEMA, random_state=0, rows_per_user=5)
        fitted = model.fit(table)
        assert (fitted.privacy_.unit, fitted.plan_.dataset_size) == ("user", USERS)
        assert (fitted.predict(table.drop(columns="patient")) == table["ill"]).mean() > 0.7
        plain = Schema.from_dict({k: v for k, v in TABLE_SCHEMA.items() if k != "users"})
        same = model.set_params(schema=plain).fit(table, users=IDS)
        assert (same.predict(table) == fitted.predict(table)).all()
        others = model.set_params(schema=TABLE_SCHEMA).fit(table, users=IDS // 2)
        assert others.plan_.dataset_size == USERS // 2


@pytest.mark.parametrize(
    ("parameters", "users", "message"),
    [
        ({"rows_per_user": 3}, None, "rows_per_user must be left out where no users are given"),
        ({"missing": "own"}, None, "missing must be left out where no users are given"),
        ({"missing": "keep"}, IDS, "'missing' parameter"),
        ({"rows_per_user": 0}, IDS, "'rows_per_user' parameter"),
        ({}, IDS[1:], "users must have one id per record"),
        ({}, lambda record: 0, "users must be one id per record, got function"),
        ({}, [None] * RECORDS, "users must name the user of at least one row"),
    ],
)
def test_refusals(parameters: dict[str, Any], users: Any, message: str) -> None:
    for estimator in (
        PrivateLogisticRegression(**FOR_CLASSES, **parameters),
        PrivateClassifier(nn.Linear, **FOR_CLASSES, **parameters),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            estimator.fit(X, Y, users=users)


def test_delta_is_compared_with_the_number_of_users() -> None:
    model = PrivateLogisticRegression(**FOR_CLASSES, delta=1.0 / 300)
    with pytest.warns(UserWarning, match="publishing one user outright"):
        model.fit(X, Y, users=IDS)


# --- a search -----------------------------------------------------------------------------------

INNER = PrivateLogisticRegression(
    feature_bounds=(-1, 1), classes=[False, True], steps=20, noise="uniform"
)


def test_a_search_splits_users(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Any] = []
    tested: list[Any] = []
    real_fit, real_scores = PrivateLogisticRegression.fit, PrivateLogisticRegression._record_scores
    rows = {tuple(row): number for number, row in enumerate(X)}

    def fit(self: Any, X: Any, y: Any, users: Any) -> Any:
        trained.append(([rows[tuple(row)] for row in X], users))
        return real_fit(self, X, y, users=users)

    def scores(self: Any, X: Any, y: Any) -> Any:
        tested.append([rows[tuple(row)] for row in X])
        return real_scores(self, X, y)

    monkeypatch.setattr(PrivateLogisticRegression, "fit", fit)
    monkeypatch.setattr(PrivateLogisticRegression, "_record_scores", scores)
    ids = [None if each < 20 else int(each) for each in IDS]
    search = PrivateSearchCV(INNER, {"clip_norm": [0.2]}, epsilon=3.0, trials=2, random_state=1)
    search.fit(X, Y, users=ids)
    for (of_training, users), of_test in zip(trained, tested, strict=True):
        assert sorted([*of_training, *of_test]) == np.flatnonzero(IDS >= 20).tolist()
        assert not {*IDS[of_training]} & {*IDS[of_test]}
        pairs = {*zip(users.tolist(), IDS[of_training].tolist(), strict=True)}
        assert len(pairs) == len({*IDS[of_training]}) == len({*users.tolist()})
    assert len({*IDS[tested[0]]}) == pytest.approx(0.2 * (USERS - 20), rel=0.3)
    assert search.privacy_.unit == "user"
    assert search.best_estimator_.privacy_ == search.privacy_
    assert search.privacy_.delta == pytest.approx(0.1 / (USERS - 20))
    assert search.best_estimator_.plan_.dataset_size == round(0.8 * (USERS - 20))
    assert search.privacy_.epsilon <= 3.0


def test_a_user_moves_the_score_by_at_most_one() -> None:
    def score(scores: Any, owners: Any) -> float:
        stream = Source(3).stream("score", 0)
        return noisy_score(np.array(scores), np.array(owners, np.int64), 1e-7, 1, stream)

    scores, owners = [1.0, 0.0, 0.5, 1.0, 1.0, 9.0], [4, 4, 7, 2, 2, 2]
    assert score(scores, owners) == pytest.approx(0.5 + 0.5 + 1.0, abs=1e-5)
    assert score(scores[:3], owners[:3]) == pytest.approx(1.0, abs=1e-5)
    assert score([], []) == pytest.approx(0.0, abs=1e-5)
    by_rows = score(scores, range(6))
    assert by_rows - score(scores[:3], range(3)) == pytest.approx(3.0, abs=1e-5)


def test_a_search_refuses_what_a_fit_refuses() -> None:
    grid = {"clip_norm": [0.2]}
    with pytest.raises(ValueError, match="rows_per_user must be left out"):
        PrivateSearchCV(INNER.set_params(rows_per_user=3), grid).fit(X, Y)
    with pytest.raises(ValueError, match="must have parameters among .* got 'missing'"):
        PrivateSearchCV(INNER.set_params(rows_per_user=None), {"missing": ["own"]}).fit(X, Y)
    rows = {"rows_per_user": [1, 5]}
    search = PrivateSearchCV(INNER, rows, epsilon=5.0, random_state=0).fit(X, Y, users=IDS)
    assert search.best_estimator_.plan_.rows_per_user == search.best_params_["rows_per_user"]


def test_nothing_of_the_records_is_kept() -> None:
    fitted = PrivateLogisticRegression(**FOR_CLASSES).fit(X, Y, users=IDS)
    for name, value in vars(fitted).items():
        size = value.numel() if isinstance(value, torch.Tensor) else np.size(value)
        assert size < 50, name
