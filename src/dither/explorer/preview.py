"""Preview a plan in a fraction of a second: an estimate to look at, without any guarantee.

It is the pld accountant's integral for δ(ε), on one coarse grid of frequencies for uniform, matched
and optimal noise; correlated noise takes longer to find, and is in exact plans only. The transforms
of single steps are tabulated for some noise multipliers and interpolated, and a run is composed of
some hundred steps, each of which represents its neighbours. The errors are small on a screen and
not bounded: the ε of a plan never comes from here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dither import validate
from dither.accounting import pld
from dither.accounting.calibration import central_limit_log_scale
from dither.accounting.curve import Curve, TooFineError
from dither.accounting.steps import SampledSteps, Steps
from dither.accounting.transform import distance_between, transforms
from dither.explorer.settings import Settings
from dither.noise import Optimal
from dither.noise.iterates import iterate_variances
from dither.noise.optimal import MarginalCost
from dither.planning.planner import compare
from dither.types import Budget, FloatArray, rounded

_POINTS = 240
_KNOTS = 33
_SMOOTHING = 0.4
_PREFIXES = 25
_ROUNDS = 3
_MAX_FREQUENCIES = 160
_CUT = 5.0
_PROBES = 7
_CLOSE = 2e-3
_FLOOR = Optimal().floor


@dataclass(frozen=True)
class Preview:
    """Noise at some of the steps, and ε spent up to them.

    Attributes:
        knots: the indices of the steps, from 0.
        noise_multipliers: z of these steps, approximately.
        numbers: numbers of steps.
        spent: ε after these numbers of steps, approximately.
    """

    knots: np.ndarray
    noise_multipliers: FloatArray
    numbers: FloatArray
    spent: FloatArray

    def expanded(self, steps: int) -> FloatArray:
        """Return z of every step, approximately."""
        at = np.log(self.noise_multipliers)
        return np.asarray(np.exp(np.interp(np.arange(steps), self.knots, at)))


def previews(stepsizes: FloatArray, budget: Budget) -> Mapping[str, Preview]:
    """Return approximate uniform, matched and optimal noise for a budget, in that order."""
    T = stepsizes.size
    knots = _knots(T)
    eta, counts = stepsizes[knots], _counts(knots, T)
    shapes = {"uniform": np.ones(knots.size), "matched": np.sqrt(eta.max() / eta)}
    guesses = {
        name: shape
        * math.exp(central_limit_log_scale(np.repeat(shape, counts.astype(np.intp)), budget))
        for name, shape in shapes.items()
    }
    run = _Run(_Grid.around(guesses, counts, budget), counts, budget)
    found = {name: guess * run.scale(guess) for name, guess in guesses.items()}
    found["optimal"] = run.optimal(Optimal().weights(eta), found["uniform"])
    return {name: run.preview(knots, z) for name, z in found.items()}


def preview(settings: Settings) -> dict[str, Any]:
    """Return approximate curves of independent noise, quickly, and the code of the plan."""
    eta = settings.rates()
    answer: dict[str, Any] = {
        "steps": settings.steps,
        "sample_rate": settings.batch_size / settings.dataset_size,
        "python": settings.python(),
    }
    try:
        found = previews(eta, settings.budget)
    except (validate.InvalidValueError, TooFineError) as problem:
        return {**answer, "curves": {}, "note": f"There is no preview of this setting: {problem}"}
    uniform = found["uniform"].expanded(eta.size)
    curves = {}
    for name, quick in found.items():
        z = quick.expanded(eta.size)
        curves[name] = {
            **noise_curves(eta, z, quick.knots),
            "spent": [[0, 0.0], *spent_points(quick.numbers, quick.spent)],
            "comparison": comparison(eta, z, uniform),
        }
    if settings.noise == "correlated":
        answer["note"] = "Correlated noise has no preview: it comes with the exact plan."
    return {**answer, "curves": curves}


def some_steps(T: int) -> np.ndarray:
    """Return the indices of steps to draw, denser at the start and the end."""
    even, early = np.linspace(0, T - 1, _POINTS), np.geomspace(1, T, _POINTS // 4) - 1
    return np.unique(np.concatenate([even, early, T - 1 - early]).round().astype(np.intp))


def noise_curves(
    eta: FloatArray,
    z: FloatArray,
    at: np.ndarray,
    correlation: tuple[float, ...] | None = None,
) -> dict[str, Any]:
    """Return the curves of z and of the standard deviation of the iterates, at some steps."""
    deviations = np.sqrt(iterate_variances(eta, z, correlation=correlation))
    return {"noise": _points(at + 1, z[at]), "iterate_noise": _points(at + 1, deviations[at])}


def spent_points(t: np.ndarray, epsilons: FloatArray) -> list[list[float]]:
    """Return pairs of t and ε, rounded up to as many digits as the page shows."""
    return [
        [int(number), float(rounded(value, 4))] for number, value in zip(t, epsilons, strict=True)
    ]


def comparison(
    eta: FloatArray,
    z: FloatArray,
    uniform: FloatArray,
    correlation: tuple[float, ...] | None = None,
) -> dict[str, float | None]:
    """Return `compare`, with None for what is not finite."""
    values = compare(eta, z, uniform=uniform, correlation=correlation)
    return {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in values.items()
    }


def _points(t: np.ndarray, values: FloatArray) -> list[list[float]]:
    """Return pairs in six digits, more than a screen shows."""
    return [[int(number), float(f"{value:.6g}")] for number, value in zip(t, values, strict=True)]


def _knots(T: int) -> np.ndarray:
    """Return the steps that represent all: evenly spread, denser at the start and the end."""
    even, early = np.linspace(0, T - 1, 2 * _KNOTS), np.geomspace(1, T, _KNOTS) - 1
    return np.unique(np.concatenate([even, early, T - 1 - early]).round().astype(np.intp))


def _counts(knots: np.ndarray, T: int) -> FloatArray:
    """Return how many steps are nearest to each knot."""
    borders = np.concatenate([[0], (knots[1:] + knots[:-1] + 1) // 2, [T]])
    return np.diff(borders).astype(np.float64)


@dataclass(frozen=True)
class _Grid:
    """Frequencies, and transforms M(θ + iω) of one step at some noise multipliers.

    Attributes:
        tilt: θ.
        omega: the frequencies.
        payoff: weights of the sum for δ(0), with the smoothing.
        sensitivity: of the sum, in clip norms.
        mus: sensitivity over noise at the nodes, increasing.
        logs: log M there, a row for each node.
        jumps: M at the next node over M here, less 1.
    """

    tilt: float
    omega: FloatArray
    payoff: np.ndarray
    sensitivity: float
    mus: FloatArray
    logs: np.ndarray
    jumps: np.ndarray

    @classmethod
    def around(
        cls, guesses: Mapping[str, FloatArray], counts: FloatArray, budget: Budget
    ) -> "_Grid":
        """Return a grid like the accountant's for uniform and matched noise of this size."""
        reach, q = pld.sensitivity(budget.sampling), budget.sample_rate
        kind = pld.KINDS[budget.sampling][0]
        runs = [_in_few_groups(reach / z, counts, q) for z in guesses.values()]
        tilt, spacing, tau = _frequencies(runs, budget)
        # Coarser smoothing instead of more frequencies.
        tau = max(tau, _CUT / (spacing * _MAX_FREQUENCIES))
        omega = spacing * np.arange(0.0, math.ceil(_CUT / tau / spacing) + 2)
        s = tilt + 1j * omega
        weight = np.where(omega == 0.0, 0.5, 1.0) * spacing / math.pi
        payoff = weight * np.exp(0.5 * tau * tau * s * (s + 1.0)) / (s * (s + 1.0))
        mu = reach / float(guesses["uniform"][0])
        strongest = max(min(2.0 * mu, reach / _FLOOR), *(reach / z.min() for z in guesses.values()))
        mus = _nodes(mu, strongest)
        found = transforms(mus, q, tilt, spacing, omega.size, kind)
        logs = _log1p(found.excess)
        # The phase of a strong step may wrap around; from node to node it changes little.
        logs = logs.real + 1j * np.unwrap(logs.imag, axis=0) + found.log_moment[:, None]
        return cls(tilt, omega, payoff, reach, mus, logs, np.expm1(np.diff(logs, axis=0)))

    def log_transforms(self, z: FloatArray) -> np.ndarray:
        """Return log M(θ + iω) of one step of each noise multiplier.

        Between two nodes it is that of a mixture of them, as in `dither.accounting.buckets`; beyond
        the nodes it goes like 1/z².
        """
        mu = self.sensitivity / z
        inside = np.clip(mu, self.mus[0], self.mus[-1])
        at = np.clip(np.searchsorted(self.mus, inside) - 1, 0, self.mus.size - 2)
        here, there = self.mus[at], self.mus[at + 1]
        share = distance_between(inside, here) / distance_between(there, here)
        logs = self.logs[at] + _log1p(share[:, None] * self.jumps[at])
        return np.asarray(logs * ((mu / inside) ** 2)[:, None])


def _in_few_groups(mus: FloatArray, counts: FloatArray, q: float) -> SampledSteps:
    """Return the run with neighbouring steps replaced by the one with the least noise."""
    groups = np.array_split(np.arange(mus.size), 8 if mus.min() < mus.max() else 1)
    parts = [group for group in groups if group.size]
    strongest = np.array([mus[part].max() for part in parts])
    return SampledSteps(((Steps(strongest, np.array([counts[part].sum() for part in parts])), q),))


def _frequencies(runs: list[SampledSteps], budget: Budget) -> tuple[float, float, float]:
    """Return a tilt, a spacing of frequencies and a smoothing that serve all of the runs.

    Heavy tails need a low tilt, light ones little smoothing.
    """
    found = []
    for run in runs:
        curve = Curve(run, pld.KINDS[budget.sampling][0], smoothing=_SMOOTHING)
        epsilon, theta = curve.chernoff(budget.delta)
        tilt, period = curve.tilt_and_period(epsilon, math.log(budget.delta) - 4.0, theta)
        found.append((tilt, 2.0 * math.pi / period, theta * max(epsilon / budget.epsilon, 1.0)))
    tilt, spacing, _ = min(found)
    scale = max(scale for _, _, scale in found)
    return tilt, spacing, min(_SMOOTHING / math.sqrt(scale * (scale + 1.0)), 1.0)


def _nodes(mu: float, strongest: float) -> FloatArray:
    """Return nodes around μ of uniform noise: dense where noise is small."""
    nodes = [mu / 15.0]
    while nodes[-1] < strongest:
        width = 0.3 if nodes[-1] < mu / 3.0 else max(0.1 / (1.0 + 0.3 * nodes[-1] ** 2), 0.05)
        nodes.append(nodes[-1] * math.exp(width))
    return np.array(nodes)


def _log1p(excess: np.ndarray) -> np.ndarray:
    """Return log(1 + excess); numpy's own loses small real parts."""
    x, y = excess.real, excess.imag
    size = 0.5 * np.log1p(np.maximum(2.0 * x + x * x + y * y, -1.0 + 1e-15))
    return np.asarray(size + 1j * np.arctan2(y, 1.0 + x))


@dataclass(frozen=True)
class _Run:
    """Steps of unequal noise on a grid, each of which represents several."""

    grid: _Grid
    counts: FloatArray
    budget: Budget

    def epsilons(self, log_transforms: np.ndarray) -> FloatArray:
        """Return ε(δ), approximately, for each row, the transform of a run."""
        size = log_transforms[:, 0].real
        waves = np.exp(log_transforms - size[:, None]) * self.grid.payoff
        target = math.log(self.budget.delta) - size
        low, high = np.zeros(size.size), np.full(size.size, 4.0 * self.budget.epsilon)
        for _ in range(16):
            middle = 0.5 * (low + high)
            turned = (waves * np.exp(-1j * middle[:, None] * self.grid.omega)).real.sum(axis=1)
            above = np.log(np.maximum(turned, 1e-300)) - self.grid.tilt * middle > target
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        return np.asarray(0.5 * (low + high))

    def scale(self, shape: FloatArray, floor: float = 0.0) -> float:
        """Return c such that noise c·shape costs the budget, approximately."""
        least = math.log(pld.least_noise(self.budget.sampling) / float(shape.min()))
        log_c, slope, before = max(0.0, least), -1.3, (math.nan, math.nan)
        for _ in range(_PROBES):
            z = np.maximum(shape * math.exp(log_c), floor)
            cost = self.epsilons((self.counts @ self.grid.log_transforms(z))[None])[0]
            excess = math.log(cost / self.budget.epsilon)
            if abs(excess) < _CLOSE:
                break
            if abs(before[0] - log_c) > 1e-9:
                slope = min(max((excess - before[1]) / (log_c - before[0]), -8.0), -0.3)
            before = log_c, excess
            log_c = max(log_c + min(max(excess / -slope, -0.5), 0.5), least)
        return math.exp(log_c)

    def optimal(self, weights: FloatArray, uniform: FloatArray) -> FloatArray:
        """Return noise whose marginal cost is, at every step, proportional to its weight.

        As in `dither.noise.Optimal`, with the slopes of the table.
        """
        z, floor = uniform, _FLOOR
        if z[0] <= floor:
            return z
        for _ in range(_ROUNDS):
            cost = self._marginal(z, floor)
            shape = np.sqrt(_stationary_noise(cost, weights, self.counts, z * z))
            shape = np.maximum(z * np.clip(shape / z, 0.25, 10.0), floor)
            z = np.maximum(shape * self.scale(shape, floor), floor)
        return z

    def preview(self, knots: np.ndarray, z: FloatArray) -> Preview:
        """Return the noise, and the approximate cost of some of its prefixes."""
        each = self.grid.log_transforms(z) * self.counts[:, None]
        some = np.unique(np.linspace(0, z.size - 1, _PREFIXES).round().astype(np.intp))
        spent = np.maximum.accumulate(self.epsilons(np.cumsum(each, axis=0)[some]))
        return Preview(knots, z, np.cumsum(self.counts)[some], spent)

    def _marginal(self, z: FloatArray, floor: float) -> MarginalCost:
        total = self.counts @ self.grid.log_transforms(z)
        turned = np.exp(total - total[0].real - 1j * self.grid.omega * self.budget.epsilon)
        waves = turned * self.grid.payoff
        reach, mus = self.grid.sensitivity, self.grid.mus
        at = np.geomspace(max(reach / mus[-1], floor), reach / mus[0], 97)
        value = (self.grid.log_transforms(at) @ waves).real / waves.real.sum()
        log_s, log_value = 2.0 * np.log(at), np.log(np.maximum(value, 1e-300))
        steepness = -np.gradient(log_value, log_s, edge_order=2)
        log_slope = log_value + np.log(np.maximum(steepness, 1e-6)) - log_s
        return MarginalCost(log_s, log_value, np.maximum.accumulate(log_slope[::-1])[::-1])


def _stationary_noise(
    cost: MarginalCost, w: FloatArray, counts: FloatArray, s: FloatArray
) -> FloatArray:
    """Return s_t with w_t = λ·slope(s_t) that cost, to first order, what the given ones cost."""
    target = float(counts @ cost.value(s))
    low = math.log(w.min()) - float(cost.log_slope[0]) - 5.0
    high = math.log(w.max()) - float(cost.log_slope[-1]) + 80.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        total = float(counts @ cost.value(cost.where_slope_is(w * math.exp(-middle))))
        low, high = (middle, high) if total > target else (low, middle)
    return cost.where_slope_is(w * math.exp(-high))
