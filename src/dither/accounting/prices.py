"""What steps cost by every accountant, side by side."""

from collections.abc import Mapping

from dither.accounting import ACCOUNTANTS, epsilon
from dither.types import FloatArray, PrivacyBound


def prices(
    noise_multipliers: FloatArray,
    *,
    sample_rate: float,
    delta: float,
    sampling: str,
    known: Mapping[str, PrivacyBound] | None = None,
) -> dict[str, PrivacyBound]:
    """Return what steps cost by every accountant; those that are known are not counted again.

    Example:
        >>> import numpy as np
        >>> found = prices(np.full(100, 1.0), sample_rate=0.01, delta=1e-5, sampling="poisson")
        >>> [name for name, bound in found.items() if bound.is_upper_bound]
        ['pld', 'rdp']
    """
    return {
        name: (known or {}).get(name)
        or epsilon(
            noise_multipliers,
            sample_rate=sample_rate,
            delta=delta,
            sampling=sampling,
            accountant=name,
        )
        for name in ACCOUNTANTS
    }
