"""Paid evaluation of users: one user's rows weigh as one, in the release and in the metrics."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression, LogisticRegression
from tests.evaluation.test_coverage import limits
from tests.evaluation.test_sensitivity import ANY, MANY, NUMBERS, TWO, Constant, audited, change

import dither
from dither.accounting import BudgetExceededError
from dither.evaluation import Evaluation, train_holdout_split
from dither.evaluation.cells import add_up
from dither.evaluation.numbers import Numbers
from dither.ledger import Ledger
from dither.planning import Plan
from dither.schema import Number, Schema, Target
from dither.validate import InvalidValueError

MUCH: dict[str, Any] = {"epsilon": 60.0, "random_state": 1}
RNG = np.random.default_rng(0)


def user_table(users: int, rng: np.random.Generator) -> tuple[NDArray[np.float64], Any, Any]:
    """Return features, classes and ids of users whose number of rows is related to their class."""
    risk = rng.normal(size=users)
    rows = 1 + rng.poisson(np.where(risk > 0.5, 9.0, 1.0))
    ids = np.repeat(np.arange(users), rows)
    X = (risk[ids] + rng.normal(size=ids.size))[:, None]
    y = (risk[ids] + 0.5 * rng.normal(size=ids.size) > 0.3).astype(int)
    return X, y, ids


@given(
    st.lists(st.tuples(ANY, ANY, ANY, st.integers(-1, 2), st.integers(0, 3)), min_size=1),
    st.integers(1, 40),
)
def test_one_user_moves_the_sums_by_at_most_the_norm(
    records: list[tuple[float, float, float, int, int]], copies: int
) -> None:
    table = np.repeat(np.array(records), copies, axis=0)
    scores, y, owners = table[:, :3], table[:, 3].astype(np.int64), table[:, 4].astype(np.int64)
    kept = owners != owners[0]
    two = np.minimum(y, 1)
    for found, without, norm in (
        (
            TWO.sums(scores[:, :2], two, owners),
            TWO.sums(scores[kept, :2], two[kept], owners[kept]),
            TWO.norm,
        ),
        (
            MANY.sums(scores, y, owners),
            MANY.sums(scores[kept], y[kept], owners[kept]),
            MANY.norm,
        ),
        (
            NUMBERS.sums(scores[:, 0], scores[:, 1], owners),
            NUMBERS.sums(scores[kept, 0], scores[kept, 1], owners[kept]),
            NUMBERS.norm,
        ),
    ):
        assert np.isfinite(found).all()
        assert change(found, without) <= norm * (1.0 + 1e-12)


def test_a_user_with_a_million_rows_moves_row_level_sums_by_more() -> None:
    """What is right for records is wrong for users, and the property above would find it."""
    p, y, owners = np.tile([1.0, 0.0], (10**6, 1)), np.ones(10**6, np.int64), np.zeros(10**6, int)
    assert np.linalg.norm(TWO.sums(p, y, owners)) == pytest.approx(TWO.norm, rel=1e-5)
    assert np.linalg.norm(TWO.sums(p, y)) > 1e6


def test_an_audit_with_a_user_as_canary_catches_row_level_sums() -> None:
    made = dither.plan(
        epsilon=2.0, delta=1e-3, dataset_size=31, batch_size=31, steps=1, clip_norm=TWO.norm,
        noise="uniform",
    ).for_users(1)  # fmt: skip
    p, y, owners = np.tile([1.0, 0.0], (3, 1)), np.ones(3, np.int64), np.zeros(3, np.int64)
    assert audited(made, 1000, TWO.sums(p, y, owners)) <= made.bound.epsilon
    assert audited(made, 1000, TWO.sums(p, y)) > made.bound.epsilon


def test_users_with_one_row_are_records() -> None:
    rng = np.random.default_rng(1)
    p, y = rng.random((500, 3)), rng.integers(-1, 3, 500)
    owners = rng.permutation(500)
    assert np.array_equal(TWO.sums(p, np.minimum(y, 1)), TWO.sums(p, np.minimum(y, 1), owners))
    assert np.array_equal(MANY.sums(p, y), MANY.sums(p, y, owners))
    assert np.array_equal(NUMBERS.sums(p[:, 0], p[:, 1]), NUMBERS.sums(p[:, 0], p[:, 1], owners))


def test_sums_depend_neither_on_the_order_nor_on_the_numbers_of_users() -> None:
    rng = np.random.default_rng(2)
    p, y, owners = rng.random((2000, 2)), rng.integers(0, 2, 2000), rng.integers(0, 90, 2000)
    order, names = rng.permutation(2000), rng.permutation(90)
    found = TWO.sums(p[order], y[order], names[owners[order]])
    assert np.array_equal(TWO.sums(p, y, owners), found)


def test_cells_are_the_sums_of_the_users_means() -> None:
    rng = np.random.default_rng(3)
    cells, owners = rng.integers(0, 5, 300), rng.integers(0, 40, 300)
    values = np.rint(rng.normal(size=300) * 2**20) / 2**20
    expected = np.zeros(5)
    for user in np.unique(owners):
        mine = owners == user
        expected += [values[mine & (cells == cell)].sum() / mine.sum() for cell in range(5)]
    assert np.allclose(add_up(cells, values, 5, owners), expected, atol=5 * 300 * 2.0**-20)


def test_in_the_metrics_every_user_weighs_the_same() -> None:
    """With hardly any noise, against scikit-learn's weights; those of rows differ."""
    from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

    X, y, ids = user_table(6000, RNG)
    model = LogisticRegression().fit(X, y)
    weights = 1.0 / np.bincount(ids)[ids]
    p = model.predict_proba(X)
    found = dither.evaluate(model, X, y, users=ids, **MUCH)
    by_rows = dither.evaluate(model, X, y, **MUCH)
    assert (found.privacy.unit, by_rows.privacy.unit) == ("user", "record")
    assert found.privacy.delta == pytest.approx(0.1 / 6000)
    assert found.records.value == pytest.approx(6000, abs=30)
    assert str(found).startswith("users ")
    assert str(by_rows).startswith("records ")
    assert Evaluation.from_json(found.to_json()) == found
    for name, expected in (
        ("accuracy", accuracy_score(y, p.argmax(1), sample_weight=weights)),
        ("log_loss", log_loss(y, p, sample_weight=weights)),
        ("auc", roc_auc_score(y, p[:, 1], sample_weight=weights)),
        ("base_rate", float(np.average(y, weights=weights))),
    ):
        assert getattr(found, name).value == pytest.approx(expected, abs=4e-3), name
    assert by_rows.base_rate is not None
    assert by_rows.base_rate.value > float(np.average(y, weights=weights)) + 0.05


def test_metrics_of_numbers_weigh_users_the_same() -> None:
    X, _, ids = user_table(3000, RNG)
    y = X[:, 0] + 0.3 * RNG.normal(size=len(X)) + 0.1 * np.bincount(ids)[ids]
    model = LinearRegression().fit(X, y)
    layout = Numbers(-9.0, 9.0, 9.0)
    found = layout.metrics(layout.sums(model.predict(X), y, ids), 1e-9)
    weights = 1.0 / np.bincount(ids)[ids]
    errors = y - model.predict(X)
    assert found.mse is not None
    assert found.mse.value == pytest.approx(np.average(errors**2, weights=weights), rel=1e-3)
    assert found.mse.value != pytest.approx(np.mean(errors**2), rel=1e-2)


def test_intervals_cover_what_is_true_of_users() -> None:
    """Users differ in rows and in how well they are predicted; rows of a user are alike."""
    repetitions, users, rng = 120, 400, np.random.default_rng(5)
    noise = float(_plan(users).noise_multipliers[0]) * TWO.norm

    def draw(count: int) -> tuple[NDArray[np.float64], Any, Any]:
        X, y, ids = user_table(count, rng)
        p = 1.0 / (1.0 + np.exp(0.3 - 1.2 * X[:, 0]))
        return np.stack([1.0 - p, p], axis=1), y, ids

    p, y, ids = draw(300_000)
    true = TWO.metrics(TWO.sums(p, y, ids), 1e-9)
    by_rows = TWO.metrics(TWO.sums(p, y), 1e-9)
    low, _ = limits(repetitions)
    found = []
    for _ in range(repetitions):
        sums = TWO.sums(*draw(users))
        found.append(TWO.metrics(sums + noise * rng.standard_normal(sums.size), noise))
    for name in ("accuracy", "auc", "log_loss", "brier_score", "balanced_accuracy"):
        intervals = [getattr(each, name) for each in found]
        value = getattr(true, name).value
        assert np.mean([each.low <= value <= each.high for each in intervals]) >= low, name
    wrong = by_rows.class_shares[1].value
    covered = [each.class_shares[1].low <= wrong <= each.class_shares[1].high for each in found]
    assert np.mean(covered) < low  # the share of rows is another number


def _plan(users: int) -> Plan:
    made = dither.plan(
        epsilon=1.0, delta=1e-4, dataset_size=users, batch_size=users, steps=1, noise="uniform",
        clip_norm=TWO.norm,
    )  # fmt: skip
    assert isinstance(made, Plan)
    return made


def test_rows_without_an_id_are_left_out_or_their_own() -> None:
    X, y = np.zeros((300, 1)), np.arange(300) % 2
    ids: list[Any] = [*np.repeat(np.arange(50), 4).tolist(), *[None, float("nan")] * 50]
    for missing, users in (("drop", 50), ("own", 150)):
        found = dither.evaluate(Constant(), X, y, users=ids, missing=missing, **MUCH)
        assert found.records.value == pytest.approx(users, abs=20)
        assert found.privacy.delta == pytest.approx(0.1 / users)
    with pytest.raises(InvalidValueError, match="users must have one id per record, 300 in all"):
        dither.evaluate(Constant(), X, y, users=ids[1:], **MUCH)
    with pytest.raises(InvalidValueError, match="missing must be one of drop, own, got 'keep'"):
        dither.evaluate(Constant(), X, y, users=ids, missing="keep", **MUCH)


class BySchema:
    classes_ = (0, 1)
    schema_ = Schema({"x": Number(bounds=(0, 1))}, Target("y", classes=(0, 1)), "who")

    def predict_proba(self, table: dict[str, Any]) -> NDArray[np.float64]:
        return np.full((len(table["x"]), 2), 0.5)


def test_the_schema_of_the_model_names_the_users() -> None:
    table = {"x": [0.5] * 40, "y": [0, 1] * 20, "who": ["a", "b", None, "d"] * 10}
    model = BySchema()
    found = dither.evaluate(model, table, epsilon=1.0, dataset_size=3, random_state=0)
    assert found.privacy.unit == "user"
    assert found == dither.evaluate(
        model, table, users=table["who"], epsilon=1.0, dataset_size=3, random_state=0
    )
    with pytest.raises(InvalidValueError, match="users: table must have .* but has no 'who'"):
        dither.evaluate(model, {"x": table["x"], "y": table["y"]}, epsilon=1.0)


def test_a_ledger_takes_one_unit_only(tmp_path: Path) -> None:
    X, y, ids = np.zeros((30, 1)), np.zeros(30), np.arange(30) // 3
    ledger = Ledger(tmp_path)
    dither.evaluate(Constant(), X, y, users=ids, epsilon=1.0, ledger=ledger)
    assert ledger.summary(1e-5)["unit"] == "user"
    with pytest.raises(BudgetExceededError, match="protects records, but the ledger has runs"):
        dither.evaluate(Constant(), X, y, epsilon=1.0, ledger=ledger)


@pytest.mark.parametrize("kind", [np.asarray, list])
def test_all_rows_of_a_user_are_on_one_side(kind: Any) -> None:
    rng = np.random.default_rng(4)
    ids = rng.integers(0, 60, 3000)
    train, holdout = train_holdout_split(kind(ids), users=kind(ids), holdout=0.4)
    assert not {*train} & {*holdout}
    assert sorted([*train, *holdout]) == sorted(ids)
    # A split of rows has nearly every user on both sides.
    train, holdout = train_holdout_split(kind(ids), holdout=0.4)
    assert len({*train} & {*holdout}) > 50


def test_users_are_held_out_independently_and_so_are_rows_without_one() -> None:
    ids = [*np.repeat(np.arange(100), 5).tolist(), *[None] * 100]
    of_users, of_rows = np.zeros(1500), np.zeros(1500)
    for k in range(1500):
        _, rows = train_holdout_split(np.arange(600), users=ids, holdout=0.2, random_state=k)
        of_users[k], of_rows[k] = (rows < 500).sum() / 5, (rows >= 500).sum()
    # Of 1,500 sizes the variance has a relative standard deviation of √(2/1500) = 3.7 %.
    for sizes in (of_users, of_rows):
        assert sizes.var() == pytest.approx(16.0, rel=0.19)
    correlation = np.mean((of_users - 20.0) * (of_rows - 20.0)) / 16.0
    assert abs(correlation) < 5.0 / np.sqrt(1500)
    with pytest.raises(InvalidValueError, match="users must have one id per record, 3 in all, got"):
        train_holdout_split([1, 2, 3], users=[1, 2])
