"""Variances of the iterates, against the matrices that they come from."""

import numpy as np
import pytest

from dither.noise import Correlated
from dither.noise.correlated import Design, error
from dither.noise.iterates import iterate_variances

T = 300


def random_steps() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.uniform(0.2, 2.0, T), rng.uniform(0.5, 3.0, T)


def variances_by_matrices(
    eta: np.ndarray, z: np.ndarray, theta: tuple[float, ...], contraction: float
) -> np.ndarray:
    """Return the variances of A·diag(z)·B⁻¹·ξ, row by row."""
    B = np.zeros((T, T))
    for t in range(T):
        column = np.array(theta)[: T - t]
        B[t : t + column.size, t] = column / np.linalg.norm(column)
    A, row = np.zeros((T, T)), np.zeros(T)
    for t in range(T):
        row = (1.0 - contraction * eta[t] / eta.max()) * row
        row[t] = eta[t]
        A[t] = row
    return np.asarray(np.square(A @ np.diag(z) @ np.linalg.inv(B)).sum(axis=1))


@pytest.mark.parametrize("theta", [(1.0,), (1.0, 0.5), (1.0, 0.6, 0.4, 0.3, 0.1)])
@pytest.mark.parametrize("contraction", [0.0, 0.03, 0.9])
def test_variances_are_those_of_the_matrices(theta: tuple[float, ...], contraction: float) -> None:
    eta, z = random_steps()
    correlation = None if len(theta) == 1 else theta
    found = iterate_variances(eta, z, correlation=correlation, contraction=contraction)
    expected = variances_by_matrices(eta, z, theta, contraction)
    # Sums of at most T² products of numbers of the same order.
    assert found == pytest.approx(expected, rel=T**2 * np.finfo(float).eps)


@pytest.mark.parametrize("theta", [(1.0,), (1.0, 0.6, 0.4)])
def test_their_mean_is_what_correlated_noise_minimises(theta: tuple[float, ...]) -> None:
    eta, z = random_steps()
    found = iterate_variances(eta, z, correlation=None if len(theta) == 1 else theta)
    expected = error(Correlated().workload(eta), Design(z, theta)) * eta.max() ** 2
    assert np.mean(found) == pytest.approx(expected, rel=1e-9)


def test_correlation_matters() -> None:
    eta, z = np.ones(T), np.ones(T)
    independent = iterate_variances(eta, z)
    correlated = iterate_variances(eta, z, correlation=(1.0, 0.6, 0.4))
    assert correlated.mean() < 0.8 * independent.mean()


@pytest.mark.parametrize("contraction", [0.0, 0.03, 0.5, 0.999])
def test_long_runs_neither_underflow_nor_lose_digits(contraction: float) -> None:
    steps = 5_000
    eta, z = np.linspace(1.0, 0.01, steps), np.linspace(0.5, 3.0, steps)
    variance, expected = 0.0, []
    for k, g in zip(1.0 - contraction * eta, eta * z, strict=True):
        variance = k**2 * variance + g**2
        expected.append(variance)
    found = iterate_variances(eta, z, contraction=contraction)
    assert found == pytest.approx(expected, rel=1e-12)


def test_fewer_steps_than_bands() -> None:
    # Of 2 steps: ξ_0·√1.25 after the first, and (ξ_1 − ξ_0/2) + ξ_0·√1.25 after the second.
    found = iterate_variances(np.ones(2), np.ones(2), correlation=(1.0, 0.5, 0.3), contraction=0.0)
    first = np.sqrt(1.25)
    assert found == pytest.approx([first**2, 1.0 + (first - 0.5) ** 2])
