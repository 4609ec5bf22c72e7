"""What noise costs: ε and δ of any number of unequal noisy steps.

Accountants:

- ``pld``: the privacy loss distribution by its characteristic function; certified from above and
  below (`dither.accounting.pld`). The default.
- ``rdp``: Rényi divergences at many orders; certified, and looser (`...rdp`).
- ``gdp``: the central limit; an estimate.
- ``theorem``, ``advanced``: the paper's privacy theorem, and its lemmas composed step by step.

For noise that is chosen while training, plain composition is not enough: see `Filter` and
`Odometer`.

Sampling:

- ``poisson``: every record independently with probability q; adjacency: add or remove one record.
- ``fixed``: m distinct records; adjacency: replace one record, which moves the sum by up to 2·C.
- ``cyclic``: for correlated noise; the steps take turns with the ``bands`` random subsets of the
  records (`dither.accounting.cyclic`).

``sample_rate=1`` is the full batch and has a closed form. Shuffled batches are refused: no
accountant here covers them.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from dither import validate
from dither.accounting import estimates, pld
from dither.accounting.cyclic import cycle_minima, cycle_rate
from dither.accounting.filter import BudgetExceededError, Filter, order_for
from dither.accounting.gaussian import (
    ROUNDING,
    Bracket,
    gaussian_delta,
    gaussian_epsilon,
    single_step_delta,
    single_step_epsilon,
)
from dither.accounting.odometer import Odometer
from dither.accounting.rdp import (
    ORDERS,
    RenyiAccountant,
    renyi_delta,
    renyi_divergences,
    renyi_epsilon,
    steps_epsilon,
)
from dither.types import FloatArray, PrivacyBound, adjacency_of

__all__ = [
    "ACCOUNTANTS",
    "ORDERS",
    "SAMPLINGS",
    "BudgetExceededError",
    "Filter",
    "Odometer",
    "RenyiAccountant",
    "costs",
    "delta",
    "epsilon",
    "order_for",
    "renyi_delta",
    "renyi_divergences",
    "renyi_epsilon",
]

ACCOUNTANTS = ("pld", "rdp", "gdp", "theorem", "advanced")
SAMPLINGS = ("poisson", "fixed")
_LEAST_DELTA = 1e-300  # no noise gives δ = 0; below this it underflows


def epsilon(
    noise_multipliers: ArrayLike,
    *,
    sample_rate: ArrayLike,
    delta: float,
    sampling: str = "poisson",
    accountant: str | None = None,
    tolerance: float = 0.005,
    bands: int | None = None,
) -> PrivacyBound:
    """Return ε of noisy steps whose noise was fixed in advance.

    Guarantees: with an accountant whose result has ``is_upper_bound``, the releases of all steps
    together are (ε, δ)-differentially private, in whatever order the steps come.

    Args:
        noise_multipliers: z, one per step: the standard deviation of the noise on the sum of
            clipped gradients, divided by the clip norm.
        sample_rate: q, in (0, 1]; one number, or with ``pld`` and ``rdp`` one per step.
        delta: δ, in (0, 1).
        sampling: "poisson", "fixed" or "cyclic".
        accountant: one of `ACCOUNTANTS`; None is ``pld``.
        tolerance: how close ``pld`` brings its certified upper and lower bounds, relatively.
        bands: b, under cyclic sampling: the number of subsets, from 2 to 1/q.

    Returns:
        A `PrivacyBound`.

    Example:
        >>> bound = epsilon([1.1] * 1000, sample_rate=0.01, delta=1e-5)
        >>> print(f"{bound.lower:.4f} to {bound.epsilon:.4f}")
        1.5153 to 1.5154
    """
    if sampling == "cyclic":
        charges, rate = _charges(noise_multipliers, sample_rate, bands)
        bound = epsilon(
            charges, sample_rate=rate, delta=delta, accountant=accountant, tolerance=tolerance
        )
        return replace(bound, sampling=sampling)
    z, q, accountant = _check(
        noise_multipliers, sample_rate, sampling, accountant, tolerance, bands
    )
    delta = validate.probability(delta=delta)
    proven, lower = True, None
    if accountant == "pld":
        found = _pld_epsilon(z, q, delta, sampling, tolerance)
        value, lower = found.upper, found.lower
    elif accountant == "rdp":
        value = steps_epsilon(z, q, delta, sampling)
    elif accountant == "gdp":
        rate = validate.rate(sample_rate=q)
        value, proven = estimates.central_limit_epsilon(z, rate, delta, sampling), rate == 1.0
    elif accountant == "theorem":
        value, proven = estimates.theorem_epsilon(z, validate.rate(sample_rate=q), delta)
    else:
        rate = validate.rate(sample_rate=q)
        value, proven = estimates.advanced_epsilon(z, rate, delta, sampling)
    return _bound(value, delta, lower, accountant, sampling, q, proven=proven)


def delta(
    noise_multipliers: ArrayLike,
    *,
    sample_rate: ArrayLike,
    epsilon: float,
    sampling: str = "poisson",
    accountant: str | None = None,
    tolerance: float = 0.005,
    bands: int | None = None,
) -> PrivacyBound:
    """Return δ of noisy steps at a given ε; everything else is as in `epsilon`.

    The accountants are ``pld``, ``rdp`` and ``gdp``; the paper's bounds are read at a given δ only.
    ``lower`` of the result is None: the bracket here is on δ, whose upper end is returned.

    Example:
        >>> bound = delta([1.1] * 1000, sample_rate=0.01, epsilon=2.0)
        >>> print(f"{bound.delta:.1e}")
        7.9e-08
    """
    if sampling == "cyclic":
        charges, rate = _charges(noise_multipliers, sample_rate, bands)
        bound = delta(
            charges, sample_rate=rate, epsilon=epsilon, accountant=accountant, tolerance=tolerance
        )
        return replace(bound, sampling=sampling)
    z, q, accountant = _check(
        noise_multipliers, sample_rate, sampling, accountant, tolerance, bands
    )
    epsilon = validate.nonnegative(epsilon=epsilon)
    validate.choice(("pld", "rdp", "gdp"), accountant=accountant)
    proven = True
    if accountant == "pld":
        value = _pld_delta(z, q, epsilon, sampling, tolerance)
    elif accountant == "rdp":
        divergences = renyi_divergences(z, sample_rate=q, sampling=sampling)
        value = renyi_delta(divergences, ORDERS, epsilon)
    else:
        rate = validate.rate(sample_rate=q)
        value, proven = estimates.central_limit_delta(z, rate, epsilon, sampling), rate == 1.0
    return _bound(epsilon, value, None, accountant, sampling, q, proven=proven)


def costs(
    noise_multipliers: ArrayLike,
    *,
    sample_rate: float,
    delta: float,
    sampling: str = "poisson",
    bands: int | None = None,
    known: Mapping[str, PrivacyBound] | None = None,
) -> dict[str, PrivacyBound]:
    """Return ε of the same steps by every accountant, for comparison.

    Args:
        noise_multipliers: as in `epsilon`.
        sample_rate: q, one number.
        delta: δ, in (0, 1).
        sampling: "poisson", "fixed" or "cyclic".
        bands: b, under cyclic sampling.
        known: bounds that need not be computed again, by accountant.

    Example:
        >>> bounds = costs([1.0] * 100, sample_rate=0.01, delta=1e-5)
        >>> [name for name, bound in bounds.items() if bound.is_upper_bound]
        ['pld', 'rdp']
    """
    bounds = known or {}
    return {
        name: bounds[name]
        if name in bounds
        else epsilon(
            noise_multipliers,
            sample_rate=sample_rate,
            delta=delta,
            sampling=sampling,
            accountant=name,
            bands=bands,
        )
        for name in ACCOUNTANTS
    }


def check_settings(*, sampling: str, accountant: str | None) -> str:
    """Return the accountant's name if it and the sampling are known; nothing is computed."""
    if sampling == "shuffle":
        raise validate.InvalidValueError(
            "sampling must be one of fixed, poisson, got 'shuffle': no accountant here covers "
            "shuffled batches, and accounting them as Poisson would understate ε"
        )
    validate.choice(SAMPLINGS, sampling=sampling)
    return validate.choice(ACCOUNTANTS, accountant="pld" if accountant is None else accountant)


def _charges(z: ArrayLike, sample_rate: ArrayLike, bands: int | None) -> tuple[FloatArray, float]:
    """Return the noise and the rate of Poisson-sampled steps that cost as much as cyclic ones."""
    if bands is None or validate.count(bands=bands) < 2:
        raise validate.InvalidValueError(
            f"bands must be at least 2 under cyclic sampling, got {bands!r}"
        )
    q = cycle_rate(validate.rate(sample_rate=sample_rate), bands)
    return cycle_minima(validate.positives(noise_multipliers=z), bands), q


def _check(
    noise_multipliers: ArrayLike,
    sample_rate: ArrayLike,
    sampling: str,
    accountant: str | None,
    tolerance: float,
    bands: int | None,
) -> tuple[FloatArray, float | FloatArray, str]:
    if bands not in (None, 1):
        raise validate.InvalidValueError(
            f"bands must be None unless sampling is cyclic, got {bands!r} for {sampling!r}"
        )
    z = validate.positives(noise_multipliers=noise_multipliers)
    q = validate.rates(z.size, sample_rate=sample_rate)
    name = check_settings(sampling=sampling, accountant=accountant)
    least = pld.least_noise(sampling)
    if z.min() < least:
        index = int(np.argmin(z))
        raise validate.InvalidValueError(
            f"noise_multipliers[{index}] must be at least {least}, got {z[index]!s}"
        )
    if not validate.positive(tolerance=tolerance) >= 1e-5:
        raise validate.InvalidValueError(f"tolerance must be at least 1e-5, got {tolerance!r}")
    if not isinstance(q, float) and name not in ("pld", "rdp"):
        raise validate.InvalidValueError(
            f"sample_rate must be one number for accountant {name!r}, got {q.size}: pld and rdp "
            "take one per step"
        )
    return z, q, name


def _pld_epsilon(
    z: FloatArray, q: float | FloatArray, delta: float, sampling: str, tolerance: float
) -> Bracket:
    mu = pld.sensitivity(sampling) * math.sqrt(math.fsum(z**-2.0))
    if isinstance(q, float) and q == 1.0:
        return gaussian_epsilon(mu, delta)
    if isinstance(q, float) and z.size == 1:
        return single_step_epsilon(mu, q, delta)
    return pld.bracket_epsilon(
        z, sample_rate=q, delta=delta, sampling=sampling, tolerance=tolerance
    )


def _pld_delta(
    z: FloatArray, q: float | FloatArray, epsilon: float, sampling: str, tolerance: float
) -> float:
    mu = pld.sensitivity(sampling) * math.sqrt(math.fsum(z**-2.0))
    if isinstance(q, float) and q == 1.0:
        return max(gaussian_delta(mu, epsilon) * (1.0 + ROUNDING), _LEAST_DELTA)
    if isinstance(q, float) and z.size == 1:
        return max(single_step_delta(mu, q, epsilon) * (1.0 + ROUNDING), _LEAST_DELTA)
    return pld.bracket_delta(
        z, sample_rate=q, epsilon=epsilon, sampling=sampling, tolerance=tolerance
    ).upper


def _bound(
    epsilon: float,
    delta: float,
    lower: float | None,
    accountant: str,
    sampling: str,
    q: float | FloatArray,
    *,
    proven: bool,
) -> PrivacyBound:
    return PrivacyBound(
        epsilon=float(epsilon),
        delta=float(delta),
        lower=lower,
        accountant=accountant,
        sampling="full" if isinstance(q, float) and q == 1.0 else sampling,
        adjacency=adjacency_of(sampling),
        is_upper_bound=proven and math.isfinite(epsilon),
    )
