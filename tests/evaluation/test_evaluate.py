"""What `evaluate` gives, takes and refuses, and how it is charged."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import brier_score_loss, confusion_matrix, log_loss, r2_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.svm import LinearSVC
from tests.estimators.tables import COSTS, SCHEMA, patients

import dither
from dither.accounting import BudgetExceededError
from dither.estimators import PrivateGAMRegressor, PrivateLogisticRegression
from dither.evaluation import Estimate, Evaluation, new_split
from dither.evaluation.evaluating import _class_numbers
from dither.ledger import Ledger
from dither.reports import run_report
from dither.validate import InvalidValueError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30_000, 3))
LOGITS = X @ np.array([1.0, -0.7, 0.3]) - 1.0
Y = np.where(RNG.random(len(X)) < 1.0 / (1.0 + np.exp(-LOGITS)), "yes", "no")
MODEL = make_pipeline(FunctionTransformer(), LogisticRegression()).fit(X[:4000], Y[:4000])
HELD_OUT = X[4000:], Y[4000:]
MUCH: dict[str, Any] = {"epsilon": 50.0, "random_state": 1}


def near(found: Estimate | None, value: float, within: float) -> bool:
    assert found is not None
    assert found.low <= found.value <= found.high
    return abs(found.value - value) < within


def test_metrics_are_scikit_learns() -> None:
    """With hardly any noise."""
    found = dither.evaluate(MODEL, *HELD_OUT, **MUCH)
    p, y = MODEL.predict_proba(HELD_OUT[0]), HELD_OUT[1]
    assert near(found.accuracy, float(np.mean(MODEL.predict(HELD_OUT[0]) == y)), 1e-3)
    assert near(found.auc, roc_auc_score(y, p[:, 1]), 1e-3)
    assert near(found.log_loss, log_loss(y, p), 1e-3)
    assert near(found.brier_score, brier_score_loss(y == "yes", p[:, 1]), 1e-3)
    assert near(found.base_rate, float(np.mean(y == "yes")), 1e-3)
    assert near(found.records, len(y), 30.0)
    q = float(np.mean(y == "yes"))
    assert near(found.base_log_loss, -q * np.log(q) - (1 - q) * np.log(1 - q), 1e-3)
    matrix = confusion_matrix(y, MODEL.predict(HELD_OUT[0]), normalize="all")
    assert np.allclose(
        [[e.value for e in row] for row in found.confusion_matrix], matrix, atol=1e-3
    )
    rates = matrix.diagonal() / matrix.sum(1)
    assert near(found.balanced_accuracy, float(rates.mean()), 2e-3)
    point = next(each for each in found.roc if each.threshold == 0.5)
    assert near(point.true_positive_rate, rates[1], 2e-3)
    assert near(point.false_positive_rate, 1.0 - rates[0], 2e-3)
    for each in found.calibration:
        if each.records > 1000.0:
            assert each.low - 0.03 < each.observed.value < each.high + 0.03


def test_metrics_of_many_classes_and_of_numbers() -> None:
    three = np.digitize(LOGITS + RNG.normal(size=len(X)), [-1.5, 0.0])
    model = LogisticRegression().fit(X[:4000], three[:4000])
    found = dither.evaluate(model, X, three, **MUCH)
    p = model.predict_proba(X)
    assert near(found.accuracy, float(np.mean(model.predict(X) == three)), 1e-3)
    assert near(found.log_loss, log_loss(three, p), 2e-3)
    assert found.auc is None
    assert found.roc == ()
    matrix = confusion_matrix(three, model.predict(X), normalize="all")
    assert np.allclose(
        [[e.value for e in row] for row in found.confusion_matrix], matrix, atol=1e-3
    )
    assert sum(each.value for each in found.class_shares) == pytest.approx(1.0, abs=1e-6)
    target = LOGITS + 0.5 * RNG.normal(size=len(X))
    regressor = LinearRegression().fit(X[:4000], target[:4000])
    found = dither.evaluate(regressor, X, target, target_bounds=(-8.0, 8.0), **MUCH)
    errors = target - regressor.predict(X)
    assert near(found.r2, r2_score(target, regressor.predict(X)), 5e-3)
    assert near(found.mae, float(np.abs(errors).mean()), 5e-3)
    assert near(found.mse, float(np.mean(errors**2)), 5e-3)
    assert near(found.rmse, float(np.sqrt(np.mean(errors**2))), 5e-3)
    assert "R²" in str(found)
    with pytest.raises(ValueError, match="plot needs an evaluation of a classifier"):
        found.plot()


def test_text_figure_and_json() -> None:
    found = dither.evaluate(MODEL, *HELD_OUT, epsilon=1.0)
    assert Evaluation.from_json(found.to_json()) == found
    assert found.privacy.delta == pytest.approx(0.1 / len(HELD_OUT[1]))
    assert not found.is_seeded
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["records", "accuracy", "balanced"]
    assert lines[-1].startswith("(ε = 1")
    assert [axes.get_title()[:3] for axes in found.plot().axes] == ["cal", "ROC"]
    with pytest.raises(ValueError, match="text must be an evaluation of format"):
        Evaluation.from_json("{}")


def test_the_noise_is_new_each_time_unless_it_is_seeded() -> None:
    def once(**options: Any) -> Evaluation:
        return dither.evaluate(MODEL, *HELD_OUT, epsilon=1.0, **options)

    assert once().log_loss != once().log_loss
    assert once(random_state=3) == once(random_state=3)
    assert "SEEDED" in str(once(random_state=3))


def test_bad_records_count_as_nothing() -> None:
    class Broken:
        classes_ = np.array(["no", "yes"])

        def predict_proba(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
            p = MODEL.predict_proba(X)
            p[:1000, 1] = np.nan
            return np.asarray(p)

    X, y = HELD_OUT[0], HELD_OUT[1].astype(object)
    y[1000:1500] = "perhaps"
    y[1500:1600] = None
    y[1600:1700] = np.nan
    found = dither.evaluate(Broken(), X, y, **MUCH)
    assert near(found.records, len(y) - 1700, 30.0)
    expected = dither.evaluate(MODEL, X[1700:], HELD_OUT[1][1700:], **MUCH)
    assert expected.auc is not None
    assert near(found.auc, expected.auc.value, 5e-3)


BIG = 2**53 + 1


@pytest.mark.parametrize(
    ("classes", "labels", "odd"),
    [
        ((0, 1), [0, 1, 1], "unknown"),
        ((False, True), [False, True, True], "unknown"),
        ((0, 1), [0, 1, 1], 10**20),
        ((0, 1), [0, 1, 1], [1, 0]),
        ((0, 1), [0, 1, 1], {"a": 1}),
        ((0, 1), [np.int64(0), torch.tensor(1), 1.0], None),
        ((0, BIG), [0, BIG, BIG], 1.5),
        (("0", "1"), ["0", "1", np.str_("1")], 1),
    ],
)
def test_a_label_that_is_no_class_changes_no_other(
    classes: tuple[Any, ...], labels: list[Any], odd: Any
) -> None:
    cells = np.fromiter([*labels, odd], object, 4)
    for y in ([*labels, odd], cells, cells[:, None], pd.Series(cells), pd.DataFrame({"y": cells})):
        assert _class_numbers(y, classes).tolist() == [0, 1, 1, -1]
    assert _class_numbers([[each] for each in labels], classes).tolist() == [0, 1, 1]


def test_a_missing_label_makes_no_others_floats() -> None:
    labels = [0, BIG, None]
    whole = pd.Series(labels, dtype="Int64")
    for y in (
        labels,
        whole,
        whole.astype("category"),
        pl.Series(labels),
        pl.DataFrame({"y": labels}),
    ):
        assert _class_numbers(y, (0, BIG)).tolist() == [0, 1, -1]


def test_classes_may_be_given_in_another_order() -> None:
    found = dither.evaluate(MODEL, *HELD_OUT, classes=["yes", "no"], **MUCH)
    assert found.classes == ("yes", "no")
    assert near(found.base_rate, float(np.mean(HELD_OUT[1] == "no")), 1e-3)
    assert near(found.auc, roc_auc_score(HELD_OUT[1], MODEL.predict_proba(HELD_OUT[0])[:, 1]), 1e-3)


def test_a_ledger_is_charged_before_anything_is_released(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.cap(1.0, 1e-5)
    part = ledger.part("split", "holdout")
    found = dither.evaluate(MODEL, *HELD_OUT, epsilon=0.9, delta=1e-5, ledger=part)
    (run,) = ledger.runs.values()
    assert (run.entry.split, run.entry.part, run.is_open) == ("split", "holdout", False)
    assert ledger.total(1e-5).epsilon == found.privacy.epsilon
    with pytest.raises(BudgetExceededError, match="above the cap"):
        dither.evaluate(MODEL, *HELD_OUT, epsilon=0.9, delta=1e-5, ledger=part)
    dither.evaluate(
        MODEL, *HELD_OUT, epsilon=0.9, delta=1e-5, ledger=ledger.part("split", "another")
    )
    assert ledger.total(1e-5).epsilon == found.privacy.epsilon


def test_bad_arguments() -> None:
    X, y = HELD_OUT[0][:50], HELD_OUT[1][:50]
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"bins": 7}, "bins must be even and at least 4, got 7"),
        ({"epsilon": 0.0}, "epsilon must be a positive"),
        ({"classes": ["no", "maybe"]}, "classes must be those of the model"),
        ({"loss_bound": -1.0}, "loss_bound must be a positive"),
    )
    for options, words in wrong:
        with pytest.raises(ValueError, match=words):
            dither.evaluate(MODEL, X, y, **{"epsilon": 1.0, **options})
    with pytest.raises(TypeError, match="random_state must be an integer or None, got 'a'"):
        dither.evaluate(MODEL, X, y, epsilon=1.0, random_state="a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="y must have one entry per record, 50 in all, got 49"):
        dither.evaluate(MODEL, X, y[1:], epsilon=1.0)
    with pytest.raises(TypeError, match="model must have predict_proba"):
        dither.evaluate(LinearSVC().fit(X, y), X, y, epsilon=1.0)
    regressor = LinearRegression().fit(X, np.arange(50.0))
    with pytest.raises(ValueError, match="target_bounds must be \\(least, largest\\)"):
        dither.evaluate(regressor, X, np.arange(50.0), epsilon=1.0)
    for bounds in ((-1e308, 1e308), (0.0, 1.1e50), (0.0, 1e-60)):
        with pytest.raises(ValueError, match="target_bounds must be at most 1e50 in size"):
            dither.evaluate(regressor, X, np.arange(50.0), epsilon=1.0, target_bounds=bounds)
    for labels in ("yes", 1, np.stack([y, y], axis=1), torch.zeros(50, 2)):
        with pytest.raises((TypeError, ValueError), match="y must be one class per record"):
            dither.evaluate(MODEL, X, labels, epsilon=1.0)
    with pytest.raises(TypeError, match="y must be numbers, got others") as caught:
        dither.evaluate(regressor, X, y, epsilon=1.0, target_bounds=(0.0, 50.0))
    assert "yes" not in str(caught.value)


@pytest.mark.parametrize("kind", [np.asarray, list, tuple, pd.Series, pl.Series])
def test_a_split_has_every_record_once(kind: Any) -> None:
    frame = pd.DataFrame({"a": np.arange(500)}, index=np.arange(500)[::-1])
    train, holdout, rows, held, polars, held_polars = dither.evaluation.train_holdout_split(
        kind(np.arange(500)), frame, pl.from_pandas(frame), holdout=0.3
    )
    assert type(train) is type(kind(np.arange(500)))
    assert sorted([*train, *holdout]) == [*range(500)]
    assert list(rows["a"]) == list(train) == list(polars["a"])
    assert list(held["a"]) == list(holdout) == list(held_polars["a"])


def test_records_are_held_out_independently() -> None:
    """Sizes vary as those of independent draws do, which a split of fixed size would not."""
    rate, size, splits = 0.2, 400, 2000
    draws = np.zeros((splits, size), bool)
    for k in range(splits):
        held = dither.evaluation.train_holdout_split(np.arange(size), holdout=rate, random_state=k)[
            1
        ]
        draws[k, held] = True
    # Of 2,000 sizes the variance has a relative standard deviation of √(2/2000) = 3.2 %.
    assert draws.sum(1).var() == pytest.approx(size * rate * (1 - rate), rel=0.16)
    assert draws.mean() == pytest.approx(rate, abs=5 * np.sqrt(rate * 0.8 / draws.size))
    with pytest.raises(ValueError, match="arrays must have the same number of records, got 3, 4"):
        dither.evaluation.train_holdout_split([1, 2, 3], np.zeros(4))
    with pytest.raises(ValueError, match="holdout must be strictly between 0 and 1, got 1"):
        dither.evaluation.train_holdout_split([1, 2, 3], holdout=1.0)


def test_a_schema_has_the_target_and_its_bounds(tmp_path: Path) -> None:
    table, file = patients(500), tmp_path / "patients.csv"
    table.to_csv(file, index=False)
    few: dict[str, Any] = {"epsilon": 3.0, "steps": 5, "random_state": 0}
    for model, y, bounds in (
        (PrivateLogisticRegression(schema=SCHEMA, **few), table["ill"], None),
        (PrivateGAMRegressor(schema=COSTS, **few), table["cost"], (0, 1000)),
    ):
        model.fit(table)
        expected = dither.evaluate(model, table, y, target_bounds=bounds, **MUCH)
        for each in (table, pl.from_pandas(table), file):
            assert dither.evaluate(model, each, **MUCH) == expected
    with pytest.raises(TypeError, match="y must be given for a model without a schema"):
        dither.evaluate(MODEL, X, **MUCH)


def test_a_saved_evaluation_is_in_the_models_report(tmp_path: Path) -> None:
    records = np.random.default_rng(0).uniform(-1.0, 1.0, (400, 2))
    y, ledger, split = records[:, 0] > 0.0, Ledger(tmp_path / "ledger.sqlite"), new_split()
    model = PrivateLogisticRegression(
        epsilon=0.5, delta=1e-4, feature_bounds=(-1, 1), classes=[False, True], steps=5,
        ledger=ledger.part(split, "training"),
    ).fit(records[:300], y[:300])  # fmt: skip
    found = dither.evaluate(
        model, records[300:], y[300:], epsilon=2.0, delta=1e-4,
        ledger=ledger.part(split, "holdout"),
    )  # fmt: skip
    with pytest.raises(InvalidValueError, match="run directory of a saved model, got"):
        found.save(tmp_path)
    found.save(model.save(tmp_path / "run"))
    report = run_report(tmp_path / "run")
    assert report.evaluation is not None
    assert report.claim.bound is not None
    assert report.claim.bound.epsilon == pytest.approx(found.privacy.epsilon)
    assert report.claim.verdict == "proven"
