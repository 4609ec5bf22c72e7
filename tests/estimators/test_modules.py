"""Networks and modules of one's own as estimators."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dither.estimators import (
    PrivacyLeakWarning,
    PrivateClassifier,
    PrivateMLPClassifier,
    PrivateMLPRegressor,
    PrivateRegressor,
)

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


def test_images_come_to_a_module_as_they_are(digits: Table) -> None:
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
    with pytest.warns(PrivacyLeakWarning, match="the least and largest values of the features"):
        PrivateMLPClassifier(classes=range(10), steps=2).fit(*digits)
