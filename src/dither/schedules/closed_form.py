"""Schedules given by a formula in t = 0 … T−1."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import final

import numpy as np

from dither import validate
from dither.types import FloatArray


@dataclass(frozen=True)
class ClosedForm(ABC):
    """A schedule whose step sizes are one vectorised formula of the step's number."""

    def __post_init__(self) -> None:
        """Check every parameter: positive and finite, unless the class says otherwise."""
        for field in fields(self):
            self._set(field.name, validate.positive(**{field.name: getattr(self, field.name)}))

    @final
    def stepsizes(self, steps: int) -> FloatArray:
        """Return η_0 … η_{T−1}; an under- or overflow on the way is refused."""
        T = validate.step_count(steps=steps)
        with np.errstate(all="ignore"):
            return validate.positives(stepsizes=self._formula(np.arange(T, dtype=np.float64), T))

    @abstractmethod
    def _formula(self, t: FloatArray, T: int) -> FloatArray:
        """Return the step sizes at t, for T steps in all."""

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


@final
@dataclass(frozen=True)
class Constant(ClosedForm):
    """η_t = stepsize.

    >>> Constant(0.5).stepsizes(3)
    array([0.5, 0.5, 0.5])
    """

    stepsize: float

    def _formula(self, t: FloatArray, T: int) -> FloatArray:
        return np.full_like(t, self.stepsize)


@final
@dataclass(frozen=True)
class Linear(ClosedForm):
    """From ``start`` at the first step to ``end`` at the last in equal decrements.

    >>> Linear(1.0, 0.25).stepsizes(4)
    array([1.  , 0.75, 0.5 , 0.25])
    """

    start: float
    end: float

    def _formula(self, t: FloatArray, T: int) -> FloatArray:
        return _between(self.start, self.end, t / max(T - 1, 1))


@final
@dataclass(frozen=True)
class Cosine(ClosedForm):
    """Half a cosine wave from ``start`` at the first step to ``end`` at the last.

    >>> Cosine(1.0, 0.5).stepsizes(3)
    array([1.  , 0.75, 0.5 ])
    """

    start: float
    end: float

    def _formula(self, t: FloatArray, T: int) -> FloatArray:
        return _between(self.start, self.end, np.sin(0.5 * np.pi * t / max(T - 1, 1)) ** 2)


@final
@dataclass(frozen=True)
class Exponential(ClosedForm):
    """η_t = start·rate^t.

    >>> Exponential(1.0, 0.5).stepsizes(3)
    array([1.  , 0.5 , 0.25])
    """

    start: float
    rate: float

    def _formula(self, t: FloatArray, T: int) -> FloatArray:
        return self.start * self.rate**t


@final
@dataclass(frozen=True)
class Step(ClosedForm):
    """η_t = start·factor^⌊t/every⌋: a staircase.

    >>> Step(1.0, 0.5, every=2).stepsizes(4)
    array([1. , 1. , 0.5, 0.5])
    """

    start: float
    factor: float
    every: int

    def __post_init__(self) -> None:
        """Check the parameters; ``every`` is a number of steps."""
        self._set("every", validate.count(every=self.every))
        self._set("start", validate.positive(start=self.start))
        self._set("factor", validate.positive(factor=self.factor))

    def _formula(self, t: FloatArray, T: int) -> FloatArray:
        return self.start * self.factor ** np.floor(t / self.every)


@final
@dataclass(frozen=True)
class Polynomial(ClosedForm):
    """η_t = scale/(a + c·(t+1))^power.

    ``c = 0`` and ``power = 0`` are allowed and make it constant.

    >>> Polynomial(a=1.0, c=1.0, power=1.0).stepsizes(3).round(4)
    array([0.5   , 0.3333, 0.25  ])
    """

    a: float
    c: float
    power: float
    scale: float = 1.0

    def __post_init__(self) -> None:
        """Check that a + c·(t+1) stays positive."""
        _check_denominator(self, self.a, self.c)
        self._set("power", validate.nonnegative(power=self.power))
        self._set("scale", validate.positive(scale=self.scale))

    def _formula(self, t: FloatArray, T: int) -> FloatArray:
        return self.scale / (self.a + self.c * (t + 1.0)) ** self.power


@final
@dataclass(frozen=True)
class InverseSqrt(ClosedForm):
    """η_t = scale/√(a + c·(t+1)), the paper's b_t = (a + c·t)^(1/2).

    >>> InverseSqrt(a=3.0).stepsizes(2).round(4)
    array([0.5   , 0.4472])

    Reference: section 5.1 of the paper; a = 20, c = 1 is the schedule of its figures.
    """

    a: float = 20.0
    c: float = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        """Check that a + c·(t+1) stays positive."""
        _check_denominator(self, self.a, self.c)
        self._set("scale", validate.positive(scale=self.scale))

    def _formula(self, t: FloatArray, T: int) -> FloatArray:
        return self.scale / np.sqrt(self.a + self.c * (t + 1.0))


@final
@dataclass(frozen=True)
class SqrtToZero(ClosedForm):
    """η_t = start − (start − end)·√((t+1)/T): falls steeply, and to ``end`` at the last step.

    Computed as end + (start − end)·(1 − (t+1)/T)/(1 + √((t+1)/T)), which is the same without
    the cancellation near the end.

    >>> SqrtToZero(start=1.0, end=0.2).stepsizes(4).round(4)
    array([0.6   , 0.4343, 0.3072, 0.2   ])

    Reference: section 6.1 of the paper, where it is written η_t = 0.1 − α_T·√t.
    """

    start: float = 0.1
    end: float = 1e-10

    def _formula(self, t: FloatArray, T: int) -> FloatArray:
        left = (T - 1.0 - t) / T
        return self.end + (self.start - self.end) * left / (1.0 + np.sqrt((t + 1.0) / T))


def _between(start: float, end: float, share: FloatArray) -> FloatArray:
    """Return start at share 0, end at share 1, exactly."""
    return start * (1.0 - share) + end * share


def _check_denominator(schedule: ClosedForm, a: object, c: object) -> None:
    schedule._set("a", validate.nonnegative(a=a))
    schedule._set("c", validate.nonnegative(c=c))
    if a == 0.0 and c == 0.0:
        raise validate.InvalidValueError("a and c must not both be 0, got a = 0 and c = 0")
