"""Canaries for real training."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dither
from dither.audit import mislabelled, one_run, out_of_distribution


def test_mislabelled_records_have_any_other_label() -> None:
    targets = torch.arange(3000) % 3
    made = mislabelled(torch.zeros(3000, 2), targets, classes=3, seed=1)
    shift = (made.targets - targets) % 3
    counts = torch.bincount(shift, minlength=3)
    assert counts[0] == 0
    assert abs(int(counts[1]) - 1500) < 5 * 27.4
    assert abs(int(made.included.sum()) - 1500) < 5 * 27.4


def test_noise_is_noise_and_a_seed_repeats_it() -> None:
    made = out_of_distribution(500, (3, 4), classes=5, seed=2)
    again = out_of_distribution(500, (3, 4), classes=5, seed=2)
    assert torch.equal(made.inputs, again.inputs)
    assert torch.equal(made.targets, again.targets)
    assert np.array_equal(made.included, again.included)
    assert not torch.equal(made.inputs, out_of_distribution(500, (3, 4), classes=5).inputs)
    assert abs(float(made.inputs.mean())) < 5.0 / 6000**0.5
    assert set(made.targets.tolist()) == {0, 1, 2, 3, 4}


def test_included_canaries_are_mixed_in() -> None:
    made = out_of_distribution(50, (4,), classes=2, seed=3)
    x, y = made.mixed_into(torch.zeros(10, 4), torch.zeros(10, dtype=torch.int64))
    kept = torch.from_numpy(made.included)
    assert torch.equal(x[10:], made.inputs[kept])
    assert torch.equal(y[10:], made.targets[kept])
    assert len(x) == 10 + int(kept.sum())


def test_training_without_privacy_is_found_out_and_private_training_is_not() -> None:
    digits = dither.data.load("digits").train
    made = out_of_distribution(200, (1, 8, 8), classes=10, seed=4)
    data = made.mixed_into(digits.inputs, digits.targets)
    size: dict[str, Any] = {"dataset_size": len(digits), "batch_size": 200}
    claim = dither.plan(epsilon=1.0, delta=1e-5, steps=40, **size)
    plain = dither.Plan.unsafe_without_noise(steps=80, **size)
    for plan, optimizer in ((claim, torch.optim.SGD), (plain, torch.optim.Adam)):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        fast = optimizer(model.parameters(), lr=0.01 if plan is plain else 1.0)
        trained = dither.train(model, data, plan, optimizer=fast, progress=False, seed=6)
        found = one_run(made.scores(trained.model), made.included, claimed=claim.bound)
        assert found.is_violated == (plan is plain), found


def test_bad_input() -> None:
    x, y = torch.zeros(4, 2), torch.tensor([0, 1, 2, 1])
    for arguments, words in (
        ((x, y, 1), "classes must be at least 2, got 1"),
        ((x, y, 2), "targets must be integers from 0 to 1"),
        ((x, y[:3], 3), "targets must have one label per record"),
        ((x, y.float(), 3), "targets must be integers"),
    ):
        with pytest.raises(ValueError, match=words):
            mislabelled(arguments[0], arguments[1], classes=arguments[2])
    with pytest.raises(ValueError, match="count must be"):
        out_of_distribution(0, (2,), classes=3)
    made = out_of_distribution(5, (2,), classes=3)
    labels = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="inputs must be like the canaries"):
        made.mixed_into(torch.zeros(3, 4), labels)
    for targets in (labels[:2], labels.float(), torch.zeros(3, 2, dtype=torch.int64)):
        with pytest.raises(ValueError, match="targets must have one label per record"):
            made.mixed_into(torch.zeros(3, 2), targets)
    for wrong in (lambda: made.mixed_into(np.zeros((3, 2)), labels),  # type: ignore[arg-type]
                  lambda: made.scores(None),  # type: ignore[arg-type]
                  lambda: out_of_distribution(5, 2, classes=3),  # type: ignore[arg-type]
                  lambda: mislabelled([1.0], y, classes=3)):  # type: ignore[arg-type]  # fmt: skip
        with pytest.raises(TypeError, match="must be a (Tensor|Module|tuple), got"):
            wrong()
    with pytest.raises(ValueError, match="model must give one number per class"):
        made.scores(nn.Linear(2, 1))
