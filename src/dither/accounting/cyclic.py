"""Cyclic Poisson sampling: what steps with correlated noise cost.

Theorem. Let z_0 … z_{T−1} and a lower-triangular T × T matrix B with b bands and a positive
diagonal be fixed in advance, the columns of B of norm at most 1, and b·q ≤ 1. Let every record be
in one of b subsets, uniformly and independently of other records, and let step t draw each record
of subset t mod b independently with probability b·q. Let C = B·diag(1/z), let row t of G be the sum
of the clipped gradients of step t in clip norms, each a function of its record and of earlier
releases, and let Z have independent standard normal entries. Then releasing the rows of C·G + Z one
after the other costs at most as much as, for the worst j, the composition of Poisson-subsampled
Gaussians with noise z_t, t ≡ j mod b, at rate b·q, under the relation of adding or removing one
record.

Proof. Fix a record and its subset j, and all that is random about the others. Given the releases
before it, what the others add to row t is known: subtracting it row by row is a bijection. What is
left of the record in row t comes from the steps s in t−b+1 … t with s ≡ j, and there is one. So the
rows s … s+b−1 of each such s are χ_s·c_s⊗g_s + noise, where χ_s is 1 with probability b·q,
independently, ‖g_s‖ ≤ 1 depends on releases before s, and c_s, the rows of column s, has norm at
most 1/z_s: one subsampled Gaussian, composed over s. The subsets are drawn before the first step,
so that the cost is at most the mean over j (joint convexity), and that is at most the maximum.

It needs: assignments, draws and noise that are fresh and never shown; z and B that do not depend
on data; models that are computed from releases; and one assignment for as long as noise is
correlated. With new assignments a record could be in two steps of one window. docs/correlated.md
has the proof in full.

A *cycle* is b consecutive steps, beginning with a multiple of b. Every subset has one step in it,
so that the cycle costs at most one step with the smallest of its noise multipliers at rate b·q.
Runs are priced by their cycles, which compose with other runs; the maximum over the subsets holds
for one run alone. The price is that maximum where a cycle's steps have the same noise, as in every
plan that dither makes, and an upper bound otherwise. It stays one if the run is interrupted, and
resumes at the beginning of a cycle with new assignments and new noise: the two parts are mechanisms
of their own, and compose.
"""

import numpy as np
from numpy.typing import ArrayLike

from dither import validate
from dither.types import FloatArray

_ROUNDING = 1e-12


def cycle_minima(noise_multipliers: ArrayLike, bands: int) -> FloatArray:
    """Return the smallest noise multiplier of every cycle; the last cycle may be shorter.

    >>> cycle_minima([1.0, 2.0, 3.0, 4.0, 5.0], 2)
    array([1., 3., 5.])
    """
    z = np.asarray(noise_multipliers, dtype=np.float64)
    return z if bands == 1 else np.minimum.reduceat(z, np.arange(0, z.size, bands))


def cycle_rate(sample_rate: float, bands: int) -> float:
    """Return b·q, the probability of a record in the step of its own subset.

    >>> cycle_rate(0.01, 4)
    0.04
    """
    rate = validate.rate(sample_rate=sample_rate) * validate.count(bands=bands)
    if rate > 1.0 + _ROUNDING:
        raise validate.InvalidValueError(
            f"bands must be at most 1/sample_rate = {1.0 / sample_rate:.6g}, got {bands}"
        )
    return min(rate, 1.0)
