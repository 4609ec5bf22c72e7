"""Scattering features: of the right length, each image by itself, fresh when images change."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from experiments.reproduction import features as module
from experiments.reproduction.features import FeatureSet, features, prepare
from experiments.reproduction.head import HeadSetting, head_features
from rich.progress import Progress

from dither.data import Examples, Split

WANTED = FeatureSet("toys", images=12, dimension=7, length=3.0)


def toys(seed: int) -> Split:
    def some(count: int) -> Examples:
        random = torch.Generator().manual_seed(seed + count)
        images = torch.rand(count, 1, 16, 16, generator=random)
        return Examples(images, torch.arange(count) % 3, ["a", "b", "c"])

    return Split(some(20), some(6))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DITHER_CACHE", str(tmp_path))
    features.cache_clear()
    module._images.cache_clear()
    return tmp_path


def prepared(wanted: FeatureSet, split: Split, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "load", lambda name: split)
    features.cache_clear()
    module._images.cache_clear()
    with Progress(disable=True) as bar:
        prepare(wanted, bar)
    return features(wanted)


def test_rows_have_the_length_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = prepared(WANTED, toys(0), monkeypatch)
    assert found.train.shape == (12, 7)
    assert found.test.shape == (2, 7)
    assert torch.allclose(found.train.norm(dim=1), torch.tensor(3.0))
    full = prepared(FeatureSet("toys"), toys(0), monkeypatch)
    assert full.train.shape == (20, 81 * 4 * 4)
    assert torch.allclose(full.test.norm(dim=1), torch.tensor(1.0))


def test_a_record_s_features_do_not_depend_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    split = toys(0)
    found = prepared(FeatureSet("toys"), split, monkeypatch)
    changed = split.train.inputs.clone()
    changed[1:] = 0.0
    other = Split(Examples(changed, split.train.targets, split.train.classes), split.test)
    again = prepared(FeatureSet("toys"), other, monkeypatch)
    assert torch.equal(again.train[0], found.train[0])
    assert not torch.equal(again.train[1], found.train[1])


def test_the_cache_is_used_while_the_images_are_the_same(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = prepared(WANTED, toys(0), monkeypatch)
    files = sorted(place.rglob("*.npy"))
    assert files
    times = [file.stat().st_mtime_ns for file in files]
    again = prepared(WANTED, toys(0), monkeypatch)
    assert [file.stat().st_mtime_ns for file in files] == times
    assert torch.equal(again.train, found.train)
    others = prepared(WANTED, toys(5), monkeypatch)
    assert not torch.equal(others.train, found.train)
    assert not list(place.rglob("*.unfinished"))


def test_projected_angles_are_about_those_of_all_features(monkeypatch: pytest.MonkeyPatch) -> None:
    full = prepared(FeatureSet("toys"), toys(0), monkeypatch)
    wide = prepared(FeatureSet("toys", dimension=4000), toys(0), monkeypatch)
    error = wide.train @ wide.train.T - full.train @ full.train.T
    # A product of random projections to k columns is off by at most about √(2/k).
    assert np.abs(error.numpy()).max() < 5.0 * np.sqrt(2.0 / 4000)


def at_two_scales(channels: np.ndarray) -> np.ndarray:
    """Cells smoothed by 1, 2, 1 and means of 2 × 2 cells, in 27 groups of variance 1."""
    n, c, h, w = channels.shape
    coarse = channels.reshape(n, c, h // 2, 2, w // 2, 2).mean(axis=(3, 5))
    groups = [each.reshape(n, 27, -1) for each in (channels, coarse)]
    normal = [
        ((g - g.mean(2, keepdims=True)) / np.sqrt(g.var(2, keepdims=True) + 1e-5)).reshape(n, -1)
        for g in groups
    ]
    padded = np.pad(
        normal[0].reshape(channels.shape), ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge"
    )
    smooth = sum(
        weight * other * padded[:, :, i : i + h, j : j + w]
        for i, weight in enumerate((0.25, 0.5, 0.25))
        for j, other in enumerate((0.25, 0.5, 0.25))
    )
    return np.concatenate([np.asarray(smooth).reshape(n, -1), 2.0 * normal[1]], axis=1)


def test_products_of_cosines_are_about_the_kernel(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = FeatureSet("toys", dimension=20_000, frequency=1.5, mirrored=True)
    cosines = prepared(wanted, toys(0), monkeypatch).train
    assert torch.allclose(cosines.norm(dim=1), torch.tensor(1.0))
    files = [next(place.rglob(f"train-{kind}.npy")) for kind in ("all", "mirrored")]
    both = sum(at_two_scales(np.load(file).astype(float)) for file in files)
    rows = torch.nn.functional.normalize(torch.as_tensor(both), dim=1).float()
    distances = torch.cdist(rows, rows)
    # A mean of k products of two cosines, each within ±2: standard deviation at most √(2/k).
    allowed = 5.0 * np.sqrt(2.0 / 20_000)
    for frequency, agrees in ((1.5, True), (1.0, False), (2.0, False)):
        kernel = torch.exp(-((frequency * distances) ** 2) / 2.0)
        assert bool((cosines @ cosines.T - kernel).abs().max() < allowed) == agrees


def test_the_head_has_a_thousand_projections_of_about_unit_size() -> None:
    wanted = head_features(HeadSetting())
    assert wanted == FeatureSet("cifar10", dimension=1000, length=np.sqrt(1000.0))
    assert wanted.frequency is None


def test_a_damaged_file_is_computed_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = prepared(WANTED, toys(0), monkeypatch)
    for file in sorted(place.rglob("*.npy")):
        file.write_bytes(file.read_bytes()[:-1])
        again = prepared(WANTED, toys(0), monkeypatch)
        assert torch.equal(again.train, found.train)
        assert torch.equal(again.train_targets, found.train_targets)
        assert torch.equal(again.test, found.test)
