"""Generalized additive models: what they learn, their features, and their noise bands."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import roc_auc_score
from tests.estimators.tables import COSTS, SCHEMA, patients

from dither.estimators import (
    PrivacyLeakWarning,
    PrivateGAMClassifier,
    PrivateGAMRegressor,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateSearchCV,
    Shape,
)
from dither.schedules import AdaGradNorm
from dither.schema import Category, Ignored, Number, Schema, Text, YesNo
from dither.validate import InvalidTypeError, InvalidValueError

Array = NDArray[Any]
PUBLIC: dict[str, Any] = {"feature_bounds": (-1, 1), "random_state": 0}
CLASSES: dict[str, Any] = {**PUBLIC, "classes": [False, True]}
CURVES: list[Callable[[Array], Array]] = [
    lambda x: 4.0 * x**2,
    lambda x: 2.0 * np.cos(np.pi * x),
    lambda x: x,
    np.zeros_like,
]
RNG = np.random.default_rng(5)
X, NEW = RNG.uniform(-1, 1, (4000, 4)), RNG.uniform(-1, 1, (4000, 4))


def scores(x: Array) -> Array:
    return np.asarray(np.sum([f(x[:, j]) for j, f in enumerate(CURVES)], axis=0) - 1.3)


def drawn(logits: Array) -> Array:
    return np.asarray(logits + RNG.logistic(size=len(logits)) > 0.0)


def auc(model: Any, x: Array, y: Array) -> float:
    return float(roc_auc_score(y, model.predict_proba(x)[:, 1]))


def test_curved_effects_are_learnt_as_well_as_by_boosting_without_privacy() -> None:
    y, new = drawn(scores(X)), drawn(scores(NEW))
    boosted = auc(HistGradientBoostingClassifier(max_iter=30).fit(X, y), NEW, new)
    additive = auc(PrivateGAMClassifier(epsilon=1.0, **CLASSES).fit(X, y), NEW, new)
    linear = auc(PrivateLogisticRegression(epsilon=1.0, **CLASSES).fit(X, y), NEW, new)
    assert additive > boosted - 0.01  # its own curves and no interactions: measured above it
    assert additive > 0.84
    assert linear < 0.65


def test_curved_numbers_are_learnt_as_well_as_by_boosting_without_privacy() -> None:
    y, new = (scores(x) / 8.0 + 0.05 * RNG.normal(size=4000) for x in (X, NEW))
    bounds = {**PUBLIC, "target_bounds": (-1, 1)}
    boosted = HistGradientBoostingRegressor(max_iter=60).fit(X, y).score(NEW, new)
    additive = PrivateGAMRegressor(epsilon=1.0, **bounds).fit(X, y).score(NEW, new)
    linear = PrivateLinearRegression(epsilon=1.0, **bounds).fit(X, y).score(NEW, new)
    assert additive > boosted - 0.03
    assert additive > 0.9
    assert linear < 0.2


def test_a_pair_learns_an_interaction_and_others_do_not() -> None:
    y, new = (drawn(10.0 * x[:, 0] * x[:, 1] + 2.0 * x[:, 2]) for x in (X, NEW))
    model = PrivateGAMClassifier(epsilon=3.0, **CLASSES)
    found = {
        name: auc(clone(model).set_params(pairs=pairs).fit(X, y), NEW, new)
        for name, pairs in {"none": [], "right": [("x0", "x1")], "wrong": [("x0", "x2")]}.items()
    }
    assert found["right"] > 0.85
    assert max(found["none"], found["wrong"]) < 0.7


def test_pairs_are_of_any_kind_and_by_name() -> None:
    table = patients(500)
    pairs = [("age", "sex"), ("smoker", "note"), ("sex", "dose")]
    model = PrivateGAMClassifier(schema=SCHEMA, pairs=np.array(pairs), bins=6, steps=5).fit(table)
    assert model.coef_.shape == (1, (2 + 1 + 4 + 1 + 8) + (8 + 7) + 6 * 4 + 1 * 8 + 4 * 5)
    assert model._encode(table).shape[1] == model.coef_.size
    for bad in (["age"], [("age", "age")], [("age", "cost")], [("age", "sex", "dose")],
                [("age", "patient")]):  # fmt: skip
        wrong = clone(model).set_params(pairs=bad)
        with pytest.raises(InvalidValueError, match="pairs must be pairs of two columns among age"):
            wrong.fit(table)


KINDS = st.one_of(
    st.builds(
        lambda missing, knots, scale: Number((-5.0, 20.0), missing, knots, scale),
        st.sampled_from([None, -5.0, 3.0]),
        st.sampled_from([None, (-5.0, 0.0, 1.0), (2.0, 20.0)]),
        st.sampled_from(["linear", "log"]),
    ),
    st.just(Category(("a", "b"))),
    st.just(YesNo()),
    st.builds(Text, st.sampled_from([2, 8])),
)
CELLS = st.one_of(
    st.none(), st.floats(), st.sampled_from(["a", "b", "yes", "no", "", "a b a c"]),
    st.floats(-6, 21, width=16), st.integers(-6, 21),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    kinds=st.lists(KINDS, min_size=2, max_size=5), cells=st.data(), bins=st.integers(1, 20),
    count=st.integers(0, 3),
)  # fmt: skip
def test_no_row_is_longer_than_the_public_norm(
    kinds: list[Any], cells: Any, bins: int, count: int
) -> None:
    names = [f"c{at}" for at in range(len(kinds))]
    table = {name: cells.draw(st.lists(CELLS, min_size=4, max_size=4)) for name in names}
    pair = st.lists(st.sampled_from(names), min_size=2, max_size=2, unique=True).map(tuple)
    pairs = cells.draw(st.lists(pair, min_size=count, max_size=count))
    model = PrivateGAMClassifier(bins=bins, pairs=pairs)
    model.schema_ = Schema({**dict(zip(names, kinds, strict=True)), "none": Ignored()})
    model._choose_features(4)
    norms = np.linalg.norm(model._encode(table).astype(np.float64), axis=1)
    assert norms.max() <= model._encoded_norm() * (1.0 + 1e-6)
    if not any(isinstance(kind, Text | YesNo) for kind in kinds):
        longest = {
            name: ["a" if isinstance(kind, Category) else None if kind.missing is not None else 20]
            for name, kind in zip(names, kinds, strict=True)
        }
        assert np.linalg.norm(model._encode(longest)) == pytest.approx(model._encoded_norm())


def test_shapes_recover_curves_within_their_bands() -> None:
    model = PrivateGAMClassifier(epsilon=1.0, **CLASSES).fit(X, drawn(scores(X)))
    for curve, shape in zip(CURVES, model.shapes(), strict=True):
        truth = curve(shape.values) - curve(shape.values).mean()
        assert shape.effects[:, 0].mean() == pytest.approx(0.0, abs=1e-9)
        # 95 % of the noise, which most bands overstate, and an error of sampling about half of it.
        is_inside = np.abs(shape.effects[:, 0] - truth) < 2.0 * shape.noise
        assert is_inside.mean() > 0.85
        if np.ptp(truth) >= 4.0:
            assert (np.abs(truth) < 2.0 * shape.noise).mean() < 0.6  # a flat curve is not inside
            assert np.corrcoef(truth, shape.effects[:, 0])[0, 1] > 0.9


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (PrivateGAMClassifier(classes=[False, True]), RNG.random(1000) < 0.5),
        (PrivateGAMClassifier(classes=range(3)), RNG.integers(0, 3, 1000)),
        (PrivateGAMRegressor(target_bounds=(0, 1000)), RNG.uniform(0, 1000, 1000)),
    ],
)
def test_bands_are_what_the_noise_is_where_it_dominates(model: Any, y: Array) -> None:
    fits = [
        clone(model)
        .set_params(epsilon=0.1, feature_bounds=(-1, 1), bins=6, steps=40, random_state=seed)
        .fit(X[:1000, :3], y)
        .shapes()
        for seed in range(24)
    ]
    effects = np.array([[shape.effects[:, 0] for shape in shapes] for shapes in fits])
    noise = np.array([[shape.noise for shape in shapes] for shapes in fits])
    # 23 fits · 24 weights: the ratio is known to 1/√(2·552) = 3 %.
    ratio = np.sqrt(effects.var(axis=0, ddof=1).mean() / (noise**2).mean())
    assert 1 / 3 < ratio < 1.0
    assert not 1 / 3 < 2.0 * ratio < 1.0  # of half the band


def test_shapes_have_every_kind_of_column() -> None:
    table = patients(3000)
    table["smoker"] = np.where(table["ill"] == "yes", "yes", "no")  # a strong effect
    model = PrivateGAMClassifier(schema=SCHEMA, epsilon=3.0, random_state=0).fit(table)
    age, dose, sex, smoker = model.shapes()
    assert np.isnan(age.values[-1])
    assert age.values[[0, -2]].tolist() == [0.0, 100.0]
    assert {*model.schema_.columns["age"].grid(16)} <= {*age.values}
    assert (dose.scale, age.scale, dose.is_number) == ("log", "linear", True)
    assert np.median(dose.values) < 100.0  # points are dense where the spline's knots are
    assert sex.values.tolist() == ["f", "m", "(other)", "(missing)"]
    assert smoker.values.tolist() == ["no", "yes"]
    assert smoker.effects[1, 0] > 2.0 * smoker.noise[1] > 0.0
    assert smoker.effects[0, 0] == -smoker.effects[1, 0]
    assert all(isinstance(each, Shape) and each.effects.shape[1] == 1 for each in (age, sex))
    # An effect is what the score changes by.
    row = {"age": [20.0], "dose": [3.0], "sex": ["f"], "smoker": ["no"], "note": ["pain"]}
    changed = model.decision_function({**row, "sex": ["m"]}) - model.decision_function(row)
    assert changed == pytest.approx(sex.effects[1] - sex.effects[0], rel=1e-5)
    curve = np.interp([20.0, 73.0], age.values[:-1], age.effects[:-1, 0])
    changed = model.decision_function({**row, "age": [73.0]}) - model.decision_function(row)
    assert changed == pytest.approx(np.diff(curve), rel=1e-5)
    changed = model.decision_function({**row, "age": [None]}) - model.decision_function(row)
    assert changed == pytest.approx(age.effects[-1] - curve[0], rel=1e-5)


def test_plots_are_figures_with_the_columns_and_classes() -> None:
    table = patients(500)
    table["ill"] = np.random.default_rng(0).choice(["a", "b", "c"], 500)
    fields = {**SCHEMA.to_dict(), "target": {"column": "ill", "classes": ["a", "b", "c"]}}
    model = PrivateGAMClassifier(schema=fields, steps=5).fit(table)
    figure = model.plot_shapes()
    assert isinstance(figure, Figure)
    assert [axis.get_title() for axis in figure.axes] == ["age", "dose", "smoker", "sex"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]
    age, _, _, sex = figure.axes
    assert [tick.get_text() for tick in sex.get_yticklabels()] == ["f", "m", "(other)", "(missing)"]
    assert len(sex.patches) == 3 * 4
    assert len(age.collections) >= 3
    shape = model.shapes()[0]
    assert shape.effects.shape == (len(shape.values), 3)
    assert np.allclose(shape.effects.sum(axis=1), 0.0)
    (alone,) = model.plot_shapes(["sex"]).axes
    assert alone.get_title() == "sex"
    for bad in (["sex", "weight"], ["note"], [], "sex"):
        with pytest.raises(InvalidValueError, match="columns must be a list of columns among age"):
            model.plot_shapes(bad)
    regression = PrivateGAMRegressor(schema=COSTS, steps=5).fit(patients(500)).plot_shapes()
    assert regression.axes[0].get_ylabel() == "effect on cost"


def test_bands_of_reactive_step_sizes_are_unknown() -> None:
    model = PrivateGAMClassifier(
        stepsizes=AdaGradNorm(1.0, 1e-3), steps=4, noise="uniform", batch_size=100, **CLASSES
    )
    model.fit(X[:500], X[:500, 0] > 0)
    assert np.isnan(model.shapes()[0].noise).all()
    assert isinstance(model.plot_shapes(), Figure)


def test_numbers_without_a_schema_have_bounds_and_not_a_norm() -> None:
    y = X[:, 0] > 0
    with pytest.raises(InvalidTypeError, match="feature_norm must be None for a GAM"):
        PrivateGAMClassifier(feature_norm=1.0, classes=[False, True]).fit(X, y)
    with pytest.warns(PrivacyLeakWarning, match="minima and maxima of the features were derived"):
        derived = PrivateGAMClassifier(classes=[False, True], steps=5).fit(X, y)
    assert not derived.privacy_.is_upper_bound
    constant = np.hstack([X[:, :1], np.full((4000, 1), 1e9)])
    with pytest.warns(PrivacyLeakWarning):
        assert PrivateGAMClassifier(steps=5).fit(constant, y).predict(constant).shape == (4000,)


def test_a_search_over_bins_is_accounted() -> None:
    model = PrivateGAMClassifier(steps=10, noise="uniform", **CLASSES)
    search = PrivateSearchCV(model, {"bins": [2, 8], "pairs": [[], [("x0", "x1")]]}, epsilon=3.0)
    found = search.fit(X[:1000], drawn(scores(X[:1000])))
    assert found.privacy_.epsilon <= 3.0
    assert found.best_estimator_.bins == found.best_params_["bins"]
    with pytest.raises(InvalidValueError, match="param_grid must have parameters among"):
        PrivateSearchCV(model, {"schema": [SCHEMA]}).fit(X, X[:, 0] > 0)
