"""What an allocation of the noise costs in the convergence theorem."""

import numpy as np
from numpy.typing import ArrayLike

from dither import validate


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
