"""Estimators with a public schema: what they take, what they derive, and what they refuse."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from tests.estimators.tables import COSTS, FIELDS, SCHEMA, patients

from dither.estimators import (
    PrivateClassifier,
    PrivateGAMClassifier,
    PrivateGAMRegressor,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
    PrivateMLPRegressor,
    PrivateSearchCV,
    PrivateSVC,
    SchemaEncoder,
)
from dither.schema import Schema
from dither.validate import InvalidTypeError, InvalidValueError

TABLE, NEW = patients(1000), patients(200, seed=1)
FEW: dict[str, Any] = {"epsilon": 3.0, "steps": 10, "noise": "uniform", "random_state": 0}
CLASSIFIERS = [
    PrivateLogisticRegression(**FEW),
    PrivateSVC(**FEW),
    PrivateGAMClassifier(**FEW, pairs=[("age", "sex")]),
    PrivateMLPClassifier((4,), **FEW),
]
REGRESSORS = [
    PrivateLinearRegression(**FEW),
    PrivateGAMRegressor(**FEW),
    PrivateMLPRegressor((4,), **FEW),
]


def scores_of(model: Any, table: Any) -> Any:
    return model.decision_function(table) if hasattr(model, "classes_") else model.predict(table)


@pytest.mark.parametrize("model", CLASSIFIERS + REGRESSORS, ids=lambda model: type(model).__name__)
def test_all_kinds_of_tables_give_the_same_model(model: Any, tmp_path: Path) -> None:
    schema = SCHEMA if model in CLASSIFIERS else COSTS
    file, toml = tmp_path / "patients.csv", tmp_path / "schema.toml"
    TABLE.to_csv(file, index=False)
    schema.save(toml)
    target = str(schema.target_name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = clone(model).set_params(schema=schema).fit(TABLE)
        others = [
            clone(model).set_params(schema=schema.to_dict()).fit(pl.from_pandas(TABLE)),
            clone(model).set_params(schema=str(toml)).fit(str(file)),
            clone(model).set_params(schema=toml).fit(
                TABLE.drop(columns=[target, "patient"]), TABLE[target].tolist()
            ),
            clone(fitted).fit(TABLE[TABLE.columns[::-1]], pl.Series(TABLE[target].to_numpy())),
            clone(fitted).fit(file),
        ]  # fmt: skip
    expected = scores_of(fitted, NEW)
    assert np.isfinite(expected).all()
    assert expected.std() > 0
    for other in others:
        assert np.array_equal(scores_of(other, NEW), expected)
    new = tmp_path / "new.csv"
    NEW.drop(columns=["ill", "cost", "patient"]).to_csv(new, index=False)
    for table in (NEW[NEW.columns[::-1]], pl.from_pandas(NEW), new):
        assert np.array_equal(scores_of(fitted, table), expected)
    assert fitted.privacy_.is_upper_bound
    assert fitted.privacy_.epsilon <= 3.0
    assert "NOT PROVEN" not in fitted.privacy_statement()
    assert fitted.feature_names_in_.tolist() == ["age", "dose", "sex", "smoker", "note"]
    assert fitted.n_features_in_ == 5
    again = pickle.loads(pickle.dumps(fitted))  # noqa: S301
    assert np.array_equal(scores_of(again, NEW), expected)


def test_unknown_values_and_missing_cells_are_predicted() -> None:
    model = PrivateLogisticRegression(schema=SCHEMA, **FEW).fit(TABLE)
    known = {"age": [20.0], "dose": [3], "sex": ["f"], "smoker": ["no"], "note": ["pain"]}
    assert model.predict_proba(known).shape == (1, 2)
    for other in ("x", "another", 7):
        unknown = model.decision_function({**known, "sex": [other]})
        assert unknown == model.decision_function({**known, "sex": ["unheard of"]})
    missing = model.decision_function({**known, "age": [None]})
    assert missing == model.decision_function({**known, "age": ["not a number"]})
    assert missing != model.decision_function({**known, "age": [50.0]})  # the indicator
    assert model.predict({**known, "age": [1e9]}) == model.predict({**known, "age": [100]})


def test_labels_are_those_of_the_schema() -> None:
    texts = TABLE.assign(ill=np.where(TABLE["ill"] == "yes", "1", "0"))
    target = {"column": "ill", "classes": [1, 0]}
    model = PrivateLogisticRegression(schema={**FIELDS, "target": target}, **FEW).fit(texts)
    assert model.classes_.tolist() == [0, 1]
    assert model.predict(NEW).dtype == int
    only_no = TABLE[TABLE["ill"] == "no"]  # a class without records
    assert PrivateLogisticRegression(schema=SCHEMA, **FEW).fit(only_no).classes_.size == 2


def test_shares_of_the_schema_balance_classes() -> None:
    model = PrivateLogisticRegression(schema=SCHEMA, class_weight="balanced", **FEW).fit(TABLE)
    given = clone(model).set_params(class_weight={"no": 1 / 0.6, "yes": 1 / 0.4}).fit(TABLE)
    assert np.allclose(model.coef_, given.coef_, rtol=1e-6)
    other = clone(model).set_params(class_shares={"no": 0.5, "yes": 0.5}).fit(TABLE)
    plain = clone(model).set_params(class_weight=None).fit(TABLE)
    assert np.array_equal(other.coef_, plain.coef_)
    assert not np.allclose(model.coef_, plain.coef_, rtol=1e-2)
    fields = {**FIELDS, "target": {"column": "ill", "classes": ["no", "yes"]}}
    with pytest.raises(InvalidValueError, match="class_weight must be a dict"):
        clone(model).set_params(schema=fields).fit(TABLE)


def test_a_pipeline_with_the_encoder_is_the_same_model() -> None:
    inside = PrivateLogisticRegression(schema=SCHEMA, **FEW).fit(TABLE)
    model = PrivateLogisticRegression(
        feature_norm=SCHEMA.feature_norm(), classes=SCHEMA.classes, **FEW
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outside = make_pipeline(SchemaEncoder(SCHEMA), model).fit(TABLE, TABLE["ill"])
    assert np.allclose(outside.predict_proba(NEW), inside.predict_proba(NEW))
    assert outside[-1].privacy_.is_upper_bound
    search = PrivateSearchCV(model, {"clip_norm": [0.5, 1.0]}, epsilon=3.0, random_state=0)
    assert make_pipeline(SchemaEncoder(SCHEMA), search).fit(TABLE, TABLE["ill"])[-1].best_params_
    with pytest.raises(InvalidValueError, match="estimator.schema must be None"):
        PrivateSearchCV(inside, {"clip_norm": [1.0]}).fit(TABLE, TABLE["ill"])


NO_TARGET = Schema(SCHEMA.columns)
CHANGES: list[tuple[dict[str, Any], Any, Any, str]] = [
    ({"feature_bounds": (0, 1)}, TABLE, None, "feature_bounds must be None with a schema"),
    ({"feature_bounds": TABLE}, TABLE, None, "feature_bounds must be None with a schema"),
    ({"feature_norm": 2.0}, TABLE, None, "feature_norm must be None with a schema"),
    ({"classes": ["no", "yes"]}, TABLE, None, "classes must be None with a schema"),
    ({"schema": NO_TARGET}, TABLE, TABLE["ill"], "schema must have a target with classes"),
    ({"schema": COSTS}, TABLE, None, "schema must have a target with classes, got Target"),
    ({"schema": "no.toml"}, TABLE, None, "no.toml"),
    ({"schema": {**FIELDS, "confirmed": False}}, TABLE, None, "confirmed"),
    ({}, TABLE, TABLE["ill"][1:], "y must have one entry per record, 1000 in all, got 999"),
    ({}, TABLE, TABLE["cost"], "must have one of the 2 declared classes in every row"),
    ({}, TABLE.drop(columns="ill"), None, "has no 'ill'"),
    ({}, TABLE.drop(columns=["age", "sex"]), None, "has no 'age', 'sex'"),
    ({}, TABLE.assign(ill=None), None, "must have one of the 2 declared classes in every row"),
    ({}, TABLE[:0], None, "X must have at least 2 records, got 0"),
    ({}, TABLE.to_numpy(), TABLE["ill"], "table must be a data frame"),
    ({}, "no.csv", None, "table must be a file that exists, got 'no.csv'"),
]  # fmt: skip


@pytest.mark.parametrize(("parameters", "X", "y", "message"), CHANGES)
def test_what_does_not_fit_is_refused_in_one_line(
    parameters: dict[str, Any], X: Any, y: Any, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.sqlite"
    for kind in (PrivateLogisticRegression, PrivateGAMClassifier):
        model = kind(**{"schema": SCHEMA, "ledger": path, **FEW, **parameters})
        with pytest.raises((InvalidValueError, InvalidTypeError), match=message) as caught:
            model.fit(X, y)
        assert "\n" not in str(caught.value)
        assert not path.exists()
        with pytest.raises(NotFittedError):
            model.predict(TABLE)


def test_regressors_refuse_what_classifiers_take() -> None:
    with pytest.raises(InvalidValueError, match="schema must have a target with bounds, got Targ"):
        PrivateLinearRegression(schema=SCHEMA).fit(TABLE)
    with pytest.raises(InvalidTypeError, match="target_bounds must be None with a schema"):
        PrivateGAMRegressor(schema=COSTS, target_bounds=(0, 1)).fit(TABLE)
    with pytest.raises(InvalidValueError, match="must have a number in every row"):
        PrivateLinearRegression(schema=COSTS).fit(TABLE, TABLE["ill"])


def test_a_fitted_model_refuses_a_table_without_its_columns() -> None:
    model = PrivateLogisticRegression(schema=SCHEMA, **FEW).fit(TABLE)
    with pytest.raises(InvalidValueError, match="has no 'smoker'"):
        model.predict(NEW.drop(columns="smoker"))


@pytest.mark.parametrize(
    "model",
    [*CLASSIFIERS, *REGRESSORS, PrivateClassifier(lambda d, k: None)],
    ids=lambda model: type(model).__name__,
)
def test_without_a_schema_y_is_required_in_scikit_learns_words(model: Any) -> None:
    X = np.random.default_rng(0).uniform(size=(50, 3))
    with pytest.raises(ValueError, match=r"requires y to be passed, but the target y is None"):
        clone(model).fit(X)


def test_parameters_are_stored_as_they_are_given(tmp_path: Path) -> None:
    model = PrivateGAMClassifier(schema=FIELDS, bins=8)
    assert model.get_params()["schema"] is FIELDS
    copied = clone(model)
    assert copied.schema == FIELDS
    assert copied.set_params(schema=SCHEMA, bins=4).get_params()["bins"] == 4
    assert clone(copied).schema == SCHEMA
    assert repr(PrivateGAMClassifier(bins=8)) == "PrivateGAMClassifier(bins=8)"
    with pytest.raises(ValueError, match="'schema' parameter"):
        PrivateLogisticRegression(schema=3).fit(TABLE)


def test_a_schema_given_later_or_dropped_changes_the_fit() -> None:
    X, y = NEW[["age", "dose"]].fillna(0.0), NEW["ill"]
    model = PrivateLogisticRegression(schema=SCHEMA, **FEW).fit(TABLE)
    model.set_params(schema=None, feature_bounds={"age": (0, 100), "dose": (0, 1000)})
    model.set_params(classes=["no", "yes"]).fit(X, y)
    assert model.feature_names_in_.tolist() == ["age", "dose"]
    assert model.predict(X).shape == (200,)


def test_warnings_are_at_the_line_that_fits() -> None:
    for kind in (PrivateLogisticRegression, PrivateGAMClassifier):
        with pytest.warns(UserWarning, match="not below 1/n") as caught:
            kind(schema=SCHEMA, **FEW, delta=0.01).fit(TABLE)
        assert [each.filename for each in caught] == [__file__]
        bounds, y = (0, 1000), TABLE["ill"]
        with pytest.warns(UserWarning, match="not below 1/n") as caught:
            kind(feature_bounds=bounds, classes=["no", "yes"], **FEW, delta=0.01).fit(
                TABLE[["dose"]], y
            )
        assert [each.filename for each in caught] == [__file__]


def test_what_is_predicted_depends_on_a_row_alone() -> None:
    model = PrivateGAMClassifier(schema=SCHEMA, pairs=[("age", "smoker")], **FEW).fit(TABLE)
    together = model.decision_function(NEW)
    one_by_one = [model.decision_function(NEW[at : at + 1])[0] for at in range(0, 200, 20)]
    assert np.allclose(together[::20], one_by_one, rtol=1e-12)
    for kind in (model, PrivateMLPClassifier((4,), schema=SCHEMA, **FEW).fit(TABLE)):
        assert kind.predict(NEW[:0]).shape == (0,)


def test_target_column_of_a_series_with_another_name() -> None:
    fitted = PrivateLogisticRegression(schema=SCHEMA, **FEW).fit(TABLE)
    renamed = TABLE["ill"].rename("something").astype("category")
    again = clone(fitted).fit(TABLE.assign(ill="nonsense"), renamed)
    assert np.array_equal(again.coef_, fitted.coef_)
    assert isinstance(renamed, pd.Series)


def test_text_without_a_schema_is_one_line_that_shows_no_cell() -> None:
    numbers = pd.DataFrame({"age": [20.0, 30.0, 40.0], "dose": ["1", "2", "3.5"]}, dtype=object)
    model = PrivateGAMClassifier(classes=["no", "yes"], feature_bounds=(0, 100), **FEW)
    y = ["no", "yes", "no"]
    model.fit(numbers, y)  # texts of numbers are numbers to scikit-learn
    texts = numbers.assign(pid=["1", "SECRET", "3"])
    for table in (texts, texts.astype({"pid": "category"}), pl.DataFrame(texts.to_dict("list"))):
        for use in (lambda X: clone(model).fit(X, y), model.predict):
            with pytest.raises(InvalidValueError, match="got text in column 'pid': give schema=…"):
                use(table)
    for X, target in ((texts.to_numpy(), y), (numbers, ["1", "SECRET", "2"])):
        other = model if target is y else PrivateLinearRegression(**FEW)
        with pytest.raises(InvalidValueError, match="must have numbers only") as caught:
            clone(other).fit(X, target)
        assert "SECRET" not in str(caught.value)
        assert caught.value.__context__ is None
