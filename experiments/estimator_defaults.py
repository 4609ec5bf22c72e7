"""Claim: the rule of ``dither.estimators.defaults`` is near the best of its kind on its tables.

The rule was found on synthetic tables like these: 1, 10 and 50 % positive, numbers and categories,
clusters of several classes, and regressions. None of them is a table of ``benchmarks.tables``.
Around the rule's settings, one at a time: step sizes 4 times shorter to 4 times longer, half and
twice the steps, a quarter and four times the clip norm. ε = 0.5, 1 and 3, three seeds. The score is
1 − log loss / log loss of the base rate, so that probabilities count, or R².

Run by ``make experiments`` (or ``python -m experiments.estimator_defaults``), a few minutes on two
cores. Every run is saved as it ends, and a second call goes on where the first was left. Writes
estimator_defaults.json and .png to records/.
"""

import json
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from benchmarks.recording import origin
from matplotlib import colormaps
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.progress import track
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.datasets import make_classification, make_friedman1, make_regression
from sklearn.metrics import log_loss

from dither.estimators import PrivateLinearRegression, PrivateLogisticRegression, defaults
from dither.reports import save_figure
from dither.schedules import Linear, PiecewiseConstant

RECORDS = Path(__file__).parent / "records"
RUNS, RESULT = RECORDS / "estimator_defaults.jsonl", RECORDS / "estimator_defaults.json"
COMMAND = "python -m experiments.estimator_defaults"
EPSILONS, SEEDS, LENGTHS = (0.5, 1.0, 3.0), range(3), (0.25, 0.5, 1.0, 2.0, 4.0)
TEST = 5000
Array = NDArray[Any]
Split = tuple[Array, Array, Array, Array]


@dataclass(frozen=True)
class Run:
    """One fit: what differs from the rule.

    Attributes:
        table: name of the data.
        epsilon: ε, at δ = 1/(10·n).
        seed: of data and noise.
        length: factor on the step sizes.
        steps: factor on the number of steps, at the same total length.
        clip: factor on the clip norm, at the same total length.
    """

    table: str
    epsilon: float
    seed: int
    length: float = 1.0
    steps: float = 1.0
    clip: float = 1.0


def positives(n: int, share: float, *, categories: int = 0) -> Callable[[int], Split]:
    """Return what makes a table of 8 numbers and columns of 50 categories, one-hot."""

    def made(seed: int) -> Split:
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n + TEST, 8)).clip(-4.0, 4.0)
        weights = rng.normal(size=8)
        score, columns = X @ weights * (1.5 / np.linalg.norm(weights)), [X / 4.0]
        for _ in range(categories):
            values = np.minimum(rng.geometric(0.1, len(X)) - 1, 49)
            score = score + rng.normal(0.0, 0.8, 50)[values]
            columns.append(np.eye(50)[values])
        intercept = brentq(lambda b: expit(score + b).mean() - share, -30.0, 30.0)
        y = (rng.random(len(X)) < expit(score + intercept)).astype(int)
        return _split(np.hstack(columns), y, n)

    return made


def clusters(n: int, d: int, k: int) -> Callable[[int], Split]:
    """Return what makes a table of Gaussian clusters."""

    def made(seed: int) -> Split:
        X, y = make_classification(
            n + TEST, d, n_informative=d // 2, n_redundant=d // 4, n_classes=k,
            n_clusters_per_class=1, flip_y=0.1, random_state=seed,
        )  # fmt: skip
        return _split(X, y, n)

    return made


def numbers(
    make: Callable[..., tuple[Array, Array]], n: int, **given: Any
) -> Callable[[int], Split]:
    """Return what makes a regression."""
    return lambda seed: _split(*make(n + TEST, random_state=seed, **given), n)


def _split(X: Array, y: Array, n: int) -> Split:
    return X[:n], X[n:], y[:n], y[n:]


TABLES: dict[str, Callable[[int], Split]] = {
    "1 % of 20,000": positives(20_000, 0.01),
    "10 % of 2,000": positives(2_000, 0.1),
    "10 % of 20,000, categories": positives(20_000, 0.1, categories=3),
    "50 % of 2,000, categories": positives(2_000, 0.5, categories=3),
    "50 % of 20,000": positives(20_000, 0.5),
    "3 clusters, 1,000 × 12": clusters(1_000, 12, 3),
    "10 clusters, 10,000 × 30": clusters(10_000, 30, 10),
    "linear 1,000 × 20": numbers(make_regression, 1_000, n_features=20, noise=50.0),
    "Friedman 1,000 × 10": numbers(make_friedman1, 1_000, noise=1.0),
    "Friedman 20,000 × 10": numbers(make_friedman1, 20_000, noise=1.0),
}


def score(run: Run) -> float:
    """Fit, and return the skill or R² on the test records."""
    torch.set_num_threads(1)
    X, test_X, y, test_y = TABLES[run.table](run.seed)
    is_regression = y.dtype.kind == "f"
    classes = np.unique(y)
    rule = defaults(
        dataset_size=len(X), features=X.shape[1], epsilon=run.epsilon,
        outputs=1 if is_regression or len(classes) == 2 else len(classes),
        task="regression" if is_regression else "classification",
    )  # fmt: skip
    start = rule.stepsizes.stepsizes(rule.steps)[0] * run.length / (run.steps * run.clip)
    both = np.vstack([X, test_X])
    given: dict[str, Any] = {
        "feature_bounds": (both.min(axis=0), both.max(axis=0)),
        "random_state": run.seed,
        "epsilon": run.epsilon,
        "steps": round(run.steps * rule.steps),
        "clip_norm": run.clip * rule.clip_norm,
        "batch_size": rule.batch_size,
        "stepsizes": PiecewiseConstant(Linear(start, 0.05 * start), 20),
    }
    if is_regression:
        bounds = (min(y.min(), test_y.min()), max(y.max(), test_y.max()))
        regressor = PrivateLinearRegression(target_bounds=bounds, **given)
        return float(regressor.fit(X, y).score(test_X, test_y))
    model = PrivateLogisticRegression(classes=classes, **given).fit(X, y)
    constant = np.tile(np.bincount(y) / len(y), (len(test_y), 1))
    base = log_loss(test_y, constant, labels=classes)
    return 1.0 - float(log_loss(test_y, model.predict_proba(test_X), labels=classes) / base)


def runs() -> Iterator[Run]:
    """Yield all fits."""
    for table in TABLES:
        for epsilon in EPSILONS:
            for seed in SEEDS:
                for length in LENGTHS:
                    yield Run(table, epsilon, seed, length=length)
                for factor in (0.25, 4.0):
                    yield Run(table, epsilon, seed, clip=factor)
                for factor in (0.5, 2.0):
                    yield Run(table, epsilon, seed, steps=factor)


def load_scores() -> dict[Run, float]:
    """Return the fits that were saved."""
    lines = RUNS.read_text(encoding="utf-8").splitlines() if RUNS.exists() else []
    rows = [json.loads(line) for line in lines]
    return {Run(**row["run"]): row["score"] for row in rows}


def _score_run(run: Run) -> tuple[Run, float]:
    return run, score(run)


def score_missing() -> dict[Run, float]:
    """Fit what is missing, two at a time, and save each as it ends."""
    found = load_scores()
    missing = [run for run in runs() if run not in found]
    with multiprocessing.get_context("spawn").Pool(2) as pool, RUNS.open("a") as lines:
        ended = pool.imap_unordered(_score_run, missing, chunksize=9)
        for run, value in track(ended, total=len(missing), description="defaults"):
            found[run] = value
            lines.write(json.dumps({"run": asdict(run), "score": value}) + "\n")
            lines.flush()
    return found


def averages(found: dict[Run, float]) -> dict[str, dict[str, dict[str, float]]]:
    """Return scores by table, ε and what was changed, means over the seeds."""
    kept: dict[str, dict[str, dict[str, list[float]]]] = {}
    for run in runs():
        rows = kept.setdefault(run.table, {}).setdefault(f"{run.epsilon:g}", {})
        rows.setdefault(_change(run), []).append(found[run])
    return {
        table: {e: {c: mean(v) for c, v in row.items()} for e, row in by_epsilon.items()}
        for table, by_epsilon in kept.items()
    }


def _change(run: Run) -> str:
    for name in ("length", "steps", "clip"):
        if getattr(run, name) != 1.0:
            return f"{name} × {getattr(run, name):g}"
    return "rule"


def picture(means: dict[str, dict[str, dict[str, float]]]) -> Figure:
    """Draw what other lengths gain or lose, a panel an ε."""
    figure = Figure(figsize=(12.0, 3.6), layout="constrained")
    for axis, epsilon in zip(figure.subplots(1, 3, sharey=True), EPSILONS, strict=True):
        axis.set_prop_cycle(color=colormaps["tab10"](range(len(means))))
        for table, by_epsilon in means.items():
            row = by_epsilon[f"{epsilon:g}"]
            gains = [row["rule" if f == 1.0 else f"length × {f:g}"] - row["rule"] for f in LENGTHS]
            axis.plot(LENGTHS, 100.0 * np.array(gains), marker=".", label=table)
        axis.set(title=f"ε = {epsilon:g}", xlabel="step sizes, times the rule's", xscale="log")
        axis.set(ylim=(-15.0, 5.0))
        axis.set_xticks(LENGTHS, [f"{length:g}" for length in LENGTHS])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    figure.axes[0].set_ylabel("score − the rule's, in points")
    figure.axes[-1].legend(fontsize="xx-small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def main() -> None:
    """Fit, print the table, write the record and the picture."""
    RECORDS.mkdir(exist_ok=True)
    means = averages(score_missing())
    print("| table | ε | rule | best length | best of all |\n| --- | ---: | ---: | --- | --- |")
    for table, by_epsilon in means.items():
        for epsilon, row in by_epsilon.items():
            lengths = {c: v for c, v in row.items() if c == "rule" or c.startswith("length")}
            best, best_of_all = (max(each, key=each.__getitem__) for each in (lengths, row))
            print(
                f"| {table} | {epsilon} | {100 * row['rule']:.1f} | {100 * row[best]:.1f} ({best}) "
                f"| {100 * row[best_of_all]:.1f} ({best_of_all}) |"
            )
    packages = ("torch", "numpy", "scikit-learn")
    entry = {**origin(COMMAND, packages), "seeds": [*SEEDS], "results": means}
    RESULT.write_text(json.dumps(entry, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    save_figure(picture(means), RECORDS / "estimator_defaults.png")


if __name__ == "__main__":
    main()
