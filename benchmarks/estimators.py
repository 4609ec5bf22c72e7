"""Estimators with their defaults against diffprivlib, Opacus and no privacy at all.

The time of a fit on Fashion-MNIST at ε = 1, alternating with diffprivlib's and with the same steps
by Opacus; then the accuracy of logistic regression on digits, breast cancer, wine, Fashion-MNIST
and MNIST at ε = 0.5, 1 and 3, five seeds. diffprivlib does not import with the scikit-learn of this
project: it gets an environment of its own, `build/diffprivlib`, and works as a server there. Run by
``make bench`` (or ``python -m benchmarks.estimators``) with the images in ``$DITHER_DATA``, about
half an hour; writes a record and a picture.
"""

import json
import sys
import time
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.progress import track
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers import REQUIREMENTS, Peer, peer
from benchmarks.recording import RESULTS, record
from dither.data import load
from dither.estimators import PrivateLogisticRegression
from dither.planning import reuse
from dither.reports import save_figure

EPSILONS, SEEDS, ROUNDS, THREADS = (0.5, 1.0, 3.0), range(5), 3, 2
Array = NDArray[Any]
Split = tuple[Array, Array, Array, Array]


READERS = {"digits": load_digits, "breast cancer": load_breast_cancer, "wine": load_wine}
IMAGES = ("fashion-mnist", "mnist")


def split_of(name: str, seed: int) -> Split:
    """Return training and test records and their labels, features from 0 to 1.

    Features of the small tables are scaled by the ranges that they are published with.
    """
    if name in READERS:
        X, y = READERS[name](return_X_y=True)
        low, high = X.min(axis=0), X.max(axis=0)
        scaled = (X - low) / np.maximum(high - low, 1e-9)
        X, test_X, y, test_y = train_test_split(
            scaled, y, test_size=0.2, random_state=seed, stratify=y
        )
        return X, test_X, y, test_y
    read = load(name)
    if read.test is None:
        raise ValueError(f"{name} must have test records")
    X, test_X = (part.inputs.flatten(1).numpy() for part in (read.train, read.test))
    return X, test_X, read.train.targets.numpy(), read.test.targets.numpy()


def ours(epsilon: float, delta: float | None, seed: int, classes: Array) -> Any:
    """Return the estimator with its default settings."""
    return PrivateLogisticRegression(
        epsilon=epsilon, delta=delta, feature_bounds=(0, 1), classes=classes, random_state=seed
    )


def theirs(rival: Peer, split: Split, epsilon: float, seed: int) -> tuple[float, float]:
    """Return the accuracy of diffprivlib's logistic regression, and the seconds of its fit."""
    # Records of norm 1 suit it better than features from 0 to 1 with a norm of √d.
    X, test_X = (
        each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1e-9) for each in split[:2]
    )
    settings = {"epsilon": epsilon, "data_norm": 1.0, "max_iter": 200, "random_state": seed}
    scores, seconds = rival.fit(
        "diffprivlib.models.LogisticRegression", settings, X, split[2], test_X
    )
    return float(np.mean(np.unique(split[2])[scores.argmax(axis=1)] == split[3])), seconds


def accuracies(rival: Peer) -> dict[str, Any]:
    """Return accuracies by table, ε and method, one per seed."""
    found: dict[str, Any] = {}
    for name in (*READERS, *IMAGES):
        splits = {seed: split_of(name, seed) for seed in (SEEDS if name in READERS else [0])}
        rows: dict[str, Any] = {"records": len(splits[0][0])}
        rows["without privacy"] = [
            LogisticRegression(max_iter=200, tol=1e-3).fit(X, y).score(test_X, test_y)
            for X, test_X, y, test_y in splits.values()
        ]
        for epsilon in track(EPSILONS, description=name):
            scores: dict[str, list[float]] = {"dither": [], "diffprivlib": []}
            for seed in SEEDS:
                X, test_X, y, test_y = split = splits.get(seed, splits[0])
                delta = None if name in READERS else 1e-5
                model = ours(epsilon, delta, seed, np.unique(y)).fit(X, y)
                scores["dither"].append(model.score(test_X, test_y))
                scores["diffprivlib"].append(theirs(rival, split, epsilon, seed)[0])
            rows[f"{epsilon:g}"] = scores
        found[name] = rows
    return found


def opacus_seconds(X: Array, y: Array, plan: Any) -> float:
    """Return the seconds of the same steps with Opacus: Poisson batches, clipping, noise."""
    from opacus import PrivacyEngine

    start = time.perf_counter()
    data = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    model = torch.nn.Linear(X.shape[1], 10)
    engine = PrivacyEngine()
    module, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        data_loader=DataLoader(data, batch_size=plan.batch_size),
        noise_multiplier=float(plan.noise_multipliers[0]),
        max_grad_norm=plan.clip_norm,
    )
    steps = 0
    while steps < plan.steps:
        for inputs, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(inputs), targets).backward()
            optimizer.step()
            steps += 1
            if steps == plan.steps:
                break
    return time.perf_counter() - start


def speeds(rival: Peer) -> dict[str, Any]:
    """Return the seconds of fits on Fashion-MNIST at ε = 1, alternating."""
    X, _, y, _ = split = split_of("fashion-mnist", 0)
    seconds: dict[str, list[float]] = {"dither": [], "diffprivlib": [], "Opacus": []}
    for seed in track(range(ROUNDS), description="speed"):
        reuse._cached_plan.cache_clear()  # every fit that is timed makes its own plan
        start = time.perf_counter()
        model = ours(1.0, 1e-5, seed, np.arange(10)).fit(X, y)
        seconds["dither"].append(time.perf_counter() - start)
        seconds["diffprivlib"].append(theirs(rival, split, 1.0, seed)[1])
        seconds["Opacus"].append(opacus_seconds(X, y, model.plan_))
    return {
        "seconds": seconds,
        "steps": model.plan_.steps,
        "batch_size": model.plan_.batch_size,
        "times_faster": {
            name: median(each) / median(seconds["dither"]) for name, each in seconds.items()
        },
    }


def summary(scores: list[float]) -> str:
    """Return mean ± standard deviation in percent."""
    if len(scores) == 1:
        return f"{100 * scores[0]:.1f}"
    return f"{100 * mean(scores):.1f} ± {100 * stdev(scores):.1f}"


def table(found: dict[str, Any]) -> str:
    """Return the accuracies as a Markdown table."""
    lines = [
        "| | records | ε | dither | diffprivlib | without privacy |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, rows in found.items():
        for epsilon in EPSILONS:
            scores = rows[f"{epsilon:g}"]
            lines.append(
                f"| {name} | {rows['records']:,} | {epsilon:g} | **{summary(scores['dither'])}** | "
                f"{summary(scores['diffprivlib'])} | {summary(rows['without privacy'])} |"
            )
    return "\n".join(lines)


def picture(found: dict[str, Any]) -> Figure:
    """Draw accuracy over ε, a panel a table."""
    figure = Figure(figsize=(12.0, 3.0), layout="constrained")
    axes = figure.subplots(1, len(found), sharey=True)
    for axis, (name, rows) in zip(axes, found.items(), strict=True):
        for method in ("dither", "diffprivlib"):
            scores = [rows[f"{epsilon:g}"][method] for epsilon in EPSILONS]
            middle, spread = [mean(each) for each in scores], [stdev(each) for each in scores]
            axis.errorbar(EPSILONS, middle, spread, marker="o", capsize=3, label=method)
        axis.axhline(mean(rows["without privacy"]), color="grey", ls=":", label="without privacy")
        axis.set(title=f"{name}, n = {rows['records']:,}", xlabel="ε", xscale="log", ylim=(0, 1))
        axis.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        axis.minorticks_off()
    figure.axes[0].set_ylabel("test accuracy")
    figure.axes[0].legend(fontsize="small")
    return figure


def main() -> None:
    """Measure, print, write the record and the picture."""
    torch.set_num_threads(THREADS)
    with peer("diffprivlib") as rival:
        fast = speeds(rival)
        print(json.dumps(fast["times_faster"]))
        found = accuracies(rival)
    print(table(found))
    save_figure(picture(found), RESULTS / "estimators.png")
    record(
        "estimators",
        f"{Path(sys.executable).name} -m benchmarks.estimators",
        ("torch", "numpy", "scikit-learn", "opacus"),
        {
            "seeds": [*SEEDS],
            "peer": REQUIREMENTS["diffprivlib"],
            "threads": THREADS,
            "accuracy": found,
            "speed": fast,
        },
    )


if __name__ == "__main__":
    main()
