"""The convergence theorem simplified: step sizes like 1/√t, and a constant one."""

import math

from dither import validate
from dither.theory.utility import AdpAndDp, Problem, UtilityBound


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
