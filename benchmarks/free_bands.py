"""How far the coefficients of correlated noise are from bands that are all free.

B is lower triangular with b bands and unit columns, otherwise any matrix: b·T numbers, found by
L-BFGS on dense matrices from several starts, then with noise multipliers for these bands.
"""

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import minimize

from dither.accounting.calibration import calibrate
from dither.noise import Optimal
from dither.noise.correlated import Design
from dither.noise.workload import Workload
from dither.types import Budget, FloatArray

ITERATIONS = 100


def free_error(workload: Workload, design: Design, budget: Budget) -> float:
    """Return the error of free bands, and noise for them that costs as much as the design's.

    Args:
        workload: with all its lags.
        design: its noise and bands are the first start.
        budget: that of one subset, which steps with the design's noise cost exactly.
    """
    W = dense(workload)
    b, T = len(design.coefficients), workload.steps
    bands = np.tile(design.coefficients, (T, 1))
    k = np.arange(1, b)
    rooted = np.tile(np.cumprod([1.0, *((2.0 * k - 1.0) / (2.0 * k))]), (T, 1))
    random = np.random.default_rng(0)
    starts = (bands, rooted, bands * np.exp(0.3 * random.standard_normal((T, b))))
    z = design.alphas
    least, bands = min((_search(W, z, start) for start in starts), key=lambda found: found[0])
    weights = np.add.reduceat(W * _covariance(bands) @ z / z, np.arange(0, T, b))
    per_cycle = Optimal().alphas(np.sqrt(weights), budget=budget)
    per_cycle *= calibrate(per_cycle, budget, accuracy=2e-4, start=1.0)
    return min(least, _search(W, np.repeat(per_cycle, b)[:T], bands)[0])


def dense(workload: Workload) -> FloatArray:
    """Return W as a matrix."""
    W = np.zeros((workload.steps, workload.steps))
    for lag, diagonal in enumerate(workload.diagonals()):
        index = np.arange(diagonal.size)
        W[index, index + lag] = W[index + lag, index] = diagonal
    return W


def _matrix(bands: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return B, and the norms of its columns before they were divided by them."""
    T, b = bands.shape
    B = sum(np.diag(bands[: T - s, s], -s) for s in range(b))
    norms = np.linalg.norm(B, axis=0)
    return np.asarray(B / norms), norms


def _covariance(bands: FloatArray) -> FloatArray:
    inverse = solve_triangular(_matrix(bands)[0], np.eye(len(bands)), lower=True)
    return np.asarray(inverse @ inverse.T)


def _search(W: FloatArray, z: FloatArray, start: FloatArray) -> tuple[float, FloatArray]:
    T, b = start.shape
    scaled, identity = W * np.outer(z, z), np.eye(T)
    rows = np.arange(T)[:, None] + np.arange(b)
    inside = rows < T
    rows = np.minimum(rows, T - 1)
    columns = np.broadcast_to(np.arange(T)[:, None], (T, b))

    def log_error(x: FloatArray) -> tuple[float, FloatArray]:
        bands = x.reshape(T, b)
        B, norms = _matrix(bands)
        inverse = solve_triangular(B, identity, lower=True)
        pulled = inverse.T @ scaled @ inverse
        error = float(np.trace(pulled))
        # The derivative of tr(B⁻ᵀ·S·B⁻¹) by B is −2·B⁻ᵀ·S·B⁻¹·B⁻ᵀ.
        slope = -2.0 * solve_triangular(B, pulled, lower=True).T
        gradient = np.where(inside, slope[rows, columns], 0.0)
        unit = np.where(inside, bands, 0.0) / norms[:, None]
        gradient -= np.sum(gradient * unit, axis=1, keepdims=True) * unit
        return float(np.log(error)), (gradient / norms[:, None] / error).ravel()

    found = minimize(
        log_error,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": ITERATIONS, "maxcor": 30, "ftol": 1e-13, "gtol": 1e-9},
    )
    return float(np.exp(found.fun)), found.x.reshape(T, b)
