"""What a run that was accounted per record means for a person with k records.

Poisson sampling. Let a group of k records be in the data or not. Given the earlier releases and the
draws of all other records, a step shows Σ_{i∈S} g_i + z·N(0, I) shifted by something known, where
each record of the group is in S independently with probability q, and every g_i has norm at most 1
(in clip norms) and is a function of its record and of the earlier releases.

Theorem. For every α, the hockey-stick divergence of that from z·N(0, I), in both directions, is at
most that of Σ_j B_j·N(j, z²) from N(0, z²), where B_j is the probability that j of k are drawn.

Proof. Let z = 1, and let A be a set that N(0, I) gives the mass Φ(−c). The sum v_S of the drawn
gradients has norm at most |S|. Of all sets of that mass N(v_S, I) gives most to a half-space
(Neyman and Pearson), and that is Φ(‖v_S‖ − c) ≤ Φ(|S| − c). So P(A) ≤ Σ_j B_j·Φ(j − c), which is
what [c, ∞) has on the line, where it is the same set for all j. Hence P(A) − α·Q(A) is at most what
that set attains on the line. This holds for all α > 0, and so for the other direction, too, whose
divergence is α·H_{1/α}(P‖Q) + 1 − α. The draws of other records are a common mixture (joint
convexity), and what dominates every step whatever came before dominates the run (adaptive
composition of dominating pairs: Zhu, Dong and Wang 2022).

The worst gradients are aligned, and more records or less noise cost more. Ganesh 2024 ("Tight
group-level DP guarantees for DP-SGD with sampling via mixture of Gaussians mechanisms") has the
result. With q = 1 the pair is N(k, z²) and N(0, z²).

Fixed batches and cyclic sampling. There the run's own guarantees are chained. If
P_{i+1}(A) ≤ e^ε_i·P_i(A) + δ_i for any two datasets that differ in one record, then after k records
P_k(A) ≤ e^(ε_0 + … + ε_{k−1})·P_0(A) + δ with the δ of Σ_i δ_i·e^(ε_{i+1} + … + ε_{k−1}). Every
choice of points (ε_i, δ_i) of the privacy curve gives a bound. Equal points give
δ·(1 + e^ε + … + e^((k−1)·ε)) at k·ε; here ε_i falls from record to record, which gives less. A run
is also μ-Gaussian differentially private with μ² = Σ 1/z² (times 4 under replacement), hence kμ for
groups (Dong, Roth and Su 2022): the smaller ε counts.
"""

import math

import numpy as np

from dither import accounting, validate
from dither.accounting import pld
from dither.accounting.calibration import quick_epsilon
from dither.accounting.gaussian import Bracket, gaussian_epsilon
from dither.accounting.rdp import ORDERS, renyi_divergences, renyi_epsilon
from dither.types import FloatArray, PrivacyBound, adjacency_of

LARGEST = 1000
"""The most records of a group: the work grows with their number."""

_DEVIATIONS = np.append(np.arange(0.1, 10.0, 0.1), np.arange(10.0, 37.5, 0.5))  # δ = e^(−u²/2)/2
_MOST_TIGHT = 6
_ROUNDING = 1e-9
_STRONGEST = 200.0  # k/z and k/z², beyond which sampling is left out: it would take minutes


def group_epsilon(
    noise_multipliers: FloatArray,
    *,
    sample_rate: float,
    delta: float,
    sampling: str,
    size: int,
) -> PrivacyBound:
    """Return ε for a group of that many records of steps whose noise was fixed in advance.

    Guarantees: the releases of all steps together are (ε, δ)-differentially private if that many
    records are added or removed together (under fixed sampling: replaced).

    Args:
        noise_multipliers: z, one per step.
        sample_rate: q, in (0, 1].
        delta: δ, in (0, 1).
        sampling: "poisson", "fixed", or "cyclic" for charges that are accounted as Poisson steps.
        size: k, from 1 to 1000.

    Returns:
        A `PrivacyBound` by the accountant ``pld``. Under Poisson sampling the search ends where the
        upper and the lower bound are within half a percent, or k/10 percent for more than 5
        records.

    Example:
        >>> import numpy as np
        >>> z = np.full(1000, 1.1)
        >>> bound = group_epsilon(z, sample_rate=0.01, delta=1e-5, sampling="poisson", size=5)
        >>> print(bound.unit, round(bound.epsilon, 1))
        group of 5 records 9.6
    """
    if not 1 <= validate.count(size=size) <= LARGEST:
        raise validate.InvalidValueError(f"size must be at most {LARGEST}, got {size!r}")
    z, q, delta = noise_multipliers, sample_rate, validate.probability(delta=delta)
    relation = "fixed" if sampling == "fixed" else "poisson"
    least = float(z.min())
    is_full = q == 1.0 and sampling != "cyclic"
    if size == 1:
        bound = accounting.epsilon(z, sample_rate=q, delta=delta, sampling=relation)
        found = Bracket(bound.epsilon, bound.lower or 0.0)
    elif is_full or size > _STRONGEST * least * min(least, 1.0):
        found = gaussian_epsilon(size * _strength(z, relation), delta)
        found = found if is_full else Bracket(found.upper, 0.0)
    elif sampling == "poisson":
        tolerance = max(0.005, 0.001 * size)
        found = pld.bracket_epsilon(
            z, sample_rate=q, delta=delta, sampling=relation, tolerance=tolerance, size=size
        )
    else:
        found = Bracket(_chained_epsilon(z, q, delta, relation, size), 0.0)
    return PrivacyBound(
        epsilon=found.upper,
        delta=delta,
        accountant="pld",
        sampling="full" if is_full else sampling,
        adjacency=adjacency_of(sampling),
        lower=found.lower or None,
        unit=group_unit(size),
    )


def group_unit(size: int, unit: str = "record") -> str:
    """Return the unit of a bound for that many records or users.

    >>> group_unit(1), group_unit(5)
    ('record', 'group of 5 records')
    """
    return unit if size == 1 else f"group of {size:,} {unit}s"


def _strength(z: FloatArray, sampling: str) -> float:
    """Return μ of all steps together, without sampling."""
    return pld.sensitivity(sampling) * math.sqrt(math.fsum(z**-2.0))


def _chained_epsilon(z: FloatArray, q: float, delta: float, sampling: str, size: int) -> float:
    """Return the least ε of chains of guarantees.

    Rényi divergences show at once which guarantees matter; a few of those are proven more tightly.
    """
    divergences = renyi_divergences(z, sample_rate=q, sampling=sampling)
    log_deltas = -0.5 * _DEVIATIONS**2 - math.log(2.0)
    epsilons = np.array([renyi_epsilon(divergences, ORDERS, math.exp(d)) for d in log_deltas])
    proven, guess = epsilons.copy(), epsilons
    known = np.zeros(0, dtype=np.intp)
    for _ in range(2):
        used = np.setdiff1d(chained_epsilon(guess, log_deltas, delta, size)[1], known)
        for at in used[:: max(1, -(-used.size // _MOST_TIGHT))]:
            tight = quick_epsilon(
                z,
                sample_rate=q,
                delta=math.exp(log_deltas[at]),
                sampling=sampling,
                accountant=None,
                rough=True,
            )
            proven[at] = min(proven[at], tight)
            known = np.union1d(known, [at])
        shares = proven[known] / np.maximum(epsilons[known], 1e-300)
        guess = epsilons * np.interp(np.arange(epsilons.size), known, shares)
    by_strength = gaussian_epsilon(size * _strength(z, sampling), delta).upper
    return min(by_strength, chained_epsilon(proven, log_deltas, delta, size)[0])


def chained_epsilon(
    epsilons: FloatArray, log_deltas: FloatArray, delta: float, size: int
) -> tuple[float, np.ndarray]:
    """Return the least ε for k records that follows from guarantees for one, and their indices.

    A chain takes the best guarantee at every record, from some mass P_0(A) that is searched for.

    >>> from dither.accounting.gaussian import gaussian_epsilon
    >>> log_deltas = np.linspace(-40.0, -1.0, 100)
    >>> epsilons = np.array([gaussian_epsilon(0.2, math.exp(d)).upper for d in log_deltas])
    >>> found, _ = chained_epsilon(epsilons, log_deltas, 1e-5, 5)
    >>> print(f"{found:.2f}, at best {gaussian_epsilon(5 * 0.2, 1e-5).upper:.2f}")
    4.39, at best 4.38
    """
    low, high, best, chosen = 1e-2, 1e6, math.inf, np.zeros(size, dtype=np.intp)
    for _ in range(4):
        start = np.geomspace(low, high, 200)
        log_mass = -start
        total, log_lost = np.zeros(200), np.full(200, -math.inf)
        path = np.empty((size, 200), dtype=np.intp)
        for i in range(size):
            ways = np.logaddexp(epsilons + log_mass[:, None], log_deltas)
            path[i] = ways.argmin(axis=1)
            log_mass = np.minimum(ways.min(axis=1), 0.0)
            total += epsilons[path[i]]
            log_lost = np.logaddexp(epsilons[path[i]] + log_lost, log_deltas[path[i]])
        total = np.where(log_lost <= math.log(delta) - _ROUNDING, total, math.inf)
        at = int(total.argmin())
        if total[at] * (1.0 + _ROUNDING) < best:
            best, chosen = float(total[at]) * (1.0 + _ROUNDING), path[:, at]
        low, high = start[max(at - 1, 0)], start[min(at + 1, 199)]
    return best, chosen
