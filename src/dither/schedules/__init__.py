"""Step sizes η_0 … η_{T−1}: known before training starts, or reacting to what is released.

Every schedule is a frozen value with a readable repr, and compares by its parameters. One that is
known in advance has one method, ``stepsizes(steps)``, which returns a float64 array, all of it
positive and finite. One that reacts is a rule for b_t, from releases only.

>>> from dither.schedules import InverseSqrt, Warmup
>>> Warmup(InverseSqrt(a=3.0), steps=2).stepsizes(4).round(4)
array([0.25  , 0.5   , 0.5   , 0.4472])
"""

from dither.schedules.fixed import (
    Constant,
    Cosine,
    Exponential,
    InverseSqrt,
    Linear,
    PiecewiseConstant,
    Polynomial,
    SqrtToZero,
    Step,
    Table,
    Warmup,
)
from dither.schedules.from_torch import TorchSchedule, from_torch
from dither.schedules.parsing import parse
from dither.schedules.reactive import AdaGradNorm, Growth, Reactive, UnsafeRawAdaGradNorm
from dither.types import Schedule

__all__ = [
    "AdaGradNorm",
    "Constant",
    "Cosine",
    "Exponential",
    "Growth",
    "InverseSqrt",
    "Linear",
    "PiecewiseConstant",
    "Polynomial",
    "Reactive",
    "Schedule",
    "SqrtToZero",
    "Step",
    "Table",
    "TorchSchedule",
    "UnsafeRawAdaGradNorm",
    "Warmup",
    "from_torch",
    "parse",
]
