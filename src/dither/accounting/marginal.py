"""What a little more noise at one step saves: the slope of the accountant's cost.

To first order, changing the noise of single steps changes log δ(ε) by Σ (V(z′_t²) − V(z_t²)), where
V(z²) is the functional behind δ applied to the logarithm of a step's transform. `marginal_cost`
tabulates V; allocations are found from it.
"""

import math
from dataclasses import dataclass

import numpy as np

from dither.accounting import pld
from dither.accounting.steps import Sampled, Steps
from dither.accounting.transform import log_moments, transforms
from dither.types import FloatArray


@dataclass(frozen=True)
class MarginalCost:
    """V over z², tabulated, with its derivative; beyond the table V falls like 1/z².

    Attributes:
        log_s: log z² at the nodes, increasing.
        log_value: log V there.
        log_slope: log(−dV/d(z²)) there, never rising.
    """

    log_s: FloatArray
    log_value: FloatArray
    log_slope: FloatArray

    def value(self, s: FloatArray) -> FloatArray:
        """Return V(z²) at s = z²."""
        x = np.log(s)
        beyond = np.maximum(x - self.log_s[-1], 0.0)
        return np.asarray(np.exp(np.interp(x, self.log_s, self.log_value) - beyond))

    def slope(self, s: FloatArray) -> FloatArray:
        """Return −dV/d(z²) at s = z²."""
        x = np.log(s)
        beyond = np.maximum(x - self.log_s[-1], 0.0)
        return np.asarray(np.exp(np.interp(x, self.log_s, self.log_slope) - 2.0 * beyond))

    def where_slope_is(self, slope: FloatArray) -> FloatArray:
        """Return the s = z² at which −dV/d(z²) has the given value, at least the first node's."""
        y = np.log(slope)
        beyond = np.maximum(self.log_slope[-1] - y, 0.0)
        return np.asarray(np.exp(np.interp(-y, -self.log_slope, self.log_s) + 0.5 * beyond))


def marginal_cost(
    noise_multipliers: FloatArray,
    *,
    sample_rate: float,
    epsilon: float,
    delta: float,
    sampling: str,
    accountant: str,
    floor: float,
) -> MarginalCost:
    """Tabulate what noise saves, for a run with the given noise and a target (ε, δ).

    ``pld`` and ``rdp`` use the direction of the neighbouring relation that costs more; ``rdp`` uses
    its best order, where V is the step's log-moment; the central limit costs e^(1/z²) − 1 a step,
    and the paper's bounds 1/z².
    """
    reach = pld.sensitivity(sampling)
    least = max(floor, 0.25 * float(noise_multipliers.min()))
    low, high = math.log(least), math.log(max(40.0 * reach, 4.0 * least))
    z = np.exp(np.linspace(low, high, 97))
    s = z * z
    if accountant in ("pld", "rdp") and sample_rate < 1.0:
        steps = pld.reduced(noise_multipliers, sampling, 0.03)
        value = _functional(steps, reach / z, sample_rate, epsilon, delta, sampling, accountant)
    else:
        value = np.expm1(1.0 / s) if accountant == "gdp" and sample_rate < 1.0 else 1.0 / s
    log_s, log_value = np.log(s), np.log(value)
    steepness = -np.gradient(log_value, log_s, edge_order=2)
    log_slope = log_value + np.log(np.maximum(steepness, 1e-6)) - log_s
    # More noise saves less and less. Enforced from the side of large noise, where the table is
    # surest: far below the run's own noise the first order means little.
    log_slope = np.maximum.accumulate(log_slope[::-1])[::-1]
    return MarginalCost(log_s, log_value, log_slope)


def _functional(
    steps: Steps,
    mus: FloatArray,
    q: float,
    epsilon: float,
    delta: float,
    sampling: str,
    accountant: str,
) -> FloatArray:
    """Return V at every μ: by how much log δ(ε) grows with one more such step."""
    run = Sampled(((steps, q),))
    curves = [pld.Curve(run, kind, smoothing=0.15) for kind in pld.KINDS[sampling]]
    starts = [curve.chernoff(delta)[1] for curve in curves]
    by_moments = [
        curve.chernoff_delta(epsilon, start) for curve, start in zip(curves, starts, strict=True)
    ]
    worst = max(range(len(curves)), key=lambda i: by_moments[i][0])
    curve, kind, theta = curves[worst], pld.KINDS[sampling][worst], by_moments[worst][1]
    if accountant == "rdp":
        return log_moments(mus, q, theta, kind)
    integral = curve.integral(epsilon, delta, theta, theta)
    tilt, spacing, number = integral.grid
    found = transforms(mus, q, tilt, spacing, number, kind)
    log_m, ratios = found.log_moment, 1.0 + found.excess
    # A step far stronger than the run's own has a transform that vanishes at distant nodes.
    ratios[np.abs(ratios) < 1e-150] = 1e-150
    # From node to node the phase turns little, so that the logarithm of a quotient is unambiguous;
    # that of a strong step's transform itself is not.
    quotients = np.log(ratios[:-1] / ratios[1:]) + (log_m[:-1] - log_m[1:])[:, None]
    last = np.log(ratios[-1:]) + log_m[-1]
    values = integral.first_order(epsilon, np.concatenate([quotients, last]))
    return np.maximum(np.cumsum(values[::-1])[::-1], 1e-300)
