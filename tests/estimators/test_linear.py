"""Linear estimators: what they learn, what they claim, and what they refuse."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    Normalizer,
)

import dither
from dither.estimators import (
    PrivacyLeakWarning,
    PrivateGAMClassifier,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
    PrivateSearchCV,
    PrivateSVC,
)
from dither.ledger import Ledger
from dither.noise import Correlated
from dither.schedules import AdaGradNorm, Constant

Table = tuple[Any, Any]
PUBLIC: dict[str, Any] = {"feature_bounds": (0, 16), "classes": range(10), "random_state": 0}


def test_a_fit_learns_within_its_budget(digits: Table) -> None:
    X, y = digits
    for kind in (PrivateLogisticRegression, PrivateSVC):
        model = kind(epsilon=1.0, **PUBLIC).fit(X[:1400], y[:1400])
        assert model.score(X[1400:], y[1400:]) > 0.8
        assert model.privacy_.epsilon <= 1.0
        assert model.privacy_.is_upper_bound
        assert model.privacy_.delta == pytest.approx(1.0 / 14_000)
        assert model.plan_.dataset_size == 1400
        assert model.coef_.shape == (10, 64)
        assert model.intercept_.shape == (10,)


def test_epsilon_is_what_the_plans_noise_costs(digits: Table) -> None:
    model = PrivateLogisticRegression(epsilon=0.7, delta=1e-6, steps=30, **PUBLIC).fit(*digits)
    plan = model.plan_
    again = dither.epsilon(plan.noise_multipliers, sample_rate=plan.sample_rate, delta=1e-6)
    assert again.epsilon == model.privacy_.epsilon
    assert 0.69 < again.epsilon <= 0.7


@pytest.fixture(scope="module")
def fitted() -> list[Any]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (300, 13))
    public: dict[str, Any] = {"epsilon": 1.0, "steps": 5, "random_state": 0}
    bounded = {**public, "feature_bounds": (-1, 1)}
    y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)
    return [
        PrivateLogisticRegression(classes=range(3), **bounded).fit(X, y),
        PrivateLogisticRegression(classes=range(2), feature_norm=1.5, **public).fit(X, y > 0),
        PrivateSVC(classes=range(2), **bounded).fit(X, y > 0),
        PrivateLinearRegression(target_bounds=(0, 2), **bounded).fit(X, y),
        PrivateGAMClassifier(classes=range(3), pairs=[("x0", "x1")], **bounded).fit(X, y),
    ]


@given(
    seed=st.integers(0, 2**32 - 1),
    records=st.sampled_from([2, 3, 7, 8, 17, 100, 2600]),
    kind=st.sampled_from([np.ascontiguousarray, np.asfortranarray, sparse.csr_array]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=30)
def test_a_score_depends_on_its_record_alone(
    fitted: list[Any], seed: int, records: int, kind: Any, dtype: Any
) -> None:
    """To the last bit, at any place among any others."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.2, 1.2, (records, 13)).astype(dtype)
    places = np.unique([0, records - 1, *rng.integers(0, records, 3)])
    X[places] = X[0]
    for model in fitted:
        rows = kind if not isinstance(model, PrivateGAMClassifier) else np.asfortranarray
        for name in ("predict_proba", "decision_function", "predict"):
            if hasattr(model, name):
                found = getattr(model, name)(rows(X))[places]
                assert (found == getattr(model, name)(rows(X[:1]))).all()


def test_scores_are_coefficients_times_features_within_their_bounds(digits: Table) -> None:
    X, y = digits
    model = PrivateLogisticRegression(epsilon=3.0, steps=20, **PUBLIC).fit(X, y)
    assert np.allclose(model.decision_function(X), X @ model.coef_.T + model.intercept_)
    assert np.allclose(model.decision_function(X + 100.0), model.decision_function(0 * X + 16.0))
    probabilities = model.predict_proba(X)
    assert np.allclose(probabilities.sum(axis=1), 1.0)
    assert np.array_equal(model.classes_[probabilities.argmax(axis=1)], model.predict(X))
    assert np.allclose(np.log(probabilities), model.predict_log_proba(X))


def test_two_classes_have_one_score(digits: Table) -> None:
    X, y = digits
    labels = np.where(y < 5, "few", "many")
    for kind in (PrivateLogisticRegression, PrivateSVC):
        model = kind(epsilon=3.0, **{**PUBLIC, "classes": ["many", "few"]}).fit(X, labels)
        assert model.decision_function(X).shape == (len(X),)
        assert model.coef_.shape == (1, 64)
        assert model.score(X, labels) > 0.8
        assert [*model.classes_] == ["few", "many"]
        assert np.array_equal(model.decision_function(X) > 0, model.predict(X) == "many")


def test_bounds_that_differ_by_feature_and_do_not_have_zero(lengths: Table) -> None:
    X, y = lengths
    X = X * [1.0, 10.0, 1e-3, 1e3, 1.0] + [0.0, 100.0, 5.0, -7e3, 3.0]
    bounds = (X.min(axis=0), X.max(axis=0))
    model = PrivateLinearRegression(
        epsilon=3.0, feature_bounds=bounds, target_bounds=(-1, 1), random_state=0
    ).fit(X, y)
    assert model.score(X, y) > 0.7
    linear = X @ model.coef_ + model.intercept_
    assert np.allclose(model.predict(X), linear.clip(-1.0, 1.0))
    assert isinstance(model.intercept_, float)


def test_loose_bounds_cost_little(digits: Table) -> None:
    X, y = digits
    loose = PrivateLogisticRegression(epsilon=3.0, **{**PUBLIC, "feature_bounds": (-64, 64)})
    assert loose.fit(X, y).score(X, y) > 0.85


def test_sparse_records_are_learnt_and_stay_sparse(digits: Table) -> None:
    X, y = digits
    model = PrivateLogisticRegression(epsilon=3.0, **PUBLIC).fit(sparse.csr_array(X), y)
    assert model.score(sparse.csc_matrix(X), y) > 0.8
    assert np.allclose(model.decision_function(sparse.csr_matrix(X)), model.decision_function(X))
    normed = PrivateLogisticRegression(epsilon=3.0, feature_norm=50.0, classes=range(10))
    assert normed.fit(sparse.csr_matrix(X), y).score(X, y) > 0.8
    long = sparse.csr_array(X * 10.0)
    assert np.allclose(normed.decision_function(long), normed.decision_function(long.toarray()))
    shifted = clone(model).set_params(feature_bounds=(1, 16))
    with pytest.raises(ValueError, match="must include 0 for sparse X"):
        shifted.fit(sparse.csr_array(X), y)


def test_records_that_are_too_long_are_shortened(digits: Table) -> None:
    X, y = digits
    model = PrivateLogisticRegression(epsilon=3.0, feature_norm=1.0, classes=range(10))
    fitted = make_pipeline(Normalizer(), model).fit(X, y)
    assert fitted.score(X, y) > 0.8
    assert fitted[-1].privacy_.is_upper_bound
    assert np.allclose(model.decision_function(X[:5] * 9), model.decision_function(X[:5]))


def test_values_derived_from_the_data_warn_and_claim_nothing(digits: Table, lengths: Table) -> None:
    with pytest.warns(PrivacyLeakWarning) as caught:
        model = PrivateLogisticRegression(steps=5, random_state=0).fit(*digits)
    (message,) = [str(each.message) for each in caught]
    for words in ("the classes were", "and the minima and maxima of the features were",
                  "classes=[…]", "feature_bounds=(lower, upper)"):  # fmt: skip
        assert words in message
    assert message.count("no ε is proven") == 1
    assert not model.privacy_.is_upper_bound
    assert "no proof" in str(model.privacy_)
    assert model.privacy_statement().startswith("NOT PROVEN: the classes were")
    with pytest.warns(PrivacyLeakWarning, match="targets were derived from"):
        number = PrivateLinearRegression(steps=5, feature_bounds=(-1, 1)).fit(*lengths)
    assert not number.privacy_.is_upper_bound


def test_nothing_is_warned_of_if_all_is_public(digits: Table) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = PrivateLogisticRegression(steps=5, **PUBLIC).fit(*digits)
    text = " ".join(model.privacy_statement().split())
    assert "the number of records, n = 1,797, counted in the data" in text
    assert "SEEDED" in text
    unseeded = clone(model).set_params(random_state=None).fit(*digits)
    assert "SEEDED" not in unseeded.privacy_statement()
    assert not np.array_equal(unseeded.coef_, clone(unseeded).fit(*digits).coef_)


def test_derived_bounds_are_those_of_the_data(digits: Table) -> None:
    X, y = digits
    with pytest.warns(PrivacyLeakWarning):
        read = PrivateLogisticRegression(steps=5, random_state=0).fit(X, y)
    given = PrivateLogisticRegression(
        steps=5, random_state=0, classes=range(10), feature_bounds=(X.min(axis=0), X.max(axis=0))
    ).fit(X, y)
    assert np.array_equal(read.coef_, given.coef_)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"epsilon": 0.0}, "The 'epsilon' parameter of PrivateLogisticRegression must be"),
        ({"epsilon": "much"}, "The 'epsilon' parameter"),
        ({"delta": 1.0}, "The 'delta' parameter"),
        ({"steps": 0}, "The 'steps' parameter"),
        ({"steps": 2, "epochs": 1.0}, "only one of steps and epochs"),
        ({"batch_size": 2000}, "batch_size must be at most dataset_size = 1797, got 2000"),
        ({"clip_norm": -1}, "The 'clip_norm' parameter"),
        ({"random_state": "a"}, "The 'random_state' parameter"),
        ({"feature_bounds": (1, 0)}, "lower at most upper"),
        ({"feature_bounds": 3}, "feature_bounds must be a pair"),
        ({"feature_bounds": (0, np.ones(3))}, "feature_bounds must be a pair"),
        ({"feature_bounds": (0, np.inf)}, "feature_bounds must be finite"),
        ({"feature_bounds": [(0, 16)] * 64}, r"by column name give {column: \(lower, upper\), …}"),
        ({"feature_bounds": {"age": (0, 120)}}, "must be a pair .* for X without column names"),
        ({"feature_norm": 1.0}, "only one of feature_bounds and feature_norm"),
        ({"feature_bounds": ("0", "1")}, "feature_bounds must be a pair"),
        ({"feature_bounds": (1, 1)}, "must have lower below upper"),
        ({"ledger": 3}, "The 'ledger' parameter"),
        ({"classes": [1]}, "at least 2"),
        ({"classes": {"a", "b"}}, "labels that are not in classes"),
        ({"classes": [[0, 1]]}, "classes must be a list of labels"),
        ({"classes": [0.0, np.nan]}, "classes must be a list of labels"),
        ({"classes": range(9)}, "labels that are not in classes"),
        ({"noise": "loud"}, "noise must be one of"),
        ({"stepsizes": [1.0, 2.0]}, "stepsizes must have one entry per step"),
        ({"dataset_size": 0}, "The 'dataset_size' parameter"),
    ],
)
def test_bad_parameters_are_refused_before_anything_is_spent(
    parameters: dict[str, Any], message: str, digits: Table, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.sqlite"
    model = PrivateLogisticRegression(**{**PUBLIC, "ledger": path, **parameters})
    with pytest.raises((ValueError, TypeError), match=message):
        model.fit(*digits)
    assert not path.exists()
    with pytest.raises(NotFittedError):
        model.predict(digits[0])


def test_bad_data_is_refused_in_scikit_learns_words(digits: Table, tmp_path: Path) -> None:
    X, y = digits
    path = tmp_path / "ledger.sqlite"
    model = PrivateLogisticRegression(**{**PUBLIC, "ledger": path})
    broken = X.copy()
    broken[3, 4] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN"):
        model.fit(broken, y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(X, y[1:])
    with pytest.raises(ValueError, match="Unknown label type"):
        model.fit(X, y + 0.5)
    assert not path.exists()
    model.fit(X, y)
    with pytest.raises(ValueError, match="X has 3 features, but PrivateLogisticRegression is"):
        model.predict(X[:, :3])


def test_unknown_labels_are_not_shown(digits: Table) -> None:
    X, y = digits
    labels = np.where(y == 3, "secret", "no")
    with pytest.raises(ValueError, match="not in classes=") as caught:
        PrivateLogisticRegression(feature_bounds=(0, 16), classes=["no", "yes"]).fit(X, labels)
    assert str(caught.value) == (
        "y has labels that are not in classes=['no', 'yes'] (y: str_, classes: str_)"
    )


def test_a_fit_is_in_the_ledger(digits: Table, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    model = PrivateLogisticRegression(epsilon=0.5, delta=1e-5, ledger=ledger, steps=8, **PUBLIC)
    model.fit(*digits)
    first = ledger.total(1e-5).epsilon
    assert 0.49 < first <= 0.5
    clone(model).fit(*digits)  # the same file, by another connection
    assert len(ledger.runs) == 2
    assert ledger.total(1e-5).epsilon > first


def test_fewer_records_than_were_declared(digits: Table) -> None:
    X, y = digits
    model = PrivateLogisticRegression(
        dataset_size=2000, batch_size=100, steps=5, noise="uniform", **PUBLIC
    )
    assert model.fit(X, y).plan_.sample_rate == 0.05
    assert model.privacy_.delta == pytest.approx(1.0 / 20_000)


def test_other_plans(digits: Table) -> None:
    epochs = PrivateLogisticRegression(epochs=2, batch_size=100, noise="uniform", **PUBLIC)
    epochs.fit(*digits)
    assert epochs.plan_.steps == 36
    given = PrivateLogisticRegression(
        steps=4, stepsizes=Constant(3.0), noise="uniform", clip_norm=0.7, **PUBLIC
    ).fit(*digits)
    assert [*given.plan_.stepsizes] == [3.0] * 4
    assert given.plan_.clip_norm == 0.7
    reacting = PrivateLogisticRegression(
        steps=4, stepsizes=AdaGradNorm(1.0, 1e-3), noise="uniform", batch_size=100, **PUBLIC
    ).fit(*digits)
    assert reacting.privacy_.epsilon <= 1.0


def test_a_fit_that_claims_nothing_is_not_written_down(digits: Table, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    model = PrivateLogisticRegression(feature_bounds=(0, 16), ledger=path)
    with (
        pytest.warns(PrivacyLeakWarning),
        pytest.raises(ValueError, match="ledger must be None for a fit that claims no ε"),
    ):
        model.fit(*digits)
    assert not path.exists()


def test_bounds_with_names_are_taken_by_name(digits: Table) -> None:
    X, y = digits
    frame = pandas.DataFrame(X[:, [20, 30]], columns=["small", "big"]) * [0.1, 100.0]
    low, high = pandas.Series({"big": 0.0, "small": 0.0}), pandas.Series({"big": 1e4, "small": 2.0})
    given: dict[str, Any] = {"classes": range(10), "steps": 5, "random_state": 0}
    named = PrivateLogisticRegression(feature_bounds=(low, high), **given).fit(frame, y)
    ordered = PrivateLogisticRegression(feature_bounds=([0, 0], [2.0, 1e4]), **given).fit(frame, y)
    assert np.array_equal(named.coef_, ordered.coef_)
    with pytest.raises(ValueError, match="feature_bounds must be a pair"):
        PrivateLogisticRegression(feature_bounds=(low, high[:1]), **given).fit(frame, y)


def test_bounds_by_column(digits: Table) -> None:
    X, y = digits
    frame = pandas.DataFrame(X[:, [20, 30]], columns=["small", "big"]) * [0.1, 100.0]
    given: dict[str, Any] = {"classes": range(10), "steps": 5, "random_state": 0}
    ordered = PrivateLogisticRegression(feature_bounds=([0, 0], [2.0, 1e4]), **given).fit(frame, y)
    by_column = {"unused": (0, 1), "big": (0.0, 1e4), "small": (0.0, 2.0)}
    for bounds in (by_column, pandas.Series(by_column), pandas.DataFrame(by_column)):
        named = PrivateLogisticRegression(feature_bounds=bounds, **given).fit(frame, y)
        assert np.array_equal(named.coef_, ordered.coef_)
    grid = {"clip_norm": [0.2]}
    search = PrivateSearchCV(named, grid, epsilon=3.0, random_state=0).fit(frame, y)
    assert search.privacy_.is_upper_bound
    wrong: list[tuple[Any, str]] = [
        ({"small": (0, 1)}, "must have bounds of all 2 columns of X, got none of 'big'"),
        ({"small": (0, 1), "big": (1, 0)}, r"feature_bounds\['big'\] must be .* lower at most"),
        ({"small": (0, 1), "big": 3.0}, r"feature_bounds\['big'\] must be a pair"),
    ]
    for bounds, message in wrong:
        with pytest.raises(ValueError, match=message):
            PrivateLogisticRegression(feature_bounds=bounds, **given).fit(frame, y)


def test_a_large_delta_is_warned_of_once(digits: Table) -> None:
    model = PrivateLogisticRegression(delta=1e-3, steps=3, **PUBLIC)
    network = PrivateMLPClassifier((4,), delta=1e-3, steps=3, **PUBLIC)
    search = PrivateSearchCV(model, {"clip_norm": [0.2]}, delta=1e-3, epsilon=3.0)
    for each in (model, network, search):
        with pytest.warns(UserWarning, match="delta = 0.001 is not below 1/n = 1/1,797") as caught:
            each.fit(*digits)
        assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.set_params(dataset_size=1800, delta=5e-4).fit(*digits)


def test_the_statement_of_reports_is_that_of_the_estimator(digits: Table) -> None:
    model = PrivateLogisticRegression(steps=3, **PUBLIC).fit(*digits)
    assert dither.reports.statement(model) == model.privacy_statement()
    with pytest.raises(NotFittedError):
        dither.reports.statement(clone(model))
    for wrong in (make_pipeline(Normalizer(), model), 3):
        with pytest.raises(TypeError, match="run must be what train or make_private returns"):
            dither.reports.statement(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="without leaks"):
        dither.reports.statement(model, leaks=["the classes were derived"])


def test_step_sizes_as_text(digits: Table) -> None:
    model = PrivateLogisticRegression(steps=3, stepsizes="linear:start=3,end=1", **PUBLIC)
    assert [*model.fit(*digits).plan_.stepsizes] == [3.0, 2.0, 1.0]


def test_sparse_matrices_in_any_order_are_the_same(digits: Table) -> None:
    X, y = digits
    tidy = sparse.csr_matrix(X)
    untidy = tidy.copy()
    for row in range(len(X)):
        part = slice(untidy.indptr[row], untidy.indptr[row + 1])
        untidy.indices[part] = untidy.indices[part][::-1].copy()
        untidy.data[part] = untidy.data[part][::-1].copy()
    untidy.has_sorted_indices = False
    twice = sparse.csr_matrix(
        (np.repeat(tidy.data / 2, 2), np.repeat(tidy.indices, 2), tidy.indptr * 2), tidy.shape
    )
    model = PrivateLogisticRegression(steps=5, **PUBLIC)
    coefficients = [clone(model).fit(each, y).coef_ for each in (tidy, untidy, twice)]
    assert np.allclose(coefficients[0], coefficients[1], atol=1e-6)
    assert np.allclose(coefficients[0], coefficients[2], atol=1e-6)


def test_few_steps_do_not_run_away(lengths: Table) -> None:
    X, y = lengths
    for steps in (1, 3, 10):
        model = PrivateLinearRegression(
            epsilon=3.0, steps=steps, feature_bounds=(-1, 1), target_bounds=(-1, 1), random_state=0
        )
        assert model.fit(X, y).score(X, y) > -0.5


def test_copies_are_the_same(digits: Table) -> None:
    X, y = digits
    model = PrivateSVC(epsilon=2.0, steps=9, **PUBLIC).fit(X, y)
    again = pickle.loads(pickle.dumps(model))  # noqa: S301 - our own bytes
    assert np.array_equal(again.predict(X), model.predict(X))
    assert again.privacy_ == model.privacy_
    assert again.plan_ == model.plan_
    assert clone(model).get_params() == model.get_params()
    assert np.array_equal(clone(model).fit(X, y).coef_, model.coef_)


def test_names_of_features_are_kept(digits: Table) -> None:
    X, y = digits
    frame = pandas.DataFrame(X, columns=[f"pixel{i}" for i in range(64)])
    model = PrivateLogisticRegression(steps=5, **PUBLIC).fit(frame, y)
    assert model.feature_names_in_[7] == "pixel7"
    assert model.n_features_in_ == 64
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.rename(columns={"pixel7": "other"}))


def test_correlated_noise_is_for_the_momentum_of_the_training(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (1000, 3))
    y = X[:, 0] > 0.0
    model = PrivateLogisticRegression(
        epsilon=8.0, delta=1e-5, feature_bounds=(-1, 1), steps=30, batch_size=20,
        classes=[False, True], stepsizes="linear:start=9,end=1", noise="correlated",
    )  # fmt: skip
    model.fit(X, y)
    again = clone(model).set_params(noise=Correlated(momentum=0.9)).fit(X, y)
    assert model.plan_ == again.plan_
    assert model.plan_.sampling == "cyclic"
    assert model.plan_.bands > 1
    assert model.score(X, y) > 0.8
    assert np.isfinite(model._weight_noise)
    text = " ".join(model.privacy_statement().split())
    assert f"correlated within {model.plan_.bands} consecutive steps" in text
    assert f"one of {model.plan_.bands} subsets" in text
    loaded = dither.load(model.save(tmp_path / "model"))
    assert np.array_equal(loaded.predict(X), model.predict(X))
    assert loaded.plan_ == model.plan_
