"""Whether the 95 % intervals of a paid evaluation cover the truth in 95 % of evaluations.

Models of known quality are evaluated on many holdouts that are drawn from one population: logits
are normal, and a class has the probability that its logit says, but for the slope and shift by
which a model that is not calibrated reports it. Written to benchmarks/results/coverage.json by
``python -m benchmarks.coverage``; the noise is NumPy's, as nothing here is private.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import track
from scipy.special import expit
from scipy.stats import rankdata

import dither
from benchmarks.recording import record
from dither.evaluation import Estimate
from dither.evaluation.two_classes import TwoClasses

REPETITIONS = 1000
METRICS = ("accuracy", "auc", "log_loss")
SIZES, EPSILONS, SHARES = (500, 3_000, 20_000), (0.1, 1.0), (0.05, 0.2, 0.5)
LAYOUT = TwoClasses(bins=20, loss_bound=5.0)


@dataclass(frozen=True)
class Population:
    """Logits with a standard deviation, and the slope and shift by which a model reports them."""

    spread: float
    slope: float = 1.0
    shift: float = 0.0

    def draw(
        self, records: int, share: float, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the logits that the model reports, and classes."""
        logits = _mean(share, self.spread) + self.spread * rng.standard_normal(records)
        classes = (rng.random(records) < expit(logits)).astype(np.int64)
        return self.slope * logits + self.shift, classes


POPULATIONS = {
    "calibrated": Population(1.2),
    "weak": Population(0.5),
    "strong": Population(2.5),
    "overconfident": Population(1.0, slope=2.0),
    "shrunk": Population(1.5, slope=0.5, shift=-0.3),
    "narrow": Population(1.0, slope=0.25),
}


@cache
def _mean(share: float, spread: float) -> float:
    """Return the mean logit at which the classes have their shares."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    low, high = -15.0, 15.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        found = expit(middle + spread * nodes) @ weights / weights.sum()
        low, high = (low, middle) if found > share else (middle, high)
    return middle


def probabilities(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probabilities of both classes."""
    return np.stack([expit(-logits), expit(logits)], axis=1)


@cache
def truth(population: Population, share: float, records: int = 4_000_000) -> dict[str, float]:
    """Return the metrics of the model, from many records."""
    logits, classes = population.draw(records, share, np.random.default_rng(1))
    positive = classes == 1
    P, N = int(positive.sum()), int((~positive).sum())
    ranks = float(rankdata(logits)[positive].sum())
    losses = np.logaddexp(0.0, np.where(positive, -logits, logits))
    return {
        "accuracy": float(np.mean((logits > 0.0) == positive)),
        "auc": (ranks - P * (P + 1) / 2) / (P * N),
        "log_loss": float(np.minimum(losses, LAYOUT.loss_bound).mean()),
    }


@cache
def noise_of(records: int, epsilon: float) -> float:
    """Return the standard deviation of the noise at δ = 1/(10·n)."""
    made = dither.plan(
        epsilon=epsilon, delta=0.1 / records, dataset_size=records, batch_size=records, steps=1,
        clip_norm=LAYOUT.norm, noise="uniform",
    )  # fmt: skip
    return float(made.noise_multipliers[0]) * LAYOUT.norm


def estimates(
    population: Population,
    share: float,
    records: int,
    epsilon: float,
    repetitions: int,
    *,
    seed: int,
    noise_told: float = 1.0,
) -> dict[str, list[Estimate]]:
    """Return what evaluations of many holdouts estimate; they are told that share of the noise."""
    rng, noise = np.random.default_rng([seed, records]), noise_of(records, epsilon)
    found: dict[str, list[Estimate]] = {name: [] for name in METRICS}
    for _ in range(repetitions):
        logits, classes = population.draw(records, share, rng)
        sums = LAYOUT.sums(probabilities(logits), classes)
        noisy = sums + noise * rng.standard_normal(sums.size)
        metrics = LAYOUT.metrics(noisy, noise_told * noise)
        for name in METRICS:
            found[name].append(getattr(metrics, name))
    return found


def covered(found: list[Estimate], value: float) -> float:
    """Return the share of intervals that have the true value."""
    return float(np.mean([each.low <= value <= each.high for each in found]))


def cell(
    population: Population, share: float, records: int, epsilon: float, repetitions: int
) -> dict[str, Any]:
    """Return the coverage of each metric, the mean width, and how often it is the whole range."""
    found = estimates(population, share, records, epsilon, repetitions, seed=2)
    true = truth(population, share)
    return {
        "truth": {name: round(true[name], 4) for name in METRICS},
        "coverage": {name: covered(found[name], true[name]) for name in METRICS},
        "width": {
            name: round(float(np.mean([each.high - each.low for each in found[name]])), 4)
            for name in METRICS
        },
        "auc says nothing": float(np.mean([e.high - e.low > 1.0 - 1e-9 for e in found["auc"]])),
    }


def main() -> None:
    """Measure all cells."""
    settings = [
        (name, share, records, epsilon)
        for name in POPULATIONS
        for share in SHARES
        for records in SIZES
        for epsilon in EPSILONS
    ]
    results = {
        f"{name}, {share:.0%} positive, n = {records}, ε = {epsilon}": cell(
            POPULATIONS[name], share, records, epsilon, REPETITIONS
        )
        for name, share, records, epsilon in track(settings)
    }
    record("coverage", "python -m benchmarks.coverage", ("numpy",), results)
    for name in METRICS:
        rates = [each["coverage"][name] for each in results.values()]
        spread = math.sqrt(0.95 * 0.05 / REPETITIONS)
        print(f"{name}: {min(rates):.3f} to {max(rates):.3f}, simulation ± {2 * spread:.3f}")


if __name__ == "__main__":
    main()
