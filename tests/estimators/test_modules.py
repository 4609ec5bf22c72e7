"""Networks and modules of one's own as estimators."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import log_loss, roc_auc_score
from torch import nn

from dither.estimators import (
    PrivacyLeakWarning,
    PrivateClassifier,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
    PrivateMLPRegressor,
    PrivateRegressor,
    PrivateSearchCV,
)
from dither.schedules import Linear
from dither.training.recipe import recipe

Table = tuple[Any, Any]


def test_a_network_learns_classes(digits: Table) -> None:
    X, y = digits
    model = PrivateMLPClassifier(
        (32,), epsilon=3.0, feature_bounds=(0, 16), classes=range(10), steps=100, random_state=0
    ).fit(X[:1400], y[:1400])
    assert model.score(X[1400:], y[1400:]) > 0.75
    assert model.privacy_.epsilon <= 3.0
    assert model.privacy_.is_upper_bound
    assert np.allclose(model.predict_proba(X).sum(axis=1), 1.0)
    assert model.decision_function(X).shape == (len(X), 10)
    again = pickle.loads(pickle.dumps(model))  # noqa: S301 - our own bytes
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))


def curved_and_straight(records: int) -> tuple[Any, Any, Any]:
    """Return records, classes of which a tenth is positive by straight effects, and by curved."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(records, 8)).clip(-4, 4)
    straight = X @ np.array([1.0, -1.0, 0.5, -0.5, 0.5, 0.0, 0.0, 0.0]) - 3.0
    curved = 2.0 * np.abs(X[:, 0]) - X[:, 1] ** 2 + X[:, 2] - 2.0
    chances = [1.0 / (1.0 + np.exp(-scores)) for scores in (straight, curved)]
    return X, *(rng.random(records) < chance for chance in chances)


def test_a_network_is_not_behind_a_linear_model_and_ahead_where_effects_are_curved() -> None:
    X, straight, curved = curved_and_straight(14_000)
    given: dict[str, Any] = {
        "epsilon": 3.0, "feature_bounds": (-4, 4), "classes": [False, True], "random_state": 0
    }  # fmt: skip
    found = {}
    for y in (straight, curved):
        for model in (PrivateLogisticRegression(**given), PrivateMLPClassifier(**given)):
            p = model.fit(X[:10_000], y[:10_000]).predict_proba(X[10_000:])[:, 1]
            is_curved, is_network = y is curved, isinstance(model, PrivateMLPClassifier)
            measured = roc_auc_score(y[10_000:], p), log_loss(y[10_000:], p)
            found[is_curved, is_network] = measured
    base = log_loss(straight[10_000:], np.full(4000, straight.mean()))
    assert found[False, True][0] >= found[False, False][0] - 0.01
    assert found[False, True][1] <= 1.03 * found[False, False][1] < 0.9 * base
    assert found[True, True][0] >= found[True, False][0] + 0.05
    # The recipe for networks in general clips most gradients: worse than a constant.
    given |= {"steps": 300, "batch_size": 600}
    other = PrivateClassifier(small_network, **given).fit(X[:10_000], straight[:10_000])
    assert log_loss(straight[10_000:], other.predict_proba(X[10_000:])[:, 1]) > base


def small_network(features: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 64), nn.Tanh(), nn.Linear(64, outputs))


def test_networks_for_tables_have_settings_of_their_own() -> None:
    given: dict[str, Any] = {"feature_bounds": (-1, 1), "dataset_size": 20_000}
    plan = PrivateMLPClassifier(classes=[0, 1], **given)._plan(9, (5,), 2)
    # The square root of n times 2,000 record-gradients.
    assert (plan.steps, plan.batch_size, plan.clipping) == (300, 943, "flat")
    # Of a network that is near 0 at first: the norm of (1, x, h) for uniform x, and small h.
    assert 1.5 * (1.0 + 5.0 / 3.0) ** 0.5 < plan.clip_norm < 1.5 * (1.0 + 5.0 / 3.0 + 16.0) ** 0.5
    short = PrivateMLPClassifier(classes=[0, 1], steps=20, clip_norm=0.3, **given)
    plan = short._plan(9, (5,), 2)
    assert (plan.steps, plan.batch_size, plan.clip_norm) == (20, 14_142, 0.3)
    plan = PrivateMLPRegressor(target_bounds=(0, 1), compute=64_000, **given)._plan(9, (5,), 1)
    assert plan.steps * plan.batch_size == 64_000
    numbers = PrivateMLPRegressor(target_bounds=(0, 1), feature_bounds=(-1, 1))
    few, many = (numbers._plan(n, (5,), 1) for n in (500, 10**6))
    assert few.batch_size == 149
    first = [float(np.asarray(plan.stepsizes)[0]) for plan in (few, many)]
    assert first[0] < first[1] == 1.0


def test_a_network_begins_near_zero_and_trains_every_layer(lengths: Table) -> None:
    X, y = lengths
    model = PrivateMLPRegressor(
        (7, 5), feature_bounds=(-1, 1), target_bounds=(-1, 1), steps=3, random_state=0
    )
    fresh = model._new_module((5,), 1, 0)
    with torch.no_grad():
        assert 0.0 < float(fresh(torch.randn(20, 5)).abs().max()) < 0.3
    trained = dict(model.fit(X, y).module_.named_parameters())
    assert [*trained] == [name for name, _ in fresh.named_parameters()]
    for name, before in fresh.named_parameters():
        assert not torch.equal(trained[name].float(), before), name


def test_the_recipe_chooses_and_what_is_given_stays(lengths: Table) -> None:
    X, y = lengths
    given: dict[str, Any] = {"batch_size": 200, "steps": 7, "stepsizes": "linear:start=1,end=0.5"}
    model = PrivateRegressor(nn.Linear, target_bounds=(-1, 1), **given).fit(X, y)
    assert model.recipe_ is not None
    same = recipe(
        nn.Linear(5, 1), inputs=torch.zeros(1, 5), dataset_size=len(X), epsilon=1.0,
        batch_size=200, steps=7, stepsizes=Linear(1.0, 0.5),
    )  # fmt: skip
    # The clip norm follows from the weights, which are random.
    assert replace(model.recipe_, clip_norm=same.clip_norm) == same
    assert model.plan_ == model.recipe_.plan()
    statement = " ".join(model.privacy_statement().split())
    assert "chosen by dither's recipe" in statement
    assert f"n = {len(X)}, counted in the data" in statement


def test_a_share_of_the_budget_chooses_the_learning_rate(lengths: Table) -> None:
    X, y = lengths
    given: dict[str, Any] = {"epsilon": 2.0, "steps": 6, "batch_size": 100, "tune": 0.5}
    model = PrivateClassifier(nn.Linear, classes=(0, 1), **given).fit(X, y > 0)
    assert model.plan_.search is not None
    assert model.privacy_.epsilon <= 2.0
    assert "steps chose the learning rate, and are included in ε" in " ".join(
        model.privacy_statement().split()
    )
    with pytest.raises(ValueError, match="'tune' parameter"):
        model.set_params(tune=0.6).fit(X, y)


def test_compute_is_what_a_fit_may_cost(lengths: Table) -> None:
    model = PrivateRegressor(nn.Linear, target_bounds=(-1, 1), compute=640).fit(*lengths)
    assert model.plan_.steps * model.plan_.batch_size == 640
    with pytest.raises(ValueError, match='compute must be .* "2 min" or "1 h", got \'soon\''):
        model.set_params(compute="soon").fit(*lengths)


def test_a_clip_norm_is_not_automatic(lengths: Table) -> None:
    model = PrivateRegressor(nn.Linear, target_bounds=(-1, 1), steps=3, clip_norm=0.2)
    assert model.fit(*lengths).plan_.clipping == "flat"
    assert model.plan_.clip_norm == 0.2


class Keeps(nn.Linear):
    """A module that stores its inputs in an attribute."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        self.seen = inputs[0].detach()
        return super().forward(*inputs)


@pytest.mark.parametrize(
    "model",
    [
        PrivateLogisticRegression(feature_bounds=(0, 1), classes=[0, 1], steps=20),
        PrivateMLPClassifier((4,), feature_bounds=(0, 1), classes=[0, 1], steps=5),
        PrivateClassifier(Keeps, classes=[0, 1], steps=5),
    ],
)
def test_a_saved_estimator_holds_no_records(model: Any) -> None:
    X = np.random.default_rng(0).uniform(0.1, 0.9, (200, 3))
    fitted = clone(model).fit(X, X[:, 0] > 0.5)
    saved = pickle.dumps(fitted)
    scaled = fitted._scaling.scale(X)
    rows = [row.tobytes() for table in (X, scaled) for row in table]
    assert not any(row in saved for row in rows)
    assert any(row in pickle.dumps((saved, X)) for row in rows)


def test_a_network_learns_numbers(lengths: Table) -> None:
    X, y = lengths
    model = PrivateMLPRegressor(
        epsilon=3.0, feature_bounds=(-1, 1), target_bounds=(-1, 1), steps=100, random_state=0
    ).fit(X, y * 1.5)
    assert model.score(X, y * 1.5) > 0.5


def test_two_classes_have_one_score(digits: Table) -> None:
    X, y = digits
    model = PrivateMLPClassifier(
        epsilon=3.0, feature_bounds=(0, 16), classes=["no", "yes"], steps=20, random_state=1
    ).fit(X, np.where(y > 4, "yes", "no"))
    assert np.array_equal(model.decision_function(X) > 0, model.predict(X) == "yes")


def test_a_module_without_bounds_gets_unscaled_images(digits: Table) -> None:
    X, y = digits
    images = X.reshape(-1, 1, 8, 8)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 10))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    model = PrivateClassifier(module, classes=range(10), steps=5, random_state=0).fit(images, y)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert not torch.equal(model.module_.state_dict()["0.weight"], before["0.weight"])
    with torch.no_grad():
        logits = model.module_(torch.from_numpy(images[:50]).float())
    assert np.array_equal(model.predict(images[:50]), logits.argmax(dim=1).numpy())
    assert model.privacy_.is_upper_bound


def test_a_module_from_a_function_of_the_sizes(lengths: Table) -> None:
    X, y = lengths
    sizes: list[Any] = []

    def build(features: int, outputs: int) -> nn.Module:
        sizes.append((features, outputs))
        return nn.Linear(features, outputs)

    one, two = (
        PrivateRegressor(build, target_bounds=(-1, 1), steps=5, random_state=7).fit(X, y)
        for _ in "ab"
    )
    assert sizes == [(5, 1), (5, 1)]
    assert np.array_equal(one.predict(X), two.predict(X))


def test_refusals(lengths: Table, digits: Table) -> None:
    X, y = lengths
    with pytest.raises(TypeError, match="a function that returns int"):
        PrivateRegressor(lambda features, outputs: 3, target_bounds=(0, 1)).fit(X, y)
    with pytest.raises(ValueError, match="The 'module' parameter of PrivateRegressor"):
        PrivateRegressor("linear", target_bounds=(0, 1)).fit(X, y)
    with pytest.raises(ValueError, match="hidden_layer_sizes"):
        PrivateMLPRegressor((8, 0), target_bounds=(0, 1), feature_bounds=(-1, 1)).fit(X, y)
    with pytest.warns(PrivacyLeakWarning, match="the minima and maxima of the features"):
        PrivateMLPClassifier(classes=range(10), steps=2).fit(*digits)


class Hoarder(nn.Module):
    """Keeps what it is given, outside its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 1)
        self.last: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x
        given: torch.Tensor = self.layer(x)
        return given


def test_records_do_not_stay_in_a_module(lengths: Table) -> None:
    model = PrivateRegressor(Hoarder(), target_bounds=(-1, 1), steps=5).fit(*lengths)
    assert model.module_.last is None
    search = PrivateSearchCV(
        PrivateRegressor(Hoarder(), target_bounds=(-1, 1), steps=5),
        {"clip_norm": [0.1]},
        epsilon=3.0,
    ).fit(*lengths)
    assert search.best_estimator_.module_.last is None


def test_a_search_over_modules_with_random_weights(lengths: Table) -> None:
    model = PrivateRegressor(nn.Linear, target_bounds=(-1, 1), noise="uniform")
    search = PrivateSearchCV(model, {"steps": [3, 5]}, epsilon=3.0, trials=4).fit(*lengths)
    assert search.best_params_["steps"] == search.best_estimator_.plan_.steps


def test_a_function_that_returns_the_same_module_again(lengths: Table) -> None:
    X, y = lengths
    only = nn.Linear(5, 1)
    model = PrivateRegressor(lambda features, outputs: only, target_bounds=(-1, 1), steps=5)
    start = only.weight.detach().clone()
    first = model.set_params(random_state=0).fit(X, y).predict(X)
    assert torch.equal(only.weight, start)
    assert np.array_equal(model.fit(X, y).predict(X), first)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(5, 1), "module must return 2 numbers per record, got \\(2, 1\\)"),
        (nn.Linear(5, 4), "module must return 2 numbers per record"),
        (nn.Linear(4, 2), "module must take records of shape \\(5,\\), got an error"),
        (nn.Sequential(nn.Linear(5, 2), nn.Unflatten(1, (2, 1))), "module must return 2 numbers"),
    ],
)
def test_modules_that_do_not_fit_cost_nothing(
    module: nn.Module, message: str, lengths: Table, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.sqlite"
    model = PrivateClassifier(module, classes=[0, 1], steps=5, ledger=path)
    with pytest.raises(ValueError, match=message):
        model.fit(lengths[0], lengths[1] > 0)
    assert not path.exists()


def test_a_module_in_double_precision(lengths: Table) -> None:
    X, y = lengths
    model = PrivateClassifier(nn.Linear(5, 2).double(), classes=[0, 1], steps=20, random_state=0)
    assert model.fit(X, (y > 0).astype(int)).predict_proba(X).shape == (len(X), 2)
