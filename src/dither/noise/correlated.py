"""Noise that is correlated between steps, so that later steps cancel part of earlier noise.

Step t adds z_t·w_t, where B·w = ξ for independent standard normals ξ and a lower-triangular B with
b bands and unit columns: B[t + s, t] = θ_s/ν_t, ν_t² = θ_0² + … over the rows that there are. In a
stream, u_t = ξ_t − Σ_{s=1}^{b−1} θ_s·u_{t−s} and w_t = ν_t·u_t.

For privacy the records must take turns, in b random subsets (`dither.accounting.cyclic`): each is
then drawn more often from its own steps, which costs noise. Whether correlation gains more than
that is decided here, for a model of what noise does to a run (`dither.noise.workload`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, final

import numpy as np
from numpy.typing import ArrayLike

from dither import validate
from dither.accounting.calibration import calibrate
from dither.accounting.cyclic import cycle_rate
from dither.noise.optimal import Optimal
from dither.noise.workload import Workload, filtered
from dither.types import Budget, FloatArray

CANDIDATES = (2, 4, 8, 16)
"""Numbers of bands that ``bands="auto"`` tries."""

_HEADROOM = 1.3
_WORTHWHILE = 0.9
"""Less of the error of optimal noise must be left: a smaller gain was seen to cost accuracy, since
the first models have more noise than with optimal noise."""
_CLOSE = 1.05
"""Candidates whose error with uniform noise is this close to the least get a schedule each."""
_LAGS = 1024
_TAIL = 1e3
_LARGEST_INVERSE = 1e3
_SCALE = 20.0
"""Of the variables of the search, whose first step has length 1."""


class Design(NamedTuple):
    """Correlated noise for given step sizes.

    Attributes:
        alphas: the noise multipliers, one per step and the same within a cycle.
        coefficients: θ_0 = 1 … θ_{b−1}.
    """

    alphas: FloatArray
    coefficients: tuple[float, ...]


@final
@dataclass(frozen=True)
class Correlated:
    """Noise that later steps partly cancel: banded matrix factorization with a noise schedule.

    It minimises the mean over all iterates of the variance that noise gives to them, where descent
    draws the parameters back by (1 − λ·η_t) per step. Correlated noise makes most sense where the
    noise multiplier of uniform noise is below 1: small batches or a large ε.

    Args:
        bands: b, the number of steps after which noise is independent again, at least 2 and at
            most n/m, with a warning where optimal or uniform noise is better; "auto" is the best
            of 2, 4, 8 and 16, or ``optimal`` noise where that is better.
        momentum: β of the optimizer, in [0, 1).
        contraction: λ times the largest step size, in [0, 1).

    Example:
        >>> budget = Budget(epsilon=8.0, delta=1e-5, sample_rate=0.01)
        >>> design = Correlated(bands=2).design(np.linspace(1.0, 0.1, 100), budget=budget)
        >>> len(design.coefficients), bool(design.alphas[0] < design.alphas[-1])
        (2, True)
    """

    bands: int | str = "auto"
    momentum: float = 0.0
    contraction: float = 0.03

    def __post_init__(self) -> None:
        """Check the parameters."""
        if self.bands != "auto":
            whole = isinstance(self.bands, int | np.integer) and not isinstance(self.bands, bool)
            if not whole or int(self.bands) < 2:
                raise validate.InvalidValueError(
                    f'bands must be "auto" or an integer of at least 2, got {self.bands!r}'
                )
            object.__setattr__(self, "bands", int(self.bands))
        for name in ("momentum", "contraction"):
            value = validate.nonnegative(**{name: getattr(self, name)})
            if value >= 1.0:
                raise validate.InvalidValueError(f"{name} must be below 1, got {value!r}")
            object.__setattr__(self, name, value)

    @property
    def fallback(self) -> Optimal:
        """The noise to take where correlation does not pay."""
        return Optimal(momentum=self.momentum)

    def design(self, stepsizes: ArrayLike, *, budget: Budget) -> Design | None:
        """Return the bands and the noise that meet the budget, up to a scale very close to 1.

        None if "auto" finds that correlation does not pay.

        Args:
            stepsizes: η_0 … η_{T−1}.
            budget: ε, δ and q of the run.
        """
        eta, q = validate.positives(stepsizes=stepsizes), budget.sample_rate
        budget = replace(budget, sampling="poisson")
        given = isinstance(self.bands, int)
        most = min(eta.size, math.floor(1.0 / q + 1e-9))
        tried = (self.bands,) if isinstance(self.bands, int) else CANDIDATES
        if given and tried[0] > most:
            raise validate.InvalidValueError(
                f"bands must be at most n/m = {1.0 / q:.6g} and at most the number of steps, "
                f"{eta.size}, got {self.bands}"
            )
        uniform = {
            b: calibrate(np.ones(-(-eta.size // b)), _per_cycle(budget, b), accuracy=0.01)
            for b in (1, *tried)
            if b <= most
        }
        # Of unit columns, no b bands reduce the error more than b times.
        headroom = {b: b * (uniform[1] / z) ** 2 for b, z in uniform.items() if b > 1}
        if not given and max(headroom.values(), default=0.0) < _HEADROOM:
            return None
        workload = self.workload(eta)
        H = _gram(workload, np.ones(eta.size))
        found = {b: _coefficients(H, b) for b in headroom if given or headroom[b] > 1.0}
        errors = {b: uniform[b] ** 2 * least for b, (_, least) in found.items()}
        close = [b for b in found if errors[b] <= _CLOSE * min(errors.values())]
        designs = [
            each
            for each in (_shaped(workload, found[b][0], budget) for b in close)
            if _largest_inverse(each.coefficients, eta.size) <= _LARGEST_INVERSE
        ]
        if not designs:
            return None
        design = min(designs, key=lambda each: error(workload, each))
        reached, optimal = error(workload, design), self._error_of_optimal(workload, eta, budget)
        if given:
            z = calibrate(np.ones(eta.size), budget)
            usual = error(workload, Design(np.full(eta.size, z), (1.0,)))
            if reached > min(optimal, usual):
                validate.warn(
                    f"correlated noise of {self.bands} bands gives the iterates "
                    f"{reached / usual:.3g} times the variance that uniform noise does, and "
                    f'optimal noise {optimal / usual:.3g} times: take noise="optimal", or '
                    'bands="auto"'
                )
        return design if given or reached < _WORTHWHILE * optimal else None

    def workload(self, stepsizes: FloatArray, lags: int = _LAGS) -> Workload:
        """Return what noise does to a run with these step sizes."""
        return Workload.of(
            stepsizes, momentum=self.momentum, contraction=self.contraction, lags=lags
        )

    def _error_of_optimal(self, workload: Workload, eta: FloatArray, budget: Budget) -> float:
        return error(workload, Design(self.fallback.alphas(eta, budget=budget), (1.0,)))


def error(workload: Workload, design: Design) -> float:
    """Return the mean over the iterates of the variance that noise gives to each coordinate.

    >>> workload = Workload.of(np.ones(3), momentum=0.0, contraction=0.0, lags=3)
    >>> round(error(workload, Design(np.ones(3), (1.0,))), 9)  # of 1, 2 and 3 steps
    2.0
    """
    scale = design.alphas * column_norms(design.coefficients, workload.steps)
    return float(scale @ workload.pull(scale, inverse(design.coefficients, workload.lags)))


def column_norms(coefficients: tuple[float, ...], steps: int) -> FloatArray:
    """Return ν_t of every step, smaller for the last ones, whose columns are cut off.

    >>> column_norms((1.0, 0.75), 3)
    array([1.25, 1.25, 1.  ])
    """
    squares = np.cumsum(np.square(coefficients))
    rows = np.minimum(np.arange(steps, 0, -1), squares.size)
    return np.asarray(np.sqrt(squares[rows - 1]))


def inverse(coefficients: tuple[float, ...], size: int) -> FloatArray:
    """Return the first coefficients of 1/θ(x).

    >>> inverse((1.0, 0.5), 4)
    array([ 1.   , -0.5  ,  0.25 , -0.125])
    """
    return filtered(coefficients, np.eye(1, size)[0])


def check_coefficients(correlation: ArrayLike, steps: int) -> tuple[float, ...]:
    """Return coefficients θ if they are bands that noise of that many steps can be computed with.

    Where 1/θ(x) grows, the noise would lose its last digits, and privacy with them.
    """
    theta = validate.numbers(correlation=correlation)
    if theta.ndim != 1 or theta.size < 2 or theta[0] != 1.0:
        raise validate.InvalidValueError(
            "correlation must be at least two numbers, the first of them 1, got "
            f"{np.asarray(correlation).tolist()!r}"
        )
    coefficients = tuple(theta.tolist())
    size = _largest_inverse(coefficients, steps)
    if not size <= _LARGEST_INVERSE:
        raise validate.InvalidValueError(
            "correlation must have an inverse that does not grow, got "
            f"{theta.tolist()!r}, whose inverse reaches {size:.3g}"
        )
    return coefficients


def _largest_inverse(coefficients: tuple[float, ...], steps: int) -> float:
    return float(np.max(np.abs(inverse(coefficients, max(_LAGS, steps)))))


def _per_cycle(budget: Budget, bands: int) -> Budget:
    """Return the budget of one subset's steps."""
    return replace(budget, sample_rate=cycle_rate(budget.sample_rate, bands))


def _shaped(workload: Workload, coefficients: tuple[float, ...], budget: Budget) -> Design:
    """Return a noise schedule for coefficients, and coefficients that suit it better.

    Doing so again and again would gain less than a percent.
    """
    bands, norms = len(coefficients), column_norms(coefficients, workload.steps)
    firsts = np.arange(0, workload.steps, bands)
    weights = norms * workload.pull(norms, inverse(coefficients, workload.lags))
    weights = np.add.reduceat(weights, firsts)
    weights = np.maximum(weights, 1e-12 * float(weights.max()))
    z = Optimal().alphas(np.sqrt(weights), budget=_per_cycle(budget, bands))
    alphas = np.repeat(z, bands)[: workload.steps]
    return Design(alphas, _coefficients(_gram(workload, alphas), bands, coefficients)[0])


def _gram(workload: Workload, scale: FloatArray) -> FloatArray:
    """Return H for the search, which makes r die out before the lags end, if they are not all."""
    H = workload.gram(scale)
    if workload.lags < workload.steps:
        tail = np.arange(workload.lags - workload.lags // 8, workload.lags)
        H[tail, tail] += _TAIL * H[0, 0]
    return H


def _coefficients(
    H: FloatArray, bands: int, start: tuple[float, ...] | None = None
) -> tuple[tuple[float, ...], float]:
    """Return the coefficients with the smallest ‖θ‖²·rᵀHr, r = 1/θ(x), and that minimum."""
    from scipy.optimize import minimize

    # (1 − x)^(−1/2), the best without bands for a plain sum.
    k = np.arange(1, bands)
    first = np.cumprod((2.0 * k - 1.0) / (2.0 * k)) if start is None else np.array(start[1:])
    found = minimize(_log_error(H, bands), _SCALE * first, jac=True, method="L-BFGS-B")
    return (1.0, *(found.x / _SCALE).tolist()), math.exp(found.fun)


def _log_error(H: FloatArray, bands: int) -> Callable[[FloatArray], tuple[float, FloatArray]]:
    """Return the function that the search minimises, of the scaled θ_1 … θ_{b−1}."""
    size = len(H)

    def log_error(x: FloatArray) -> tuple[float, FloatArray]:
        theta = np.array([1.0, *(x / _SCALE)])
        r = inverse(tuple(theta), size)
        if not np.max(np.abs(r)) < _LARGEST_INVERSE:  # the line search went too far
            return _LARGEST_INVERSE, np.zeros(x.size)
        pulled, square = H @ r, float(theta @ theta)
        value = float(r @ pulled)
        # The derivative of r by θ_k is −r·r, k places later.
        product = filtered(theta, r)
        slope = np.array([-2.0 * pulled[k:] @ product[: size - k] for k in range(1, bands)])
        gradient = slope / value + 2.0 * theta[1:] / square
        return math.log(square * value), gradient / _SCALE

    return log_error
