"""Step sizes that are known before training starts: formulas, tables, warm-ups, few levels."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from dither import validate
from dither.types import FloatArray, Schedule, Vector


@dataclass(frozen=True)
class ClosedForm(ABC):
    """A schedule whose step sizes are one vectorised formula of the step's number."""

    def __post_init__(self) -> None:
        """Check every parameter: positive and finite, unless the class overrides this."""
        for field in fields(self):
            self._set(field.name, validate.positive(**{field.name: getattr(self, field.name)}))

    @final
    def stepsizes(self, steps: int) -> FloatArray:
        """Return η_0 … η_{T−1}; an under- or overflow is refused."""
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


@final
class Table(Vector):
    """The given step sizes, one per step; another number of steps is refused.

    >>> Table([0.3, 0.2, 0.1]).stepsizes(3)
    array([0.3, 0.2, 0.1])
    """

    def __init__(self, values: ArrayLike) -> None:
        super().__init__(validate.positives(values=values))

    def stepsizes(self, steps: int) -> FloatArray:
        """Return the values; ``steps`` must be their number."""
        T = validate.step_count(steps=steps)
        if self.values.size != T:
            raise validate.InvalidValueError(
                f"steps must be the table's length, {self.values.size}, got {T}"
            )
        return self.values.copy()


@final
@dataclass(frozen=True)
class Warmup:
    """Rise linearly for ``steps`` steps to the first step size of ``inner``, then follow it.

    η_t = η⁰·(t+1)/W for t < W, where η⁰ is the inner schedule's first step size: the first step
    is above zero and the ramp ends at η⁰. The inner schedule then covers the other T − W steps,
    from its own first. A run of W steps or fewer has the ramp alone, towards the first of W inner
    steps.

    >>> Warmup(Linear(1.0, 0.5), steps=4).stepsizes(6)
    array([0.25, 0.5 , 0.75, 1.  , 1.  , 0.5 ])
    """

    inner: Schedule
    steps: int

    def __post_init__(self) -> None:
        """Check the parameters."""
        _check_schedule(self.inner)
        object.__setattr__(self, "steps", validate.count(steps=self.steps))

    def stepsizes(self, steps: int) -> FloatArray:
        """Return the ramp and what follows it."""
        T, W = validate.step_count(steps=steps), self.steps
        inner = self.inner.stepsizes(T - W if T > W else W)
        ramp = inner[0] * np.arange(1, min(T, W) + 1, dtype=np.float64) / W
        return validate.positives(stepsizes=np.concatenate([ramp, inner])[:T])


@final
@dataclass(frozen=True)
class PiecewiseConstant:
    """The step sizes of ``inner`` for ``levels`` steps, each held for an equal share of the run.

    A run then has at most ``levels`` different step sizes and noise multipliers, and is planned
    several times faster, at almost the same noise. A run of fewer steps follows ``inner``.

    >>> PiecewiseConstant(Linear(1.0, 0.5), levels=3).stepsizes(7)
    array([1.  , 1.  , 1.  , 0.75, 0.75, 0.5 , 0.5 ])
    """

    inner: Schedule
    levels: int

    def __post_init__(self) -> None:
        """Check the parameters."""
        _check_schedule(self.inner)
        object.__setattr__(self, "levels", validate.count(levels=self.levels))

    def stepsizes(self, steps: int) -> FloatArray:
        """Return the levels, each held for its share of the steps."""
        T = validate.step_count(steps=steps)
        inner = validate.positives(stepsizes=self.inner.stepsizes(min(T, self.levels)))
        return np.asarray(inner[np.arange(T) * inner.size // T])


def _between(start: float, end: float, share: FloatArray) -> FloatArray:
    """Return start at share 0, end at share 1, exactly."""
    return start * (1.0 - share) + end * share


def _check_denominator(schedule: ClosedForm, a: object, c: object) -> None:
    schedule._set("a", validate.nonnegative(a=a))
    schedule._set("c", validate.nonnegative(c=c))
    if a == 0.0 and c == 0.0:
        raise validate.InvalidValueError("a and c must not both be 0, got a = 0 and c = 0")


def _check_schedule(inner: object) -> None:
    if isinstance(inner, type) or not isinstance(inner, Schedule):
        raise validate.InvalidTypeError(f"inner must be a schedule, got {inner!r}")


def stepsizes_of(stepsizes: Schedule | ArrayLike, T: int) -> FloatArray:
    """Return T step sizes, from a schedule or as they are given."""
    if isinstance(stepsizes, Schedule) and not isinstance(stepsizes, type):
        return validate.same_length(
            T, stepsizes=validate.positives(stepsizes=stepsizes.stepsizes(T))
        )
    if isinstance(stepsizes, int | float):
        raise validate.InvalidTypeError(
            f"stepsizes must be a schedule or one step size per step, got {stepsizes!r}: "
            f"Constant({stepsizes!r}) is the same in every step"
        )
    return validate.same_length(T, stepsizes=validate.positives(stepsizes=stepsizes))
