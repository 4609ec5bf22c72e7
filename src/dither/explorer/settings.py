"""What the page's fields say, checked one by one: every complaint belongs to a field."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from typing import Any

from dither import accounting, theory, validate
from dither.planning.planner import NOISES
from dither.schedules.fixed import ClosedForm
from dither.schedules.parsing import NAMES
from dither.types import Budget, FloatArray

MOST_STEPS = 200_000
"""More are planned by the library itself: a page should not keep a machine busy for long."""

_NUMBERS: dict[str, Callable[..., float]] = {
    "epsilon": validate.positive,
    "delta": validate.probability,
    "dataset_size": validate.count,
    "batch_size": validate.count,
    "epochs": validate.positive,
    "clip_norm": validate.positive,
    "dimension": validate.count,
    "smoothness": validate.positive,
    "initial_gap": validate.nonnegative,
}
_CHOICES = {"noise": NOISES, "sampling": accounting.SAMPLINGS, "schedule": (*NAMES,)}
DEFAULTS: dict[str, Any] = {
    "epsilon": "1",
    "delta": "1e-5",
    "dataset_size": "60000",
    "batch_size": "256",
    "epochs": "20",
    "clip_norm": "1",
    "schedule": "inverse-sqrt",
    "parameters": {"a": "20", "c": "1", "scale": "1"},
    "noise": "optimal",
    "sampling": "poisson",
    "dimension": "100000",
    "smoothness": "1",
    "initial_gap": "2.3",
}
# What a schedule starts with where its class has no default.
_STARTS = {"stepsize": 1.0, "start": 1.0, "end": 0.01, "rate": 0.999, "factor": 0.5, "every": 1000}
_STARTS |= {"a": 20.0, "c": 1.0, "power": 0.5}
_PLACES = {"sample_rate": "batch_size", "stepsizes": "schedule", "steps": "epochs"}


class FieldsError(ValueError):
    """Fields that are wrong, each with one line for people."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("; ".join(problems.values()))
        self.problems = dict(problems)


@dataclass(frozen=True)
class Settings:
    """Everything that the page asks for, checked."""

    epsilon: float
    delta: float
    dataset_size: int
    batch_size: int
    epochs: float
    clip_norm: float
    schedule: str
    stepsizes: ClosedForm
    noise: str
    sampling: str
    dimension: int
    smoothness: float
    initial_gap: float

    @property
    def steps(self) -> int:
        """T."""
        return validate.steps_in(
            self.epochs, batch_size=self.batch_size, dataset_size=self.dataset_size
        )

    @property
    def budget(self) -> Budget:
        """What the plan may spend."""
        rate = self.batch_size / self.dataset_size
        return Budget(self.epsilon, self.delta, rate, None, self.sampling)

    @property
    def problem(self) -> theory.Problem:
        """What the utility bound needs to know."""
        return theory.Problem(
            dimension=self.dimension,
            smoothness=self.smoothness,
            initial_gap=self.initial_gap,
            clip_norm=self.clip_norm,
            dataset_size=self.dataset_size,
            batch_size=self.batch_size,
        )

    def rates(self) -> FloatArray:
        """Return the step sizes."""
        return self.stepsizes.stepsizes(self.steps)

    def arguments(self) -> dict[str, Any]:
        """Return what `dither.plan` is called with."""
        names = ("epsilon", "delta", "dataset_size", "batch_size", "epochs", "clip_norm")
        return {name: getattr(self, name) for name in (*names, "stepsizes", "noise", "sampling")}

    def python(self) -> str:
        """Return the code that makes this plan."""
        given = {**self.arguments(), "stepsizes": _Code(f"schedules.{self.stepsizes!r}")}
        lines = "".join(f"    {name}={value!r},\n" for name, value in given.items())
        return f"import dither\nfrom dither import schedules\n\nplan = dither.plan(\n{lines})\n"

    def command(self) -> str:
        """Return the command that saves this plan."""
        text = ",".join(
            f"{field.name}={getattr(self.stepsizes, field.name)!r}"
            for field in fields(self.stepsizes)
        )
        given = {**self.arguments(), "stepsizes": f"{self.schedule}:{text}"}
        given |= {name: getattr(self, name) for name in ("dimension", "smoothness", "initial_gap")}
        words = [
            shlex.join([f"--{'schedule' if name == 'stepsizes' else name.replace('_', '-')}", word])
            for name, value in given.items()
            for word in [value if isinstance(value, str) else repr(value)]
        ]
        return " \\\n  ".join(["dither plan", *words, "--save plan.json"]) + "\n"


class _Code(str):
    """Text that is its own repr."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def form() -> dict[str, Any]:
    """Return what the page needs to know to draw its fields."""
    kinds = {
        name: {
            field.name: f"{_STARTS[field.name] if field.default is MISSING else field.default:g}"
            for field in fields(kind)
        }
        for name, kind in NAMES.items()
    }
    choices = {name: [*names] for name, names in _CHOICES.items()}
    return {
        "defaults": DEFAULTS,
        "choices": choices,
        "parameters": kinds,
        "most_steps": MOST_STEPS,
    }


def read(given: object) -> Settings:
    """Return the settings that the fields' texts stand for.

    Raises:
        FieldsError: with one line for every field that is wrong.
    """
    if not isinstance(given, dict) or {*given} != {*DEFAULTS}:
        raise FieldsError({"": f"fields must be {', '.join(DEFAULTS)}"})
    if not _is_texts({**given, "parameters": ""}) or not _is_texts(given["parameters"]):
        raise FieldsError({"": "fields must be texts, and parameters texts by name"})
    problems: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name, check in _NUMBERS.items():
        with _noted(problems, name):
            values[name] = check(**{name: number(given[name])})
    for name, allowed in _CHOICES.items():
        with _noted(problems, name):
            values[name] = validate.choice(allowed, **{name: given[name]})
    if "schedule" not in problems:
        with _noted(problems):
            values["stepsizes"] = _schedule(problems, given)
    if problems:
        raise FieldsError(problems)
    found = Settings(**values)
    with _noted(problems):
        _check_together(found)
    if problems:
        raise FieldsError(problems)
    return found


def field_of(message: str) -> str:
    """Return the field that a message of the library is about, or none.

    >>> field_of("sample_rate must be above delta"), field_of("stepsizes[3] must be positive")
    ('batch_size', 'schedule')
    """
    word = re.split(r"\W", message, maxsplit=1)[0]
    name = _PLACES.get(word, word)
    return name if name in DEFAULTS else ""


def number(text: str) -> object:
    """Return the number that a text stands for, a whole one as an int, else the text itself."""
    try:
        return int(text) if text.strip().lstrip("+-").isdecimal() else float(text)
    except ValueError:
        return text.strip()


def _is_texts(given: object) -> bool:
    return isinstance(given, dict) and all(isinstance(text, str) for text in given.values())


def _schedule(problems: dict[str, str], given: dict[str, Any]) -> ClosedForm | None:
    kind, parameters = NAMES[given["schedule"]], given["parameters"]
    known = [field.name for field in fields(kind)]
    if {*parameters} != {*known}:
        raise validate.InvalidValueError(
            f"schedule {given['schedule']} needs {', '.join(known)}, got {parameters!r}"
        )
    numbers = {name: number(text) for name, text in parameters.items()}
    for name, value in numbers.items():
        with _noted(problems, f"parameters.{name}"):
            validate.finite(**{name: value})
    if any(name.startswith("parameters.") for name in problems):
        return None
    try:
        return kind(**numbers)
    except (validate.InvalidValueError, validate.InvalidTypeError) as problem:
        word = re.split(r"\W", str(problem), maxsplit=1)[0]
        problems[f"parameters.{word}" if word in known else "schedule"] = str(problem)
        return None


def _check_together(found: Settings) -> None:
    validate.batch_within(batch_size=found.batch_size, dataset_size=found.dataset_size)
    try:
        T = found.steps
    except validate.InvalidValueError:
        T = validate.MOST_STEPS
    if T > MOST_STEPS:
        raise validate.InvalidValueError(
            f"epochs must make at most {MOST_STEPS:,} steps, ceil(epochs·n/m), on this page, "
            f"got {found.epochs:g}"
        )
    found.rates()


@contextmanager
def _noted(problems: dict[str, str], field: str = "") -> Iterator[None]:
    """Note what the library refuses, at the field or at the one that the message names."""
    try:
        yield
    except (validate.InvalidValueError, validate.InvalidTypeError) as problem:
        problems[field or field_of(str(problem))] = str(problem)
