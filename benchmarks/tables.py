"""dither's estimators on tables against private and other peers: ranking and probabilities.

Bundled, real and synthetic tables (`benchmarks.table_data`), five seeds, ε = 0.5, 1 and 3, δ = 1e-5
from 20,000 records on, else 1/(10·n). dither gets the table and its schema, and nothing else. The
peers are diffprivlib, the private EBM of interpret, each in an environment of its own under
``build``, and scikit-learn without privacy. Run by ``make bench``, or in parts:

    python -m benchmarks.tables --tables adult "census income" --methods "dither linear"

Rows are kept in ``build/tables.jsonl`` as they are measured, and a later run goes on from there;
``--again`` measures the chosen ones anew. Once no row is missing, the record and the picture are
written. ``--speed`` measures the time of fits relative to scikit-learn's.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import r2_score, roc_auc_score
from threadpoolctl import threadpool_limits

from benchmarks.peers import REQUIREMENTS, PeerError
from benchmarks.recording import RESULTS, record
from benchmarks.table_data import TABLES, Table
from benchmarks.table_methods import DITHER, PLAIN, Fit, Peers, Task
from dither.estimators import PrivateLogisticRegression, PrivateMLPClassifier
from dither.planning import reuse
from dither.reports import save_figure

EPSILONS, SEEDS, ROUNDS, THREADS = (0.5, 1.0, 3.0), range(5), 5, 2
ROWS = Path("build/tables.jsonl")
LINEAR, EBM = "linear, not private", "private EBM"
PEERS = ("diffprivlib", EBM)
METHODS = (*PLAIN, *PEERS, *DITHER)
Array = NDArray[Any]
Key = tuple[str, str, float | None, int]
Rows = dict[Key, dict[str, Any]]


def measures(table: Table, predicted: Array) -> dict[str, float]:
    """Return AUC, log loss and Brier score of probabilities, or R² of numbers, on the test part."""
    y = table.targets()[1]
    if table.classes is None:
        return {"r2": float(r2_score(y, predicted))}
    rows = np.arange(len(y))
    log_loss = -np.log(np.clip(predicted[rows, y], 1e-15, 1.0)).mean()
    squares = (predicted - np.eye(len(table.classes))[y]) ** 2
    if len(table.classes) == 2:
        auc, brier = roc_auc_score(y, predicted[:, 1]), squares[:, 1].mean()
    else:
        shares = predicted / predicted.sum(axis=1, keepdims=True)
        auc, brier = roc_auc_score(y, shares, multi_class="ovr"), squares.sum(axis=1).mean()
    return {"auc": float(auc), "log_loss": float(log_loss), "brier": float(brier)}


def read(path: Path) -> Rows:
    """Return the rows measured so far, the last one of each cell; no methods that are gone."""
    rows: Rows = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["table"] in TABLES and row["method"] in METHODS:
                rows[row["table"], row["method"], row["epsilon"], row["seed"]] = row
    return rows


def cells(chosen: argparse.Namespace) -> Iterator[Key]:
    """Yield what is to be measured, one table and seed after the other."""
    for seed, table, method in product(chosen.seeds, chosen.tables, chosen.methods):
        for epsilon in [None] if method in PLAIN else chosen.epsilons:
            yield table, method, epsilon, seed


def measure(chosen: argparse.Namespace) -> None:
    """Measure the chosen rows that are not there yet, and append each to the file."""
    known = {} if chosen.again else read(chosen.rows)
    todo = [key for key in cells(chosen) if key not in known]
    chosen.rows.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with ExitStack() as stack, chosen.rows.open("a", encoding="utf-8") as file:
        peers = Peers(stack)
        fits: dict[str, Fit] = {
            **PLAIN,
            "diffprivlib": peers.diffprivlib,
            EBM: peers.private_ebm,
            **DITHER,
        }
        read_last: tuple[str, int] | None = None
        for done, (name, method, epsilon, seed) in enumerate(todo):
            if read_last != (name, seed):
                table, read_last = TABLES[name](seed), (name, seed)
            row = {"table": name, "method": method, "epsilon": epsilon, "seed": seed}
            row |= {"records": len(table.train)}
            try:
                predicted, seconds = fits[method](Task(table, epsilon, seed))
                row |= {**measures(table, predicted), "seconds": seconds}
            except PeerError as error:
                row |= {"error": str(error)}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            left = (time.monotonic() - start) / (done + 1) * (len(todo) - done - 1)
            print(f"{done + 1}/{len(todo)}, {left / 60:.0f} min left: {line(row)}", flush=True)


def line(row: dict[str, Any]) -> str:
    """Return a row as text."""
    budget = "" if row["epsilon"] is None else f", ε = {row['epsilon']:g}"
    if "error" in row:
        return f"{row['table']}, {row['method']}{budget}: {row['error']}"
    values = {
        name: row[name] for name in ("auc", "log_loss", "brier", "r2", "seconds") if name in row
    }
    shown = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
    return f"{row['table']}, {row['method']}{budget}: {shown}"


def grouped(rows: Rows) -> dict[str, Any]:
    """Return the figures by table, method and ε ("none" without privacy), one value per seed."""
    found: dict[str, Any] = {}
    for (table, method, epsilon, seed), row in sorted(rows.items(), key=_position):
        about = found.setdefault(table, {"records": row["records"], "methods": {}})
        by_epsilon = about["methods"].setdefault(method, {})
        cell = by_epsilon.setdefault("none" if epsilon is None else f"{epsilon:g}", {})
        if "error" in row:
            cell["error"] = row["error"]
            continue
        cell.setdefault("seeds", []).append(seed)
        for name in ("auc", "log_loss", "brier", "r2", "seconds"):
            if name in row:
                cell.setdefault(name, []).append(float(f"{row[name]:.6g}"))
    return found


def _position(item: tuple[Key, Any]) -> tuple[int, int, float, int]:
    table, method, epsilon, seed = item[0]
    return [*TABLES].index(table), METHODS.index(method), epsilon or 0.0, seed


def cell_of(found: dict[str, Any], table: str, method: str, epsilon: float) -> dict[str, Any]:
    """Return the figures of a cell, of any ε for methods without; none if they are absent."""
    by_epsilon = found[table]["methods"].get(method, {})
    return dict(by_epsilon.get("none", by_epsilon.get(f"{epsilon:g}", {})))


def markdown(found: dict[str, Any]) -> str:
    """Return all means as a Markdown table."""
    names = {"auc": "AUC", "log_loss": "log loss", "brier": "Brier", "r2": "R²", "seconds": "s"}
    lines = [
        f"| table | n | method | ε | {' | '.join(names.values())} |",
        f"| --- | ---: | --- | ---: |{' ---: |' * len(names)}",
    ]
    for table, about in found.items():
        for method, by_epsilon in about["methods"].items():
            for epsilon, cell in by_epsilon.items():
                values = " | ".join(_shown(cell.get(name, [])) for name in names)
                shown = "–" if epsilon == "none" else epsilon
                lines.append(f"| {table} | {about['records']:,} | {method} | {shown} | {values} |")
    return "\n".join(lines)


def _shown(values: list[float]) -> str:
    if not values:
        return ""
    if abs(mean(values)) >= 1000.0:
        return f"{mean(values):.1e}"
    spread = f" ± {stdev(values):.4f}" if len(values) > 1 and stdev(values) > 0.0 else ""
    return f"{mean(values):.4f}{spread}"


def goals(found: dict[str, Any], method: str) -> dict[str, Any]:
    """Return what a method of dither reaches of the goals, with the cells that miss them."""
    above, away, ahead = {}, {}, {}
    for table, epsilon in product(found, EPSILONS):
        cell = cell_of(found, table, method, epsilon)
        if "log_loss" not in cell:
            continue
        base, plain, ebm = (
            cell_of(found, table, other, epsilon) for other in ("base rate", LINEAR, EBM)
        )
        at, n = f"{table}, ε = {epsilon:g}", found[table]["records"]
        if n * epsilon >= 2000 and "log_loss" in base:
            constant = dict(zip(base["seeds"], base["log_loss"], strict=True))
            pairs = zip(cell["seeds"], cell["log_loss"], strict=True)
            above[at] = max(loss / constant[seed] for seed, loss in pairs if seed in constant)
        if n >= 20_000 and epsilon == 1.0 and "log_loss" in plain:
            away[at] = mean(cell["log_loss"]) / mean(plain["log_loss"])
        if "log_loss" in ebm:
            ahead[at] = [
                mean(cell["auc"]) - mean(ebm["auc"]),
                mean(ebm["log_loss"]) - mean(cell["log_loss"]),
            ]
    reached: dict[str, Any] = {
        "log loss at most the base rate's, n·ε ≥ 2,000": _verdict(above, 1.0),
        "log loss at most 1.05 of the linear model's without privacy": _verdict(away, 1.05),
    }
    adult = cell_of(found, "adult", method, 1.0) if "adult" in found else {}
    if adult:
        auc, log_loss = mean(adult["auc"]), mean(adult["log_loss"])
        reached["Adult, ε = 1: AUC ≥ .905, log loss ≤ .320"] = {
            "hit": auc >= 0.905 and log_loss <= 0.320,
            "auc": auc,
            "log_loss": log_loss,
        }
    behind = {at: gain for at, gain in ahead.items() if min(gain) <= 0.0}
    reached["AUC and log loss ahead of the private EBM in nine of ten cells"] = {
        "hit": len(behind) <= 0.1 * len(ahead) if ahead else None,
        "cells": len(ahead),
        "misses": behind,
    }
    return reached


def _verdict(ratios: dict[str, float], most: float) -> dict[str, Any]:
    misses = {at: ratio for at, ratio in ratios.items() if ratio > most}
    worst = max(ratios.values(), default=None)
    return {
        "hit": not misses if ratios else None,
        "cells": len(ratios),
        "worst": worst,
        "misses": misses,
    }


def report(reached: dict[str, Any]) -> str:
    """Return goals as lines that begin with hit, MISS or not measured."""
    lines = []
    for goal, about in reached.items():
        rest = {name: value for name, value in about.items() if name != "hit"}
        verdict = {True: "hit ", False: "MISS", None: "not measured"}[about["hit"]]
        lines.append(f"{verdict} {goal}: {_rounded(rest)}")
    return "\n".join(lines)


def _rounded(value: Any) -> Any:
    """Return the value with four digits after the point, for reading only."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


def picture(found: dict[str, Any]) -> Figure:
    """Draw the log loss relative to the base rate's: a panel per ε, a line per table."""
    tables = [name for name in found if "log_loss" in cell_of(found, name, "base rate", 1.0)][::-1]
    shown = [method for method in METHODS if method != "base rate"]
    figure = Figure(figsize=(12.0, 0.45 * len(tables) + 1.6), layout="constrained")
    panels = figure.subplots(1, len(EPSILONS), sharey=True)
    for axis, epsilon in zip(panels, EPSILONS, strict=True):
        for method, marker in zip(shown, "|xs^oDPv*", strict=False):
            points = [
                (_relative(found, table, method, epsilon), height)
                for height, table in enumerate(tables)
                if "log_loss" in cell_of(found, table, method, epsilon)
            ]
            values = [min(value, 2.0) for value, _ in points]
            heights = [height for _, height in points]
            axis.plot(values, heights, marker, ls="", label=method, fillstyle="none")
        axis.axvline(1.0, color="grey", lw=0.8)
        axis.set(title=f"ε = {epsilon:g}", xlim=(0.0, 2.05), xlabel="log loss / base rate's")
        axis.set_xticks([0.0, 0.5, 1.0, 1.5, 2.0], ["0", "0.5", "1", "1.5", "≥ 2"])
        axis.grid(axis="y", lw=0.3)
    panels[0].set_yticks(range(len(tables)), tables)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=8)
    return figure


def _relative(found: dict[str, Any], table: str, method: str, epsilon: float) -> float:
    ours, base = (
        cell_of(found, table, name, epsilon)["log_loss"] for name in (method, "base rate")
    )
    return float(mean(ours) / mean(base))


def _seconds(model: Any, X: Array, y: Array) -> float:
    reuse._cached_plan.cache_clear()  # every fit that is timed makes its own plan
    start = time.perf_counter()
    model.fit(X, y)
    return time.perf_counter() - start


def _numbers(n: int, features: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (n, features))
    effects = 3.0 * 0.8 ** np.arange(features)
    return X, (rng.random(n) < 1.0 / (1.0 + np.exp(1.0 - X @ effects))).astype(int)


def speeds() -> dict[str, Any]:
    """Return the seconds of alternating fits at ε = 1 and the ratios of their medians."""
    torch.set_num_threads(THREADS)
    public: Any = {"epsilon": 1.0, "delta": 1e-6, "feature_bounds": (-1, 1), "classes": [0, 1]}
    pairs: dict[str, tuple[Any, Any, Any, float]] = {
        "linear, 200,000 × 30": (
            _numbers(200_000, 30),
            lambda seed: PrivateLogisticRegression(**public, random_state=seed),
            lambda _: LogisticRegression(),
            5.0,
        ),
        "MLP, 20,000 × 16": (
            _numbers(20_000, 16),
            lambda seed: PrivateMLPClassifier(**public, random_state=seed),
            lambda seed: PrivateLogisticRegression(**public, random_state=seed),
            20.0,
        ),
    }
    found: dict[str, Any] = {}
    for name, (data, ours, other, most) in pairs.items():
        with threadpool_limits(THREADS):
            rounds = [(_seconds(ours(i), *data), _seconds(other(i), *data)) for i in range(ROUNDS)]
        seconds = [median(each) for each in zip(*rounds, strict=True)]
        ratio = seconds[0] / seconds[1]
        found[name] = {"hit": ratio <= most, "ratio": ratio, "goal": most, "seconds": rounds}
        print(report({name: found[name]}), flush=True)
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="dither's estimators on tables against peers.")
    parser.add_argument("--tables", nargs="+", choices=[*TABLES], default=[*TABLES])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[*SEEDS])
    parser.add_argument("--rows", type=Path, default=ROWS, help="file of the rows measured so far")
    parser.add_argument("--again", action="store_true", help="measure the chosen rows anew")
    parser.add_argument("--speed", action="store_true", help="measure the time of fits only")
    return parser.parse_args()


def main() -> None:
    """Measure what is asked for, print it, and write the record once everything is there."""
    chosen = _options()
    if chosen.speed:
        speeds()
        return
    measure(chosen)
    rows = read(chosen.rows)
    found = grouped(rows)
    print(markdown(found))
    reached = {method: goals(found, method) for method in DITHER}
    for method, about in reached.items():
        print(f"\n{method}\n{report(about)}")
    everything = argparse.Namespace(tables=TABLES, methods=METHODS, epsilons=EPSILONS, seeds=SEEDS)
    missing = sum(key not in rows for key in cells(everything))
    if missing:
        print(f"no record: {missing} rows are missing")
        return
    save_figure(picture(found), RESULTS / "tables.png")
    results = {"peers": REQUIREMENTS, "goals": reached, "tables": found, "speed": speeds()}
    command = f"{Path(sys.executable).name} -m benchmarks.tables"
    record("tables", command, ("torch", "numpy", "pandas", "scikit-learn"), results)


if __name__ == "__main__":
    main()
