"""`SchemaEncoder` is a scikit-learn transformer that needs no fit."""

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from dither import estimators
from dither.schema import Category, Number, Schema, SchemaEncoder
from dither.validate import InvalidTypeError, InvalidValueError

SCHEMA = Schema({"age": Number(bounds=(0, 100)), "sex": Category(values=("f", "m"))})
TABLE = pd.DataFrame({"sex": ["f", "m", "x"], "age": [50, 75, None]}, index=[3, 1, 2])


def test_it_transforms_without_fit_and_survives_clone_and_pickle() -> None:
    encoder = SchemaEncoder(SCHEMA, numbers="spline", bins=2)
    expected = SCHEMA.encode(TABLE, numbers="spline", bins=2)
    check_is_fitted(encoder)
    assert not get_tags(encoder).requires_fit
    pickled = pickle.loads(pickle.dumps(encoder))  # noqa: S301
    for each in (encoder, clone(encoder), pickled, encoder.fit(TABLE)):
        assert np.array_equal(each.transform(TABLE), expected)
        assert each.get_params() == {"schema": SCHEMA, "numbers": "spline", "bins": 2}
    assert "n_features_in_" not in vars(encoder)
    assert estimators.SchemaEncoder is SchemaEncoder


def test_a_schema_may_be_a_dict_or_a_file(tmp_path: Path) -> None:
    SCHEMA.save(tmp_path / "schema.toml")
    for given in (SCHEMA.to_dict(), tmp_path / "schema.toml", str(tmp_path / "schema.toml")):
        assert np.array_equal(SchemaEncoder(given).transform(TABLE), SCHEMA.encode(TABLE))
    with pytest.raises(InvalidTypeError, match="schema must be a Schema, a dict or the path"):
        SchemaEncoder(3).fit()  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="numbers must be one of"):
        SchemaEncoder(SCHEMA, numbers="quadratic").fit()


def test_set_output_gives_frames_of_pandas_and_polars() -> None:
    names = ["age", "sex=f", "sex=m", "sex (other)", "sex (missing)"]
    pandas = SchemaEncoder(SCHEMA).set_output(transform="pandas")
    polars = SchemaEncoder(SCHEMA).set_output(transform="polars")
    for table in (TABLE, pl.DataFrame(TABLE.to_dict("list"))):
        frame = pandas.transform(table)
        assert [*frame.columns] == names
        assert polars.transform(table).columns == names
        assert np.array_equal(frame.to_numpy(), SCHEMA.encode(TABLE))
    assert pandas.transform(TABLE).index.tolist() == [3, 1, 2]


def test_pipelines_and_column_transformers() -> None:
    labels = ["a", "b", "b"]
    pipeline = make_pipeline(SchemaEncoder(SCHEMA), LogisticRegression()).fit(TABLE, labels)
    plain = LogisticRegression().fit(SCHEMA.encode(TABLE), labels)
    assert np.array_equal(pipeline.predict_proba(TABLE), plain.predict_proba(SCHEMA.encode(TABLE)))
    assert pipeline[:1].get_feature_names_out().tolist() == SCHEMA.feature_names()
    parts = ColumnTransformer([("part", SchemaEncoder(SCHEMA), ["sex", "age"])])
    wider = TABLE.assign(extra=1.0)
    assert np.array_equal(parts.fit_transform(wider), SCHEMA.encode(TABLE))
    assert parts.get_feature_names_out()[0] == "part__age"
