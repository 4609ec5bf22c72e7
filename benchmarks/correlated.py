"""Correlated noise against uniform noise at equal ε: part of `benchmarks.shaping`.

Cosine step sizes, δ = 1e-5, 60,000 records, the default design. The error is the mean over the
iterates of the variance that noise gives to them, for a plain sum of steps ("mean") and where
descent draws the parameters back ("contraction 0.03", the model of the design).
"""

import time
import warnings
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.progress import track

import dither
from benchmarks.free_bands import free_error
from dither import Plan, accounting
from dither.noise import Correlated
from dither.noise.correlated import CANDIDATES, Design, error
from dither.schedules import Cosine
from dither.types import Budget

DELTA, RECORDS = 1e-5, 60_000
EPSILONS = (0.3, 1.0, 3.0, 8.0)
DATA = ((64, 600), (256, 600), (256, 2_000), (1_024, 600), (4_096, 300))
FREE = ((256, 600, 1.0), (1_024, 600, 8.0), (256, 600, 8.0))  # 4, 8 and 16 bands
GOALS = {(256, 600, 1.0): (0.50, 0.60), (1_024, 600, 8.0): (0.45, 0.55)}
LIMITS = {600: 10.0, 2_000: 10.0, 10_000: 60.0}  # steps, and seconds that a design may take
CONTRACTIONS = {"mean": 0.0, "contraction 0.03": 0.03}
SCHEDULE = Cosine(1.0, 1e-3)


def made(batch_size: int, steps: int, epsilon: float, noise: Any, **more: Any) -> Plan:
    """Return a plan."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # where it falls back to optimal noise
        plan: Plan = dither.plan(
            epsilon=epsilon,
            delta=DELTA,
            dataset_size=RECORDS,
            batch_size=batch_size,
            steps=steps,
            noise=noise,
            **more,
        )
    return plan


def error_of(plan: Plan, contraction: float) -> float:
    """Return the plan's error, with all lags of the workload."""
    workload = Correlated(contraction=contraction).workload(plan.stepsizes, plan.steps)
    return error(workload, Design(plan.noise_multipliers, plan.correlation or (1.0,)))


def headroom(batch_size: int, steps: int, epsilon: float) -> dict[str, float]:
    """Return b·(z_1/z_b)²: by how much b bands can reduce the error at the most."""
    first = made(batch_size, steps, epsilon, "uniform").noise_multipliers[0]
    found = {}
    for b in CANDIDATES:
        if b * batch_size <= RECORDS:
            z = made(b * batch_size, -(-steps // b), epsilon, "uniform").noise_multipliers[0]
            found[str(b)] = round(float(b * (first / z) ** 2), 3)
    return found


def spread(plan: Plan) -> float:
    """Return by how much ε of the cheapest subset is below that of the dearest, relatively."""
    steps = {plan.noise_multipliers[j :: plan.bands].tobytes() for j in range(plan.bands)}
    found = [
        accounting.epsilon(np.frombuffer(z), sample_rate=plan.charge_rate, delta=DELTA).epsilon
        for z in steps
    ]
    return 1.0 - min(found) / max(found)


def cell(batch_size: int, steps: int, epsilon: float) -> dict[str, Any]:
    """Return the errors of optimal and correlated noise relative to that of uniform noise."""
    plans = {
        name: made(batch_size, steps, epsilon, name, stepsizes=SCHEDULE)
        for name in ("uniform", "optimal", "correlated")
    }
    found: dict[str, Any] = {"bands": plans["correlated"].bands}
    for workload, contraction in CONTRACTIONS.items():
        errors = {name: error_of(plan, contraction) for name, plan in plans.items()}
        for name in ("optimal", "correlated"):
            found[f"{name}, {workload}"] = round(errors[name] / errors["uniform"], 4)
    found["spread of the subsets' ε"] = round(spread(plans["correlated"]), 5)
    found["headroom"] = headroom(batch_size, steps, epsilon)
    return found


def against_free_bands(batch_size: int, steps: int, epsilon: float) -> float:
    """Return the design's error relative to that of bands that are all free."""
    plan = made(batch_size, steps, epsilon, "correlated", stepsizes=SCHEDULE)
    assert plan.correlation is not None  # noqa: S101 - for mypy
    design = Design(plan.noise_multipliers, plan.correlation)
    workload = Correlated().workload(plan.stepsizes, steps)
    budget = Budget(plan.bound.epsilon, DELTA, plan.charge_rate)
    return error(workload, design) / free_error(workload, design, budget)


def seconds(steps: int) -> float:
    """Return how long a design takes: the slower of two ε, median of three."""
    found = []
    for epsilon in (1.0, 8.0):
        times = []
        for _ in range(3):
            start = time.perf_counter()
            Correlated().design(
                SCHEDULE.stepsizes(steps), budget=Budget(epsilon, DELTA, 256 / RECORDS)
            )
            times.append(time.perf_counter() - start)
        found.append(median(times))
    return max(found)


def label(batch_size: int, steps: int, epsilon: float) -> str:
    """Return the name of a cell."""
    return f"q={batch_size:,}/60k, T={steps:,}, ε={epsilon:g}"


def measure() -> dict[str, Any]:
    """Return all figures of correlated noise, and print the goals beside them."""
    found: dict[str, Any] = {"design seconds": {}, "cells": {}, "times free bands": {}}
    for steps, most in LIMITS.items():
        found["design seconds"][str(steps)] = round(seconds(steps), 2)
        print(f"design, T={steps:,}: {found['design seconds'][str(steps)]} s, at most {most:g} s")
    grid = [(m, steps, epsilon) for m, steps in DATA for epsilon in EPSILONS]
    for setting in track(grid, "correlated"):
        found["cells"][label(*setting)] = result = cell(*setting)
        print(label(*setting), result, f"goals {GOALS.get(setting, '–')}")
    # The worst for subsets: no decay, and a last cycle of 8 steps for 16 subsets.
    uneven = spread(made(256, 600, 8.0, Correlated(bands=16)))
    found["spread of the subsets' ε, constant step sizes"] = round(uneven, 5)
    print(f"ε of the subsets, constant step sizes: within {100.0 * uneven:.2f} %, at most 0.5 %")
    for setting in track(FREE, "free bands"):
        ratio = round(against_free_bands(*setting), 4)
        found["times free bands"][label(*setting)] = ratio
        print(f"{label(*setting)}: {ratio} times the error of free bands, at most 1.02")
    return found


def draw(cells: dict[str, Any]) -> Figure:
    """Draw a heat map: optimal and correlated noise relative to uniform noise."""
    figure = Figure(figsize=(13.0, 3.6), layout="constrained")
    panels = [
        f"{noise}, {workload}" for workload in CONTRACTIONS for noise in ("optimal", "correlated")
    ]
    for axes, key in zip(figure.subplots(1, 4, sharey=True), panels, strict=True):
        rows = [[cells[label(*data, eps)] for eps in EPSILONS] for data in DATA]
        values = np.array([[each[key] for each in row] for row in rows])
        axes.imshow(values, cmap="RdBu_r", vmin=0.0, vmax=2.0, aspect="auto")
        axes.set(title=key, xlabel="ε", xticks=range(len(EPSILONS)), yticks=range(len(DATA)))
        axes.set_xticklabels([f"{eps:g}" for eps in EPSILONS])
        axes.set_yticklabels([f"q={m:,}/60k, T={steps:,}" for m, steps in DATA])
        for (i, j), value in np.ndenumerate(values):
            bands = f"\nb = {rows[i][j]['bands']}" if key.startswith("correlated") else ""
            ink = "white" if value < 0.4 else "black"
            axes.text(j, i, f"{value:.2f}{bands}", ha="center", va="center", fontsize=8, color=ink)
    return figure


if __name__ == "__main__":
    measure()
