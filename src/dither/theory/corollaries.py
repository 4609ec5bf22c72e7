"""What follows from the convergence theorem for 1/√t, constant and reactive step sizes."""

import math

from numpy.typing import ArrayLike

from dither import validate
from dither.theory.utility import AdpAndDp, Problem, UtilityBound

# The powers and logarithms below are good to about 1e-14 each, at exponents of up to 300.
_ROUNDING = 1e-12


def decaying_bounds(
    problem: Problem,
    steps: int,
    *,
    a: float,
    c: float,
    epsilon: float,
    delta: float,
    scale: float = 1.0,
) -> AdpAndDp:
    """Return the bounds for η_t = η/√(a + c·(t+1)), matched and uniform noise.

    With B_T = log(1 + T·c/a), both have √c·(D_F/η + η·G²·L·B_T/(2c))/√(T−1), to which privacy
    adds η·d·L·(16G)²·B_δ/(n²ε²·√c) times √T for ADP-SGD, and times B_T·(√(T−1) + 1)/2 for
    DP-SGD: shaping saves the logarithm.

    Corrected: the ADP bound is the appendix's; the main text has half of it, which the proof
    does not give.

    Args:
        problem: L, D_F, d, C_G, n and m.
        steps: T, at least 5 + 4·a/c.
        a: positive.
        c: positive.
        epsilon: ε, positive.
        delta: δ, in (0, 1).
        scale: η, positive.

    Returns:
        Both bounds.

    Example:
        >>> problem = Problem(dimension=1000, smoothness=1.0, initial_gap=2.0, clip_norm=1.0,
        ...                   dataset_size=50_000, batch_size=256)
        >>> both = decaying_bounds(problem, 10_000, a=20.0, c=1.0, epsilon=8.0, delta=1e-5)
        >>> round(both.dp.noise / both.adp.noise, 3)
        3.139

    Reference: propositions 5.1 and D.1 of the paper.
    """
    validate.instance(Problem, problem=problem)
    a, c, eta = validate.positive(a=a), validate.positive(c=c), validate.positive(scale=scale)
    T = validate.steps_at_least(5.0 + 4.0 * a / c, "5 + 4·a/c", steps)
    L, G = problem.smoothness, problem.clip_norm
    log_T = math.log1p(T * c / a)
    gain = problem.initial_gap / eta + eta * G**2 * L * log_T / (2.0 * c)
    optimization = math.sqrt(c / (T - 1)) * gain
    variance = problem.theorem_variance(T, epsilon=epsilon, delta=delta)
    unit = eta * problem.dimension * L * variance / math.sqrt(c)
    return AdpAndDp(
        adp=UtilityBound(optimization, unit * math.sqrt(T)),
        dp=UtilityBound(optimization, unit * log_T * (math.sqrt(T - 1) + 1.0) / 2.0),
    )


def constant_bound(
    problem: Problem,
    steps: int,
    *,
    epsilon: float,
    delta: float,
    stepsize: float | None = None,
) -> UtilityBound:
    """Return the bound for a constant step size η and uniform noise.

    2·D_F/(η·T) + η·L·G²·(1 + d·16²·B_δ·T/(n²ε²)), which is twice what `utility_bound` gives.

    Corrected: with η = 1/√T the paper's noise term L·(16G)²·B_δ·√T/(n²ε²) has lost its d.

    Args:
        problem: L, D_F, d, C_G, n and m.
        steps: T.
        epsilon: ε, positive.
        delta: δ, in (0, 1).
        stepsize: η, positive; by default 1/√T.

    Returns:
        A `UtilityBound`.

    Example:
        >>> problem = Problem(dimension=1000, smoothness=1.0, initial_gap=2.0, clip_norm=1.0,
        ...                   dataset_size=50_000, batch_size=256)
        >>> bound = constant_bound(problem, 10_000, epsilon=8.0, delta=1e-5)
        >>> round(bound.optimization, 4), round(bound.noise, 4)
        (0.05, 0.0342)

    Reference: proposition A.1 of the paper.
    """
    T = validate.count(steps=steps)
    validate.instance(Problem, problem=problem)
    eta = 1.0 / math.sqrt(T) if stepsize is None else validate.positive(stepsize=stepsize)
    L = problem.smoothness
    variance = problem.theorem_variance(T, epsilon=epsilon, delta=delta)
    return UtilityBound(
        optimization=2.0 * problem.initial_gap / (eta * T) + eta * L * problem.clip_norm**2,
        noise=eta * L * problem.dimension * variance * T,
    )


def best_steps(problem: Problem, *, epsilon: float, delta: float) -> int:
    """Return T_opt, the number of steps that makes `constant_bound` with η = 1/√T smallest.

    In s = √T the bound is A/s + B·s·log(16·s²·m/(n·δ)), which is convex, so that its one minimum
    is the root of a monotone derivative.

    Corrected: the paper's closed form C_1·(2D_F + L·G²)·n²ε²/(d·L·G²·log(1/δ)) treats B_δ as a
    constant, but it depends on T, so that the minimum is found numerically.

    Args:
        problem: L, D_F, d, C_G, n and m.
        epsilon: ε, positive.
        delta: δ, in (0, 1).

    Returns:
        T_opt, at least 1.

    Example:
        >>> problem = Problem(dimension=1000, smoothness=1.0, initial_gap=2.0, clip_norm=1.0,
        ...                   dataset_size=50_000, batch_size=256)
        >>> best_steps(problem, epsilon=8.0, delta=1e-5)
        12999

    Reference: appendix A of the paper, after proposition A.1.
    """
    from scipy.optimize import brentq

    validate.instance(Problem, problem=problem)
    epsilon, delta = validate.positive(epsilon=epsilon), validate.probability(delta=delta)
    ratio = problem.batch_size / (problem.dataset_size * delta)
    fewest = math.floor(1.0 / (12.8 * ratio)) + 1
    while not delta < 12.8 * fewest * problem.batch_size / problem.dataset_size:
        fewest += 1
    A = 2.0 * problem.initial_gap + problem.smoothness * problem.clip_norm**2
    B = math.log(1.25 / delta) * problem.dimension * problem.smoothness
    B *= (16.0 * problem.clip_norm / (problem.dataset_size * epsilon)) ** 2

    def slope(log_T: float) -> float:
        return B * (math.log(16.0 * ratio) + log_T + 2.0) - A * math.exp(-log_T)

    low = math.log(fewest)
    if slope(low) >= 0.0:
        return fewest
    high = low + 1.0
    while slope(high) < 0.0:
        high += high - low
    root = math.exp(brentq(slope, low, high, xtol=1e-15))

    def bound(T: int) -> float:
        return constant_bound(problem, T, epsilon=epsilon, delta=delta).total

    return min((max(math.floor(root), fewest), math.ceil(root)), key=bound)


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


def power_sum_bounds(steps: int, a: float, c: float, power: float) -> tuple[float, float]:
    """Return a lower and an upper bound on Σ_{t=1…T} (a + c·t)^(−p), in constant time.

    The summand falls, so that the sum lies between its integrals from 1 to T+1 and from 0 to T:
    with x = a/c, ((x+1+T)^(1−p) − (x+1)^(1−p))/((1−p)·c^p) and
    ((x+T)^(1−p) − x^(1−p))/((1−p)·c^p), or their logarithmic limits at p = 1. The differences
    of powers are computed by expm1, which also makes p close to 1 harmless; both bounds are rounded
    outwards.

    Args:
        steps: T.
        a: positive.
        c: positive.
        power: p, from 0 to 5. The paper has p ≤ 1; the same integrals hold above.

    Returns:
        (lower, upper).

    Example:
        >>> lower, upper = power_sum_bounds(100, a=20.0, c=1.0, power=0.5)
        >>> round(lower, 4), round(upper, 4)
        (12.8348, 12.9646)

    Reference: lemma E.2 of the paper.
    """
    T = validate.count(steps=steps)
    a, c = validate.positive(a=a), validate.positive(c=c)
    p = validate.nonnegative(power=power)
    if p > 5.0:
        raise validate.InvalidValueError(f"power must be at most 5, got {power!r}")
    lower, upper = _integral(a + c, c, T, p), _integral(a, c, T, p)
    return lower * (1.0 - _ROUNDING), upper * (1.0 + _ROUNDING)


def logarithmic_sum_bound(values: ArrayLike) -> float:
    """Return log(Σ a_i) + 1, which is at least Σ_ℓ a_ℓ/Σ_{i≤ℓ} a_i if a_1 ≥ 1.

    Args:
        values: a_1 … a_T, positive, with a_1 at least 1.

    Returns:
        The bound.

    Example:
        >>> round(logarithmic_sum_bound([1.0, 1.0, 1.0]), 4)
        2.0986

    Reference: lemma E.3 of the paper.
    """
    a = validate.positives(values=values)
    if a[0] < 1.0:
        raise validate.InvalidValueError(f"values[0] must be at least 1, got {a[0]!s}")
    return math.log(math.fsum(a)) + 1.0


def _integral(start: float, c: float, T: int, p: float) -> float:
    """Return ∫ (start + c·u)^(−p) du from 0 to T."""
    growth = math.log1p(c * T / start)
    if p == 1.0:
        return growth / c
    power: float = start ** (1.0 - p)
    return power / c * math.expm1((1.0 - p) * growth) / (1.0 - p)
