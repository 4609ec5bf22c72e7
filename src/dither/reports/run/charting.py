"""What is drawn of a run, as data: noise, noise that reaches the parameters, ε, accuracy, more."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dither.reports.run.judging import Files
from dither.reports.run.report import Chart, Claim, Point, Series
from dither.types import rounded

_MOST_POINTS = 400
_STEPS = "steps (number)"


def charts_of(
    files: Files, history: Sequence[Point], claim: Claim, audits: Sequence[dict[str, Any]]
) -> tuple[Chart, ...]:
    """Return the charts for which the folder has numbers."""
    made = (
        _noise(files),
        _reaching(files, history),
        _spending(files, history, claim),
        _quality(history, "accuracy", "accuracy on public data (%)", 100.0)
        or _quality(history, "loss", "loss on public data (mean of a record)", 1.0),
        _audit(audits),
        _ledger(files),
    )
    return tuple(chart for chart in made if chart is not None)


def _series(name: str, x: Sequence[float] | Any, y: Sequence[float] | Any) -> Series:
    """Return a line of not too many points, the first and the last among them."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    kept = np.unique(np.linspace(0, x.size - 1, min(_MOST_POINTS, x.size)).round().astype(int))
    return Series(name, tuple(x[kept].tolist()), tuple(y[kept].tolist()))


def _paid(files: Files) -> np.ndarray[Any, np.dtype[np.float64]]:
    run = None if files.booked is None else files.booked.run
    return np.asarray([] if run is None else run.spent, np.float64)


def _noise(files: Files) -> Chart | None:
    paid, plan = _paid(files), None if files.planned is None else files.planned.plan
    planned = np.zeros(0) if plan is None else plan.noise_multipliers
    if not paid.any() and not planned.any():
        return None
    lines = []
    if paid.any():
        lines.append(_series("paid for", np.arange(1, paid.size + 1), paid))
    if planned.any() and not np.array_equal(paid, planned):
        lines.append(_series("planned", np.arange(1, planned.size + 1), planned))
    z = paid if paid.any() else planned
    words = (
        f"Noise multiplier of each step, as {lines[0].name}: {z[0]:.4g} in the first and "
        f"{z[-1]:.4g} in the last of {z.size:,} steps, at least {z.min():.4g} and at most "
        f"{z.max():.4g}."
    )
    return Chart(
        "noise", "Noise in each step", _STEPS, "noise multiplier z (clip norms)", tuple(lines),
        words, is_log=True,
    )  # fmt: skip


def _reaching(files: Files, history: Sequence[Point]) -> Chart | None:
    """Return η_t·C·z_t/m, from the plan if the run kept to it, else where it was recorded."""
    planned, paid = files.planned, _paid(files)
    if planned is None or not planned.has_noise or not math.isfinite(planned.clip_norm):
        return None
    scale = planned.clip_norm / planned.batch_size
    plan = planned.plan
    if plan is not None and np.array_equal(paid, plan.noise_multipliers[: paid.size]):
        taken = paid.size or plan.steps
        y = scale * plan.stepsizes[:taken] * plan.noise_multipliers[:taken]
        line = _series("noise", np.arange(1, taken + 1), y)
    else:
        known = [p for p in history if p.stepsize is not None and p.noise_multiplier is not None]
        if not known:
            return None
        found = [scale * (p.stepsize or 0.0) * (p.noise_multiplier or 0.0) for p in known]
        line = _series("noise", [p.step for p in known], found)
    words = (
        "Standard deviation of the noise that a step adds to each parameter, step size times clip "
        f"norm times noise multiplier divided by the batch size: {line.y[0]:.3g} at step "
        f"{int(line.x[0]):,}, {line.y[-1]:.3g} at step {int(line.x[-1]):,}. An optimizer's own "
        "learning rate, momentum or scaling comes on top."
    )
    return Chart(
        "reaching", "Noise that reaches the parameters", _STEPS,
        "η·C·z/m (units of a parameter)", (line,), words, is_log=True,
    )  # fmt: skip


def _spending(files: Files, history: Sequence[Point], claim: Claim) -> Chart | None:
    bound, run = claim.bound, None if files.booked is None else files.booked.run
    if bound is None or run is None or not math.isfinite(bound.epsilon):
        return None
    plan, paid = None if files.planned is None else files.planned.plan, _paid(files)
    if plan is not None and np.array_equal(paid, plan.noise_multipliers[: paid.size]) and paid.size:
        knots, spent = plan.spending()
        kept = knots <= paid.size
        x, y = knots[kept].astype(float), spent[kept]
        if x[-1] < paid.size:
            counted = bound if claim.counted is None else claim.counted
            x, y = np.append(x, paid.size), np.append(y, counted.epsilon)
    else:
        known = [p for p in history if p.epsilon is not None]
        x = np.array([0.0, *(p.step for p in known)])
        y = np.array([0.0, *(p.epsilon or 0.0 for p in known)])
        if x[-1] == paid.size and claim.counted is not None:  # a file says no less than the ledger
            y[-1] = max(y[-1], claim.counted.epsilon)
    if x.size < 2:
        return None
    budget = run.entry.epsilon
    words = (
        f"ε spent, rising to {rounded(float(y[-1]), 4)} after {int(x[-1]):,} steps; the plan's "
        f"budget is ε = {rounded(budget, 4)}."
    )
    return Chart(
        "spending", "Privacy spent against the budget", _STEPS,
        f"ε spent (no unit), at δ = {rounded(bound.delta, 3)}", (_series("spent", x, y),), words,
        limit=("budget of the plan", budget), is_privacy=True,
    )  # fmt: skip


def _quality(history: Sequence[Point], metric: str, name: str, scale: float) -> Chart | None:
    def line(label: str, of: Callable[[Point], dict[str, float]]) -> Series | None:
        known = [p for p in history if metric in of(p)]
        if not known:
            return None
        return _series(label, [p.step for p in known], [scale * of(p)[metric] for p in known])

    averaged = line("with averaging", lambda point: point.metrics)
    last = line("last iterate", lambda point: point.iterate_metrics)
    if averaged is None:
        return None
    lines = (averaged, last) if last is not None else (Series("measured", averaged.x, averaged.y),)
    ends = ", ".join(f"{each.y[-1]:.4g} ({each.name})" for each in lines)
    words = f"{name[0].upper()}{name[1:]} over the steps; at the last of them {ends}."
    title = "Accuracy" if metric == "accuracy" else "Loss"
    return Chart("quality", title, _STEPS, name, lines, words)


def _audit(audits: Sequence[dict[str, Any]]) -> Chart | None:
    if not audits:
        return None
    last = audits[-1]
    curves = last["curves"]
    x = [100.0 * each for each in curves["false_positives"] or []]
    if not x:
        return None
    lines = [_series("the attack", x, [100.0 * each for each in curves["true_positives"]])]
    if curves["allowed"] is not None:
        allowed = [100.0 * each for each in curves["allowed"]]
        lines.append(_series("what the claim allows", x, allowed))
    lines.append(Series("guessing", (0.0, 100.0), (0.0, 100.0)))
    return Chart(
        "audit", "The last attack", "false positive rate (% of canaries that were out)",
        "true positive rate (% of those in)", tuple(lines), last["verdict"], is_square=True,
    )  # fmt: skip


def _ledger(files: Files) -> Chart | None:
    booked = files.booked
    if booked is None or booked.summary is None or len(booked.together) < 2:
        return None
    alone = [run["epsilon"] for run in booked.summary["runs"]]
    if None in alone or not all(map(math.isfinite, booked.together)):
        return None
    x, cap = range(1, len(alone) + 1), booked.summary["cap"]
    delta = rounded(booked.summary["delta"], 3)
    words = (
        f"ε of {len(alone)} runs on the same data, in the order in which they were registered: "
        f"all together {rounded(booked.together[-1], 4)}."
    )
    return Chart(
        "ledger", "All runs on this data", "runs (number, as registered)",
        f"ε (no unit), at δ = {delta}",
        (_series("all runs up to it", x, booked.together), _series("the run alone", x, alone)),
        words, limit=None if cap is None else ("cap", cap["epsilon"]), is_privacy=True,
    )  # fmt: skip
