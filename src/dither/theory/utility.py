"""The convergence theorem: how small a gradient a run reaches, and what its noise adds."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dither import validate
from dither.theory.privacy import adp_sigma, b_delta
from dither.types import FloatArray


@dataclass(frozen=True)
class Problem:
    """What the utility bounds need to know of the problem and of the data.

    F has an L-Lipschitz gradient, the records' gradients are at most G = C_G long (so that
    clipping changes nothing), and the records of a step give an unbiased gradient.

    Attributes:
        dimension: d, the number of parameters.
        smoothness: L, positive.
        initial_gap: D_F = F(θ_0) − F*, at least 0.
        clip_norm: C_G = G, positive.
        dataset_size: n.
        batch_size: m, at most n.

    Example:
        >>> Problem(dimension=1000, smoothness=1.0, initial_gap=2.0, clip_norm=1.0,
        ...         dataset_size=50_000, batch_size=256).batch_size
        256
    """

    dimension: int
    smoothness: float
    initial_gap: float
    clip_norm: float
    dataset_size: int
    batch_size: int

    def __post_init__(self) -> None:
        """Check every field."""
        m, n = validate.batch_within(batch_size=self.batch_size, dataset_size=self.dataset_size)
        checked = {
            "dimension": validate.count(dimension=self.dimension),
            "smoothness": validate.positive(smoothness=self.smoothness),
            "initial_gap": validate.nonnegative(initial_gap=self.initial_gap),
            "clip_norm": validate.positive(clip_norm=self.clip_norm),
            "dataset_size": n,
            "batch_size": m,
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def theorem_variance(self, steps: int, *, epsilon: float, delta: float) -> float:
        """Return (16G)²·B_δ/(n²ε²): the privacy theorem's σ² but for its factor Σ1/α²."""
        B = b_delta(steps, dataset_size=self.dataset_size, batch_size=self.batch_size, delta=delta)
        epsilon = validate.positive(epsilon=epsilon)
        return B * (16.0 * self.clip_norm / (self.dataset_size * epsilon)) ** 2


@dataclass(frozen=True)
class UtilityBound:
    """An upper bound on min_t E‖∇F(θ_t)‖², in its two parts.

    Attributes:
        optimization: what plain SGD has as well.
        noise: what privacy adds.

    Example:
        >>> UtilityBound(optimization=0.25, noise=0.5).total
        0.75
    """

    optimization: float
    noise: float

    @property
    def total(self) -> float:
        """The bound itself."""
        return self.optimization + self.noise

    def __float__(self) -> float:
        return self.total


@dataclass(frozen=True)
class AdpAndDp:
    """The bounds of ADP-SGD (shaped noise) and DP-SGD (uniform noise) side by side.

    Example:
        >>> both = AdpAndDp(adp=UtilityBound(0.2, 0.1), dp=UtilityBound(0.2, 0.3))
        >>> both.dp.total > both.adp.total
        True
    """

    adp: UtilityBound
    dp: UtilityBound


def utility_bound(
    problem: Problem,
    stepsizes: ArrayLike,
    *,
    alphas: ArrayLike | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multipliers: ArrayLike | None = None,
    sampling: str = "fixed",
) -> UtilityBound:
    """Return the convergence theorem's bound.

    min_t E‖∇F(θ_t)‖² ≤ (D_F + L/2·Σ η_t²·E‖g_t‖² + L·d/2·Σ η_t²·s_t²)/Σ η_t, where s_t is the
    standard deviation of the noise on the mean gradient. With η_t = η/b_{t+1}, s_t = α_t·σ and
    the theorem's σ it is 1/Σ(1/b)·(D_F/η + η·L/2·Σ E‖g_t‖²/b² + η·L·d·(16G)²·B_δ·M/(2n²ε²)).

    Corrected: the main text's prefactor 1/Σb is the appendix's 1/Σ(1/b), and the noise term has
    the factor η·L which the proof has and the statement has lost.

    Args:
        problem: L, D_F, d, C_G, n and m.
        stepsizes: η_0 … η_{T−1}, positive and fixed in advance.
        alphas: α_1 … α_T, positive; with ``epsilon`` and ``delta`` the noise is the theorem's.
        epsilon: ε of the theorem's noise.
        delta: δ of the theorem's noise.
        noise_multipliers: z_0 … z_{T−1} from any accountant, at least 0, in place of the three
            above: s_t = C_G·z_t/m.
        sampling: "fixed" (m records: E‖g‖² ≤ G²) or, with noise multipliers, "poisson" (m
            expected, and divided by: E‖g‖² ≤ G²·(1 + (1 − m/n)/m)).

    Returns:
        A `UtilityBound`.

    Example:
        >>> problem = Problem(dimension=10, smoothness=1.0, initial_gap=2.0, clip_norm=1.0,
        ...                   dataset_size=1000, batch_size=10)
        >>> bound = utility_bound(problem, [0.1] * 100, noise_multipliers=[1.0] * 100)
        >>> round(bound.optimization, 6), round(bound.noise, 6)
        (0.25, 0.005)

    Reference: theorems 4.2 and C.2 of the paper.
    """
    validate.instance(Problem, problem=problem)
    eta = validate.positives(stepsizes=stepsizes)
    m, n, G = problem.batch_size, problem.dataset_size, problem.clip_norm
    spread = 0.0
    if validate.choice(("fixed", "poisson"), sampling=sampling) == "poisson":
        spread = (1.0 - m / n) / m
    if sampling == "poisson" and noise_multipliers is None:
        raise validate.InvalidValueError(
            "sampling must be 'fixed' with the theorem's noise, which is for it, got 'poisson'"
        )
    if noise_multipliers is None and not (alphas is None or epsilon is None or delta is None):
        s = _theorem_noise(problem, alphas, epsilon, delta)
    elif noise_multipliers is not None and alphas is None and epsilon is None and delta is None:
        s = G / m * validate.nonnegatives(noise_multipliers=noise_multipliers)
    else:
        raise validate.InvalidTypeError(
            "utility_bound takes alphas, epsilon and delta together, or noise_multipliers instead"
        )
    validate.same_length(
        eta.size, **{"alphas" if noise_multipliers is None else "noise_multipliers": s}
    )
    total = math.fsum(eta)
    half = 0.5 * problem.smoothness / total
    return UtilityBound(
        optimization=problem.initial_gap / total + half * G**2 * (1.0 + spread) * float(eta @ eta),
        noise=half * problem.dimension * float(np.sum((eta * s) ** 2)),
    )


def noise_cost(alphas: ArrayLike, stepsizes: ArrayLike) -> float:
    """Return M({α}, {b}) = Σ(α_t/b_t)² · Σ1/α_t², with b_t = 1/η_t.

    M is what the convergence theorem multiplies the noise by. It does not change when all α are
    scaled together, and by the Cauchy–Schwarz inequality it is at least (Σ η_t)², which is
    reached where α_t² is proportional to b_t, and nowhere else.

    Args:
        alphas: α_1 … α_T, positive.
        stepsizes: η_0 … η_{T−1}, positive, as many.

    Returns:
        M, positive.

    Example:
        >>> noise_cost([1.0, 1.0], [1.0, 0.5]), noise_cost([1.0, 2**0.5], [1.0, 0.5])
        (2.5, 2.25)

    Reference: theorem 4.2 and remark 4.1 of the paper. Its "other optimum",
    α_t·α_{T−(t−1)} = b_t, forces b_t = b_{T−(t−1)}, which no decreasing schedule fulfils.
    """
    eta = validate.positives(stepsizes=stepsizes)
    alpha = validate.same_length(eta.size, alphas=validate.positives(alphas=alphas))
    eta_top, alpha_low = float(eta.max()), float(alpha.min())
    relative = alpha / alpha_low
    reached = np.sum((relative * (eta / eta_top)) ** 2)
    return float(reached * np.sum(relative**-2.0)) * eta_top**2


def improvement(stepsizes: ArrayLike, alphas: ArrayLike | None = None) -> float:
    """Return M_dp/M: by what factor shaped noise lowers the noise term of uniform noise.

    Args:
        stepsizes: η_0 … η_{T−1}, positive.
        alphas: the shaped noise; by default the matched one, α_t² = b_t, for which the ratio is
            T·Ση_t²/(Ση_t)² and never below 1.

    Returns:
        The factor; above 1 the shaped noise is better under the theorem's cost.

    Example:
        >>> round(improvement([1.0, 0.5]), 4)
        1.1111

    Reference: section 4 of the paper; for η_t = 1/√(a + c·t) it grows like log T.
    """
    eta = validate.positives(stepsizes=stepsizes)
    eta /= eta.max()
    uniform = noise_cost(np.ones_like(eta), eta)
    return uniform / noise_cost(1.0 / np.sqrt(eta) if alphas is None else alphas, eta)


def _theorem_noise(problem: Problem, alphas: ArrayLike, epsilon: float, delta: float) -> FloatArray:
    """Return α_t·σ, the privacy theorem's noise on the mean gradient."""
    sigma = adp_sigma(
        alphas,
        clip_norm=problem.clip_norm,
        dataset_size=problem.dataset_size,
        batch_size=problem.batch_size,
        epsilon=epsilon,
        delta=delta,
    )
    return sigma * validate.positives(alphas=alphas)
