"""Utility where the step sizes react to the gradients: b_{t+1}² = b_t² + max(‖g_t‖², ν)."""

import math

from dither import validate
from dither.theory.utility import AdpAndDp, Problem, UtilityBound


def adaptive_utility_bound(
    problem: Problem,
    steps: int,
    *,
    expected_cost: float,
    b0_squared: float,
    nu: float,
    epsilon: float,
    delta: float,
    scale: float = 1.0,
) -> UtilityBound:
    """Return the bound for step sizes η/b_{t+1} that react to the gradients.

    With E[M] the expectation of Σ(α_t/b_t)²·Σ1/α_t² it is
    2√2·G/√(T−1)·(B_sgd + η·d·L·(16G)²·B_δ·E[M]/(2n²ε²)), where
    B_sgd = D_F/η + (2G + η·L/2)·(1 + log(1 + T·(G² + ν)/b_0²)).

    This is a statement on utility alone. The rule reads the *raw* gradient, and the paper's
    privacy proof does not cover that.

    Corrected: the proof uses b_k + G ≤ √(b_0² + (k+1)·G²), which is false; b_k + G ≤
    √2·√(b_0² + (k+1)·G²) is right, hence √2. ν lies in (0, G²], not (0, G], and enters the
    logarithm as itself, not as its square.

    Args:
        problem: L, D_F, d, C_G, n and m.
        steps: T, at least 5 + 4·b_0²/G².
        expected_cost: E[M], positive.
        b0_squared: b_0², positive.
        nu: ν, in (0, G²].
        epsilon: ε, positive.
        delta: δ, in (0, 1).
        scale: η, positive.

    Returns:
        A `UtilityBound`.

    Example:
        >>> problem = Problem(dimension=1000, smoothness=1.0, initial_gap=2.0, clip_norm=1.0,
        ...                   dataset_size=50_000, batch_size=256)
        >>> bound = adaptive_utility_bound(problem, 10_000, expected_cost=2e4, b0_squared=20.0,
        ...                                nu=0.5, epsilon=8.0, delta=1e-5)
        >>> round(bound.optimization, 4), round(bound.noise, 4)
        (0.5955, 0.0968)

    Reference: theorem D.1 of the paper.
    """
    validate.instance(Problem, problem=problem)
    M, eta = validate.positive(expected_cost=expected_cost), validate.positive(scale=scale)
    L, G = problem.smoothness, problem.clip_norm
    b0_squared = validate.positive(b0_squared=b0_squared)
    T = validate.steps_at_least(5.0 + 4.0 * b0_squared / G**2, "5 + 4·b0_squared/clip_norm²", steps)
    nu = validate.positive(nu=nu)
    if nu > G**2:
        raise validate.InvalidValueError(f"nu must be at most clip_norm² = {G**2:.6g}, got {nu!r}")
    log_T = math.log1p(T * (G**2 + nu) / b0_squared)
    sgd = problem.initial_gap / eta + (2.0 * G + 0.5 * eta * L) * (1.0 + log_T)
    variance = problem.theorem_variance(T, epsilon=epsilon, delta=delta)
    prefactor = 2.0 * math.sqrt(2.0) * G / math.sqrt(T - 1)
    return UtilityBound(
        optimization=prefactor * sgd,
        noise=prefactor * 0.5 * eta * problem.dimension * L * variance * M,
    )


def adaptive_bounds(
    problem: Problem,
    steps: int,
    *,
    b0_squared: float,
    nu: float,
    epsilon: float,
    delta: float,
    scale: float = 1.0,
) -> AdpAndDp:
    """Return the bounds for reactive step sizes, with growth-bound and with uniform noise.

    With α_t² = √(b_0² + t·C), for any C in [ν, G²], the cost M is at most 4T/ν; with α = 1 it is
    at most T/ν·log(1 + T·ν/b_0²). In `adaptive_utility_bound` that gives the noise terms
    1024·√2·G³·η·d·L·B_δ·T/(n²ε²·ν·√(T−1)) and the same with 256 and the logarithm.

    Corrected: the statement's 128 and 32 are not what its proof gives, and log²(1.25/δ) in the
    appendix stands for B_δ. Everything said at `adaptive_utility_bound` applies.

    Args:
        problem: L, D_F, d, C_G, n and m.
        steps: T, at least 5 + 4·b_0²/G².
        b0_squared: b_0², positive.
        nu: ν, in (0, G²].
        epsilon: ε, positive.
        delta: δ, in (0, 1).
        scale: η, positive.

    Returns:
        Both bounds.

    Example:
        >>> problem = Problem(dimension=1000, smoothness=1.0, initial_gap=2.0, clip_norm=1.0,
        ...                   dataset_size=50_000, batch_size=256)
        >>> both = adaptive_bounds(problem, 10_000, b0_squared=20.0, nu=0.5,
        ...                        epsilon=8.0, delta=1e-5)
        >>> round(both.dp.noise / both.adp.noise, 3)
        1.381

    Reference: propositions 5.2 and D.2 of the paper.
    """
    T, floor = validate.count(steps=steps), validate.positive(nu=nu)
    log_T = math.log1p(T * floor / validate.positive(b0_squared=b0_squared))

    def theorem(cost: float) -> UtilityBound:
        return adaptive_utility_bound(
            problem,
            T,
            expected_cost=cost,
            b0_squared=b0_squared,
            nu=floor,
            epsilon=epsilon,
            delta=delta,
            scale=scale,
        )

    return AdpAndDp(adp=theorem(4.0 * T / floor), dp=theorem(T / floor * log_T))
