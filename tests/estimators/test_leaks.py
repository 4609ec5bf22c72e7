"""Scalers that were fitted on the private records are found; honest units never are."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    RobustScaler,
    StandardScaler,
)
from torch import nn

from dither.data.files import directory
from dither.estimators import (
    PrivacyLeakWarning,
    PrivateClassifier,
    PrivateGAMClassifier,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
    PrivateSearchCV,
)
from dither.estimators.leaks import fitted_statistics

Table = tuple[Any, Any]
Array = NDArray[Any]
RNG = np.random.default_rng(0)
PUBLIC: dict[str, Any] = {
    "feature_bounds": (-3, 3), "classes": range(10), "steps": 3, "noise": "uniform",
}  # fmt: skip


def cancer() -> Array:
    return np.asarray(load_breast_cancer(return_X_y=True)[0])


STANDARD, ROBUST = "means and variances", "medians and quartiles"
RANGE, SIZE = "minima and maxima", "maximum absolute values"


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("read", [load_wine, load_breast_cancer, load_diabetes, load_iris])
@pytest.mark.parametrize(
    ("scaler", "statistics"),
    [
        (StandardScaler(), STANDARD),
        (RobustScaler(), ROBUST),
        (MinMaxScaler(), RANGE),
        (MinMaxScaler((-1, 1)), RANGE),
        (MaxAbsScaler(), SIZE),
    ],
)
def test_scalers_are_found(scaler: Any, statistics: str, read: Any, dtype: Any) -> None:
    X = read(return_X_y=True)[0].astype(dtype)
    assert fitted_statistics(X) is None
    small = {(load_iris, RANGE), (load_iris, SIZE), (load_diabetes, SIZE)}
    expected = None if (read, statistics) in small else statistics  # too few columns, many ties
    assert fitted_statistics(scaler.fit_transform(X)) == expected


def test_scaling_by_hand_is_found() -> None:
    X = cancer()
    frame = pandas.DataFrame(X)
    assert fitted_statistics((X - X.mean(axis=0)) / X.std(axis=0)) == STANDARD
    assert fitted_statistics(((frame - frame.mean()) / frame.std()).to_numpy()) == STANDARD
    assert fitted_statistics(X / X.std(axis=0)) == "variances"
    assert fitted_statistics(X / X.max(axis=0)) == SIZE
    assert fitted_statistics((X - X.min(axis=0)) / np.ptp(X, axis=0)) == RANGE
    images = X[:, :24].reshape(-1, 2, 3, 4)
    assert fitted_statistics((images - images.mean(axis=0)) / images.std(axis=0)) == STANDARD


def test_scaled_columns_are_found_beside_others() -> None:
    X = np.hstack([cancer()[:, :5], RNG.integers(0, 4, (569, 2))])
    encoded = ColumnTransformer(
        [("scaled", StandardScaler(), [0, 1]), ("encoded", OneHotEncoder(), [5, 6])],
        remainder="passthrough",
    )
    assert fitted_statistics(encoded.fit_transform(X)) == STANDARD
    robust = ColumnTransformer(
        [("scaled", RobustScaler(), slice(0, 5)), ("encoded", OneHotEncoder(), [5, 6])]
    )
    assert fitted_statistics(robust.fit_transform(X)) == ROBUST


def test_sparse_records_are_checked_as_they_are() -> None:
    X = sparse.csr_array(sparse.random_array((3000, 40), density=0.1, rng=RNG))
    signed = X.copy()
    signed.data = 2.0 * X.data - 1.0
    for honest in (X, signed):
        assert fitted_statistics(honest) is None
        assert fitted_statistics(MaxAbsScaler().fit_transform(honest)) == SIZE
        unit = StandardScaler(with_mean=False).fit_transform(honest)
        assert fitted_statistics(unit) == "variances"
    huge = sparse.random_array((10**6, 10**6), density=1e-7, rng=RNG, format="csr")
    assert fitted_statistics(huge) is None  # 8 TB if it were dense


def compositions() -> Array:
    return RNG.dirichlet([0.05] * 6, 400)


def minutes_of_days() -> Array:
    angles = 2.0 * np.pi * RNG.integers(0, 1440, (4000, 3)) / 1440.0
    return np.hstack([np.sin(angles), np.cos(angles)])


@pytest.mark.parametrize(
    "make",
    [
        lambda: RNG.normal(size=(100_000, 5)),
        lambda: RNG.normal(size=(100_000, 5)).astype(np.float32),
        lambda: RNG.uniform(-1.0, 1.0, (500, 8)),
        lambda: np.clip(RNG.normal(size=(5000, 8)), -3.0, 3.0),  # to public bounds
        lambda: np.minimum(RNG.exponential(size=(5000, 10)) / 4.0, 1.0),
        lambda: RNG.integers(0, 256, (4000, 30)) / 255.0,  # images in which all levels occur
        lambda: RNG.integers(0, 256, (4000, 30)) / 127.5 - 1.0,
        lambda: (RNG.integers(0, 256, (4000, 30)).astype(np.float32) - 128.0) / 128.0,
        lambda: np.clip(RNG.normal(-0.1, 1.5, (2000, 30)), 0.0, 1.0),  # median 0, quartile 1
        lambda: RNG.integers(-16, 17, (4000, 8)) / 16.0,  # quartiles at ±½
        lambda: RNG.integers(-12, 13, (4000, 8)) / 12.0,
        lambda: np.eye(10)[RNG.integers(0, 10, 500)],
        lambda: RNG.permuted(np.tile([[-1.0], [1.0]], (50, 4)), axis=0),  # balanced, variance 1
        lambda: RNG.permuted(np.tile([[0.0], [2.0]], (50, 4)), axis=0),
        lambda: (RNG.integers(1, 6, (300, 12)) - 1) / 4.0,  # ratings
        lambda: RNG.poisson(0.4, (2000, 12)) * 1.0,  # counts with median 0 and quartile 1
        lambda: np.clip(np.rint(RNG.normal(60.0, 20.0, (400, 5))), 0.0, 100.0) / 100.0,
        lambda: np.tanh(RNG.normal(0.0, 8.0, (400, 8))),
        compositions,
        minutes_of_days,
        lambda: np.full((50, 3), 1.0 / 3.0),
        lambda: RNG.normal(size=(2, 3)),
        lambda: RNG.normal(size=(50, 8)) * 1e200,
    ],
)
def test_honest_units_are_never_found(make: Callable[[], Array]) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        assert [fitted_statistics(make()) for _ in range(10)] == [None] * 10


NUMBERS = {"age": (0, 120), "bmi": (10, 60), "crp": (0, 300), "hb": (3, 20), "sodium": (100, 180)}
WARDS = ["icu", "surgery", "other"]


def patients(records: int) -> pandas.DataFrame:
    """Return a table of numbers in their own units, categories and text, with missing cells."""
    table = pandas.DataFrame(
        {
            "age": RNG.normal(55.0, 18.0, records).clip(0.0, 110.0).round(),
            "bmi": RNG.normal(27.0, 5.0, records).round(1),
            "crp": RNG.lognormal(1.0, 1.2, records),
            "hb": RNG.normal(13.5, 1.8, records),
            "sodium": RNG.normal(140.0, 4.0, records),
        }
    )
    table = table.mask(RNG.random(table.shape) < 0.2)
    table["ward"] = RNG.choice(WARDS, records)
    table["note"] = RNG.choice(["pain and fever", "no pain", "fever"], records)
    return table


def by_bounds(X: Any) -> Array:
    low, high = np.array([*NUMBERS.values()], float).T
    return np.asarray((np.asarray(X, float).clip(low, high) - low) / (high - low))


def stateless(fill_value: float) -> ColumnTransformer:
    numbers = make_pipeline(
        SimpleImputer(strategy="constant", fill_value=fill_value),
        FunctionTransformer(by_bounds),
    )
    return ColumnTransformer(
        [
            ("numbers", numbers, [*NUMBERS]),
            ("logs", FunctionTransformer(lambda X: np.log1p(X.fillna(0.0))), ["crp"]),
            ("wards", OneHotEncoder(categories=[WARDS], handle_unknown="ignore"), ["ward"]),
            ("words", HashingVectorizer(n_features=16), "note"),
        ]
    )


@pytest.mark.parametrize("records", [60, 3000])
@pytest.mark.parametrize("fill_value", [0.0, 40.0])
def test_steps_with_constant_parameters_are_no_leak(records: int, fill_value: float) -> None:
    table, y = patients(records), RNG.choice(["no", "yes"], records)
    for sparse_threshold in (0.0, 1.0):
        steps = stateless(fill_value).set_params(sparse_threshold=sparse_threshold)
        model = PrivateLogisticRegression(feature_norm=4.0, classes=["no", "yes"], steps=3)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert make_pipeline(steps, model).fit(table, y)[-1].privacy_.is_upper_bound
        scaled = make_pipeline(steps, StandardScaler(with_mean=False), model)
        with pytest.warns(PrivacyLeakWarning, match="were scaled by their own"):
            scaled.fit(table, y)


@pytest.mark.evidence
@pytest.mark.parametrize("name", ["adult/train", "diamonds/diamonds", "census-income/train"])
@pytest.mark.parametrize("records", [50, 300, 3000, 30_000])
def test_real_tables_with_constant_steps_are_no_leak(name: str, records: int) -> None:
    table = pandas.read_csv(directory() / f"{name}.csv.gz").sample(records, random_state=1)
    numbers = table.select_dtypes("number")
    low, high = numbers.min() - 1.0, numbers.max() + 1.0
    missing = numbers.astype(float).mask(RNG.random(numbers.shape) < 0.2)
    texts = table.select_dtypes(exclude="number").fillna("missing").astype(str)
    values = [sorted({*texts[column]}) for column in texts]
    honest = [
        numbers, np.log1p(numbers - numbers.min()), (numbers - low) / (high - low),
        OneHotEncoder(categories=values).fit_transform(texts),
        HashingVectorizer(n_features=64).transform(texts.agg(" ".join, axis=1)),
    ]  # fmt: skip
    for fill_value in (0.0, -1.0, 40.0):
        filled = SimpleImputer(strategy="constant", fill_value=fill_value).fit_transform(missing)
        honest += [filled, np.clip((filled - low.to_numpy()) / (high - low).to_numpy(), 0.0, 1.0)]
    for X in honest:
        assert fitted_statistics(X if sparse.issparse(X) else np.asarray(X, float)) is None
    assert fitted_statistics(StandardScaler().fit_transform(numbers)) == STANDARD


def test_small_integers_with_mean_0_and_variance_1_are_honest() -> None:
    column = np.repeat([-2.0, -1.0, 0.0, 1.0, 2.0], [1, 4, 6, 4, 1])[:, None]
    assert (column.mean(), column.var()) == (0.0, 1.0)
    assert fitted_statistics(column) is None
    assert fitted_statistics(column * 1.01) is None
    irregular = column + 0.01 * np.arange(16.0)[:, None] ** 2
    assert fitted_statistics(StandardScaler().fit_transform(irregular)) == STANDARD


def test_digits_in_public_units_are_honest(digits: Table) -> None:
    X, _ = digits
    for honest in (X, X / 16.0, X / 8.0 - 1.0, (X - 5.0) / 6.0, sparse.csr_array(X / 16.0)):
        assert fitted_statistics(honest) is None
    assert fitted_statistics(StandardScaler().fit_transform(X)) == STANDARD
    half = StandardScaler().fit(X[::2]).transform(X[1::2])  # fitted on others
    assert fitted_statistics(half) is None


@pytest.mark.parametrize(
    "model",
    [
        PrivateLogisticRegression(**PUBLIC),
        PrivateLogisticRegression(feature_norm=8.0, classes=range(10), steps=3),
        PrivateGAMClassifier(**PUBLIC),
        PrivateMLPClassifier(**PUBLIC),
        PrivateClassifier(nn.Linear, classes=range(10), steps=3),
        PrivateSearchCV(PrivateLogisticRegression(**PUBLIC), {"clip_norm": [0.2]}, epsilon=3.0),
    ],
)
def test_a_fit_on_scaled_features_claims_nothing(model: Any, digits: Table) -> None:
    X, y = digits
    leak = "the features were scaled by their own means and variances"
    with pytest.warns(PrivacyLeakWarning, match=leak) as caught:
        pipeline = make_pipeline(StandardScaler(), clone(model)).fit(X, y)
    assert len(caught) == 1
    assert not pipeline[-1].privacy_.is_upper_bound
    assert "NOT PROVEN: " + leak in " ".join(pipeline[-1].privacy_statement().split())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert clone(model).fit(X / 16.0, y).privacy_.is_upper_bound


def test_a_warning_is_at_the_line_that_fits(digits: Table) -> None:
    X, y = StandardScaler().fit_transform(digits[0]), digits[1]
    models = [
        PrivateLogisticRegression(**PUBLIC), PrivateGAMClassifier(**PUBLIC),
        PrivateMLPClassifier(**PUBLIC),
    ]  # fmt: skip
    models.append(PrivateSearchCV(models[0], {"clip_norm": [0.2]}, epsilon=3.0))
    for model in models:
        with pytest.warns(PrivacyLeakWarning) as caught:
            model.fit(X, y)
        assert caught[0].filename == __file__


def test_a_ledger_is_refused_for_scaled_features(digits: Table, tmp_path: Path) -> None:
    X, y = digits
    model = PrivateLogisticRegression(ledger=tmp_path / "ledger.sqlite", **PUBLIC)
    with (
        pytest.warns(PrivacyLeakWarning),
        pytest.raises(ValueError, match="ledger must be None for a fit that claims no ε"),
    ):
        model.fit(StandardScaler().fit_transform(X), y)
    model.fit(X / 16.0, y)


def test_every_fold_of_a_cross_validation_is_checked(digits: Table) -> None:
    scaled = make_pipeline(StandardScaler(), PrivateLogisticRegression(**PUBLIC))
    with pytest.warns(PrivacyLeakWarning) as caught:
        cross_val_score(scaled, *digits, cv=2)
    assert len(caught) == 2


def test_scaled_targets_claim_nothing(lengths: Table) -> None:
    X, y = lengths
    model = PrivateLinearRegression(steps=3, feature_bounds=(-1, 1), target_bounds=(-3, 3))
    with pytest.warns(PrivacyLeakWarning, match="the targets were scaled by their own"):
        scaled = TransformedTargetRegressor(model, transformer=StandardScaler()).fit(X, y)
    assert not scaled.regressor_.privacy_.is_upper_bound
    assert model.fit(X, y).privacy_.is_upper_bound
