"""95 % intervals have the true value in 95 % of evaluations."""

import json
import math

import numpy as np
import pytest
from benchmarks.coverage import (
    EPSILONS,
    METRICS,
    POPULATIONS,
    SHARES,
    SIZES,
    Population,
    covered,
    estimates,
    noise_of,
    truth,
)
from benchmarks.recording import RESULTS
from numpy.typing import NDArray
from scipy.stats import binom
from tests.docs.pages import DOCS

import dither
from dither.evaluation.many_classes import ManyClasses
from dither.evaluation.numbers import Numbers

RECORD = json.loads((RESULTS / "coverage.json").read_text(encoding="utf-8"))["results"]


def limits(repetitions: int, chance: float = 1e-4) -> tuple[float, float]:
    """Return the shares that coverage of 93 to 97 % leaves with that chance on either side."""
    low = binom.ppf(chance, repetitions, 0.93) / repetitions
    return float(low), float(binom.isf(chance, repetitions, 0.97) / repetitions)


def test_intervals_cover_and_without_the_noise_they_do_not() -> None:
    repetitions, population, share = 200, POPULATIONS["calibrated"], 0.2
    low, high = limits(repetitions)
    true = truth(population, share, 500_000)
    found = estimates(population, share, 1000, 1.0, repetitions, seed=3)
    wrong = estimates(population, share, 1000, 1.0, repetitions, seed=3, noise_told=0.0)
    for name in METRICS:
        assert low <= covered(found[name], true[name]) <= high
        assert covered(wrong[name], true[name]) < low


def is_wide(name: str, metric: str) -> bool:
    """Return whether an interval may be too wide: noise hides the AUC, or bins its scores."""
    is_hidden = RECORD[name]["auc says nothing"] > 0.05 or name.startswith("narrow")
    return metric == "auc" and is_hidden


def test_the_record_has_all_cells_and_covers() -> None:
    assert len(RECORD) == len(POPULATIONS) * len(SHARES) * len(SIZES) * len(EPSILONS)
    low, high = limits(1000, chance=0.001)
    for name, found in RECORD.items():
        for metric, share in found["coverage"].items():
            assert low <= share, (name, metric)
            assert share <= high or is_wide(name, metric), (name, metric)


def test_the_guide_has_the_numbers_of_the_record() -> None:
    page = (DOCS / "guides/evaluation.md").read_text(encoding="utf-8").splitlines()
    for label, metric, wide in (
        ("accuracy", "accuracy", False),
        ("log loss", "log_loss", False),
        ("AUC", "auc", False),
        ("AUC, hidden by noise or by bins", "auc", True),
    ):
        rates = [
            100.0 * found["coverage"][metric]
            for name, found in RECORD.items()
            if is_wide(name, metric) is wide
        ]
        numbers = f"{min(rates):.1f} | {np.mean(rates):.1f} | {max(rates):.1f}"
        assert f"| {label} | {len(rates)} | {numbers} |" in page


@pytest.mark.evidence
@pytest.mark.parametrize("name", POPULATIONS)
@pytest.mark.parametrize("records", SIZES)
@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0])
def test_every_cell_covers(name: str, records: int, epsilon: float) -> None:
    low, _ = limits(500)
    for share in (0.05, 0.5):
        true = truth(POPULATIONS[name], share)
        found = estimates(POPULATIONS[name], share, records, epsilon, 500, seed=4)
        for metric in METRICS:
            assert covered(found[metric], true[metric]) >= low, (share, metric)


def test_ties_within_bins_do_not_bias_the_auc() -> None:
    """Two bins have nearly all scores, and half of the pairs are in the same one."""
    population = Population(1.0, slope=0.25)
    found = estimates(population, 0.5, 20_000, 1.0, 40, seed=5)["auc"]
    true = truth(population, 0.5, 1_000_000)["auc"]
    assert abs(np.median([each.value for each in found]) - true) < 0.01
    low = binom.ppf(1e-4, 40, 0.93) / 40
    assert covered(found, true) >= low


def of_numbers(
    records: int, correlation: float, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    signal = rng.standard_normal(records)
    rest = math.sqrt(1.0 - correlation**2) * rng.standard_normal(records)
    return correlation * signal, np.clip(correlation * signal + rest, -4.0, 4.0)


@pytest.mark.parametrize(("records", "correlation"), [(1000, 0.9), (10_000, 0.5)])
def test_intervals_of_regressors_cover(records: int, correlation: float) -> None:
    layout, rng = Numbers(-4.0, 4.0, 4.0), np.random.default_rng(6)
    made = dither.plan(
        epsilon=1.0, delta=1e-5, dataset_size=records, batch_size=records, steps=1, noise="uniform",
        clip_norm=layout.norm,
    )  # fmt: skip
    noise = float(made.noise_multipliers[0]) * layout.norm
    predictions, y = of_numbers(1_000_000, correlation, rng)
    error = np.minimum(np.abs(predictions - y), 4.0)
    true = {
        "mae": error.mean(),
        "mse": np.mean(error**2),
        "rmse": np.sqrt(np.mean(error**2)),
        "r2": 1.0 - np.mean(error**2) / y.var(),
    }
    found = []
    for _ in range(200):
        sums = layout.sums(*of_numbers(records, correlation, rng))
        found.append(layout.metrics(sums + noise * rng.standard_normal(sums.size), noise))
    low, high = limits(200)
    for name, value in true.items():
        assert low <= covered([getattr(each, name) for each in found], value) <= high, name


def test_intervals_of_many_classes_cover() -> None:
    rng, K = np.random.default_rng(7), 4
    layout, noise = ManyClasses(K, 20, 5.7), 1.1 * noise_of(2000, 1.0)
    weight = rng.standard_normal((3, K))

    def draw(records: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        p = np.exp(rng.standard_normal((records, 3)) @ weight)
        p /= p.sum(1, keepdims=True)
        y = (p.cumsum(1) < rng.random((records, 1))).sum(1)
        reported = p**1.3  # overconfident
        return reported / reported.sum(1, keepdims=True), y

    p, y = draw(400_000)
    share = np.bincount(y) / len(y)
    true = {
        "accuracy": np.mean(p.argmax(1) == y),
        "log_loss": np.minimum(-np.log(p[np.arange(len(y)), y]), layout.loss_bound).mean(),
        "base_log_loss": -np.sum(share * np.log(share)),
    }
    found = []
    for _ in range(200):
        sums = layout.sums(*draw(2000))
        found.append(layout.metrics(sums + noise * rng.standard_normal(sums.size), noise))
    low, high = limits(200)
    for name, value in true.items():
        assert low <= covered([getattr(each, name) for each in found], value) <= high, name
