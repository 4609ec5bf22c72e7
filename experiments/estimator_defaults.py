"""Claim: the rule of ``dither.estimators.defaults`` is near the best of its kind on unseen tables.

The rule was found on these data: synthetic tables, scikit-learn's diabetes, and CIFAR-10 as grey
pixels and as random convolutional features. None of them is a set that the estimators are compared
on (digits, breast cancer, wine, MNIST, Fashion-MNIST). Around the rule's settings, one at a time:
step sizes 8 times shorter to 8 times longer, a quarter and four times the steps, a quarter and four
times the clip norm, and no steps for means of features and targets. ε = 0.5, 1 and 3,
three seeds on the small tables and one on the large.

Run by ``make experiments`` (or ``python -m experiments.estimator_defaults``) with CIFAR-10 in
``$DITHER_DATA``: about 25 minutes on two cores. Every run is saved as it ends, and a second call
goes on where the first was left. Writes estimator_defaults.json and .png to records/.
"""

import json
import math
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
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
from sklearn.datasets import load_diabetes, make_classification, make_friedman1, make_regression
from sklearn.metrics import r2_score
from torch.nn import functional

import dither
from dither.data import load
from dither.estimators import PrivateLinearRegression, PrivateLogisticRegression, defaults
from dither.reports import save_figure
from dither.schedules import Linear, PiecewiseConstant
from dither.training import logistic_loss, softmax_loss, squared_loss, train_linear

RECORDS = Path(__file__).parent / "records"
RUNS, RESULT = RECORDS / "estimator_defaults.jsonl", RECORDS / "estimator_defaults.json"
COMMAND = "python -m experiments.estimator_defaults"
EPSILONS, LENGTHS = (0.5, 1.0, 3.0), (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
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
        standardized: whether the first steps release means.
    """

    table: str
    epsilon: float
    seed: int
    length: float = 1.0
    steps: float = 1.0
    clip: float = 1.0
    standardized: bool = True


def classes(n: int, d: int, k: int, *, skewed: bool = False) -> Callable[[int], Split]:
    """Return what makes a table of Gaussian clusters, or of their exponentials."""

    def made(seed: int) -> Split:
        X, y = make_classification(
            n + 3000, d, n_informative=min(d - 1, max(k, d // 3)), n_redundant=d // 4, n_classes=k,
            n_clusters_per_class=1, random_state=seed,
        )  # fmt: skip
        return _split(np.exp(X / 2.0) if skewed else X, y, n)

    return made


def numbers(
    make: Callable[..., tuple[Array, Array]], n: int, **given: Any
) -> Callable[[int], Split]:
    """Return what makes a regression."""
    return lambda seed: _split(*make(n + 500, random_state=seed, **given), n)


def diabetes(seed: int) -> Split:
    """Split scikit-learn's diabetes data."""
    X, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(X))
    return _split(X[order], y[order], 340)


def _split(X: Array, y: Array, n: int) -> Split:
    return X[:n], X[n:], y[:n], y[n:]


@lru_cache(maxsize=2)
def _cifar(kind: str) -> Split:
    read = load("cifar10")
    if read.test is None:
        raise ValueError("cifar10 must have test records")
    view = {"pixels": _grey, "features": _features}[kind]
    X, test_X = (view(part.inputs.float()).numpy() for part in (read.train, read.test))
    return X, test_X, read.train.targets.numpy(), read.test.targets.numpy()


def _grey(images: torch.Tensor) -> torch.Tensor:
    return images.mean(1).flatten(1)


def _features(images: torch.Tensor) -> torch.Tensor:
    """Return 48 random 6 × 6 filters, rectified and averaged over a 4 × 4 grid."""
    filters = torch.randn(48, 3, 6, 6, generator=torch.Generator().manual_seed(7))
    filters -= filters.mean((1, 2, 3), keepdim=True)
    filters /= filters.flatten(1).norm(dim=1)[:, None, None, None]
    parts = (functional.conv2d(part, filters).relu() for part in images.split(1000))
    return torch.cat([functional.adaptive_avg_pool2d(part, 4).flatten(1) for part in parts])


def images(kind: str, n: int) -> Callable[[int], Split]:
    """Return what draws n records of CIFAR-10."""

    def drawn(seed: int) -> Split:
        X, test_X, y, test_y = _cifar(kind)
        some = np.random.default_rng(seed).permutation(len(X))[:n]
        return X[some], test_X, y[some], test_y

    return drawn


TABLES: dict[str, Callable[[int], Split]] = {
    "clusters 150 × 13, 3": classes(150, 13, 3),
    "skewed 150 × 13, 3": classes(150, 13, 3, skewed=True),
    "clusters 450 × 30, 2": classes(450, 30, 2),
    "skewed 450 × 30, 2": classes(450, 30, 2, skewed=True),
    "clusters 1,500 × 50, 10": classes(1500, 50, 10),
    "clusters 5,000 × 30, 3": classes(5000, 30, 3),
    "CIFAR features 1,500 × 768, 10": images("features", 1500),
    "CIFAR pixels 50,000 × 1,024, 10": images("pixels", 50_000),
    "CIFAR features 50,000 × 768, 10": images("features", 50_000),
    "diabetes 340 × 10": diabetes,
    "linear 1,000 × 20": numbers(make_regression, 1000, n_features=20, noise=50.0),
    "Friedman 1,000 × 10": numbers(make_friedman1, 1000, noise=1.0),
}


def score(run: Run) -> float:
    """Fit, and return the accuracy or R² on the test records."""
    torch.set_num_threads(1)
    X, test_X, y, test_y = TABLES[run.table](run.seed)
    both = np.vstack([X, test_X])
    given: dict[str, Any] = {
        "feature_bounds": (both.min(axis=0), both.max(axis=0)),
        "random_state": run.seed,
        "epsilon": run.epsilon,
    }
    is_regression = y.dtype.kind == "f"
    if is_regression:
        targets = np.concatenate([y, test_y])
        given["target_bounds"] = (targets.min(), targets.max())
    else:
        given["classes"] = np.unique(y)
    kind = PrivateLinearRegression if is_regression else PrivateLogisticRegression
    outputs = 1 if is_regression or len(given["classes"]) == 2 else len(given["classes"])
    rule = defaults(
        dataset_size=len(X), features=X.shape[1], outputs=outputs, epsilon=run.epsilon,
        task="regression" if is_regression else "classification",
    )  # fmt: skip
    start = rule.stepsizes.stepsizes(rule.steps)[0] * run.length / (run.steps * run.clip)
    given["steps"], given["clip_norm"] = round(run.steps * rule.steps), run.clip * rule.clip_norm
    given["batch_size"], given["stepsizes"] = (
        rule.batch_size,
        PiecewiseConstant(Linear(start, 0.05 * start), 20),
    )
    if not run.standardized:
        return score_without_standardizing(X, test_X, y, test_y, outputs, given)
    return float(kind(**given).fit(X, y).score(test_X, test_y))


def score_without_standardizing(
    X: Array, test_X: Array, y: Array, test_y: Array, outputs: int, given: dict[str, Any]
) -> float:
    """Return the score of the same training without steps for means: all release gradients."""
    n, (low, high) = len(X), given["feature_bounds"]
    offset = np.where((low <= 0.0) & (high >= 0.0), 0.0, (low + high) / 2.0)
    reach = np.maximum(high - offset, offset - low)
    factor = 2.0 / math.sqrt(X.shape[1]) / np.where(reach > 0.0, reach, 1.0)
    inputs, test_inputs = (
        torch.from_numpy(((each - offset) * factor).astype(np.float32)) for each in (X, test_X)
    )
    plan = dither.plan(
        epsilon=given["epsilon"], delta=0.1 / n, dataset_size=n, batch_size=given["batch_size"],
        steps=given["steps"], clip_norm=given["clip_norm"], stepsizes=given["stepsizes"],
    )  # fmt: skip
    middle = sum(given.get("target_bounds", (0.0, 2.0))) / 2.0
    half = max(given.get("target_bounds", (0.0, 2.0))) - middle
    if "target_bounds" in given:
        loss = squared_loss((y - middle) / half)
    else:
        loss = logistic_loss(y) if outputs == 1 else softmax_loss(y, outputs)
    model = train_linear(inputs, loss, plan, outputs=outputs, seed=given["random_state"]).model
    with torch.no_grad():
        scores = model(test_inputs).numpy()
    if "target_bounds" in given:
        return float(r2_score(test_y, middle + half * scores[:, 0]))
    found = scores[:, 0] > 0.0 if outputs == 1 else scores.argmax(axis=1)
    return float(np.mean(found == test_y))


def runs() -> Iterator[Run]:
    """Yield all fits."""
    for table in TABLES:
        is_large = "50,000" in table
        for epsilon in EPSILONS:
            for seed in range(1 if is_large else 3):
                yield from _around(table, epsilon, seed, LENGTHS[1:-1:2] if is_large else LENGTHS)


def _around(table: str, epsilon: float, seed: int, lengths: Iterable[float]) -> Iterator[Run]:
    for length in lengths:
        yield Run(table, epsilon, seed, length=length)
    yield Run(table, epsilon, seed, standardized=False)
    for factor in (0.25, 4.0):
        yield Run(table, epsilon, seed, clip=factor)
        if "50,000" not in table:
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
        ended = pool.imap_unordered(_score_run, missing)
        for run, value in track(ended, total=len(missing), description="defaults"):
            found[run] = value
            lines.write(json.dumps({"run": asdict(run), "score": value}) + "\n")
            lines.flush()
    return found


def averages(found: dict[Run, float]) -> dict[str, dict[str, dict[str, float]]]:
    """Return scores by table, ε and what was changed, means over the seeds."""
    kept: dict[str, dict[str, dict[str, list[float]]]] = {}
    for run in runs():
        change = _change(run)
        rows = kept.setdefault(run.table, {}).setdefault(f"{run.epsilon:g}", {})
        rows.setdefault(change, []).append(found[run])
    return {
        table: {e: {c: mean(v) for c, v in row.items()} for e, row in by_epsilon.items()}
        for table, by_epsilon in kept.items()
    }


def _change(run: Run) -> str:
    if not run.standardized:
        return "not standardized"
    for name in ("length", "steps", "clip"):
        if getattr(run, name) != 1.0:
            return f"{name} × {getattr(run, name):g}"
    return "rule"


def picture(means: dict[str, dict[str, dict[str, float]]]) -> Figure:
    """Draw what other lengths gain or lose, a panel an ε."""
    figure = Figure(figsize=(12.0, 3.6), layout="constrained")
    for axis, epsilon in zip(figure.subplots(1, 3, sharey=True), EPSILONS, strict=True):
        axis.set_prop_cycle(color=colormaps["tab20"](range(len(means))))
        for table, by_epsilon in means.items():
            row = by_epsilon[f"{epsilon:g}"]
            gains = [(f, row.get("rule" if f == 1.0 else f"length × {f:g}")) for f in LENGTHS]
            points = [(f, 100.0 * (gain - row["rule"])) for f, gain in gains if gain is not None]
            axis.plot(*zip(*points, strict=True), marker=".", label=table)
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
    print(
        "| table | ε | rule | best length | not standardized |\n| --- | ---: | ---: | ---: | ---: |"
    )
    for table, by_epsilon in means.items():
        for epsilon, row in by_epsilon.items():
            lengths = {c: v for c, v in row.items() if c == "rule" or c.startswith("length")}
            best = max(lengths, key=lambda change: lengths[change])
            print(
                f"| {table} | {epsilon} | {100 * row['rule']:.1f} | {100 * lengths[best]:.1f} "
                f"({best}) | {100 * row['not standardized']:.1f} |"
            )
    packages = ("torch", "numpy", "scikit-learn")
    entry = {**origin(COMMAND, packages), "seeds": [0, 1, 2], "results": means}
    RESULT.write_text(json.dumps(entry, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    save_figure(picture(means), RECORDS / "estimator_defaults.png")


if __name__ == "__main__":
    main()
