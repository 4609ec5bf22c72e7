"""Step sizes η_0 … η_{T−1} that are known before training starts.

Every schedule is a frozen value: it has a readable repr, compares by its parameters, and its one
method ``stepsizes(steps)`` returns a float64 array, all of it positive and finite.

>>> from dither.schedules import InverseSqrt, Warmup
>>> Warmup(InverseSqrt(a=3.0), steps=2).stepsizes(4).round(4)
array([0.25  , 0.5   , 0.5   , 0.4472])
"""

from dither.schedules.closed_form import (
    Constant,
    Cosine,
    Exponential,
    InverseSqrt,
    Linear,
    Polynomial,
    SqrtToZero,
    Step,
)
from dither.schedules.from_torch import TorchSchedule, from_torch
from dither.schedules.parse import NAMES, parameters, parse
from dither.schedules.table import Table
from dither.schedules.warmup import Warmup

__all__ = [
    "NAMES",
    "Constant",
    "Cosine",
    "Exponential",
    "InverseSqrt",
    "Linear",
    "Polynomial",
    "SqrtToZero",
    "Step",
    "Table",
    "TorchSchedule",
    "Warmup",
    "from_torch",
    "parameters",
    "parse",
]
