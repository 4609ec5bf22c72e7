"""Relative noise α_1 … α_T for given step sizes: how the noise is spread over the steps.

No noise is drawn here: `dither.release` draws and adds it.

Only the ratios of the α matter: calibration to a budget finds their common scale.

>>> import numpy as np
>>> from dither.noise import Matched
>>> Matched().alphas(np.array([1.0, 0.25]))
array([1., 2.])
"""

from dither.noise.correlated import Correlated
from dither.noise.formulas import Custom, GrowthBound, Matched, Power, Uniform
from dither.noise.optimal import Optimal
from dither.types import Allocation, Budget

__all__ = [
    "Allocation",
    "Budget",
    "Correlated",
    "Custom",
    "GrowthBound",
    "Matched",
    "Optimal",
    "Power",
    "Uniform",
]
