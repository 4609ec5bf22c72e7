"""The settings of the page: fields as text, checked one by one, so that errors name their field."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from typing import Any

from dither import accounting, validate
from dither.planning.planner import NOISES
from dither.schedules.fixed import ClosedForm
from dither.schedules.parsing import NAMES
from dither.types import Budget, FloatArray

MAX_STEPS = 200_000
"""The page plans no longer runs, which would keep the machine busy; the library does."""

_NUMBERS: dict[str, Callable[..., float]] = {
    "epsilon": validate.positive,
    "delta": validate.probability,
    "dataset_size": validate.count,
    "batch_size": validate.count,
    "epochs": validate.positive,
    "clip_norm": validate.positive,
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
}
# The defaults of schedule parameters that have none in their class.
_STARTS = {
    "stepsize": 1.0,
    "start": 1.0,
    "end": 0.01,
    "rate": 0.999,
    "factor": 0.5,
    "every": 1000,
}
_STARTS |= {"a": 20.0, "c": 1.0, "power": 0.5}
_FIELDS_OF_ARGUMENTS = {"sample_rate": "batch_size", "stepsizes": "schedule", "steps": "epochs"}


class FieldsError(ValueError):
    """Fields with invalid values, and one line for each."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("; ".join(problems.values()))
        self.problems = dict(problems)


@dataclass(frozen=True)
class Settings:
    """The values of all fields, checked."""

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

    @property
    def steps(self) -> int:
        """T."""
        return validate.steps_in(
            self.epochs, batch_size=self.batch_size, dataset_size=self.dataset_size
        )

    @property
    def budget(self) -> Budget:
        """The budget of the plan."""
        rate = self.batch_size / self.dataset_size
        return Budget(self.epsilon, self.delta, rate, None, self.sampling)

    def rates(self) -> FloatArray:
        """Return the step sizes."""
        return self.stepsizes.stepsizes(self.steps)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `dither.plan`."""
        names = ("epsilon", "delta", "dataset_size", "batch_size", "epochs", "clip_norm")
        return {name: getattr(self, name) for name in (*names, "stepsizes", "noise", "sampling")}

    def python(self) -> str:
        """Return the code that makes this plan."""
        lines = "".join(
            f"    {name}={'schedules.' if name == 'stepsizes' else ''}{value!r},\n"
            for name, value in self.arguments().items()
        )
        return f"import dither\nfrom dither import schedules\n\nplan = dither.plan(\n{lines})\n"


def form() -> dict[str, Any]:
    """Return defaults, choices and schedule parameters, for the page to draw its fields."""
    kinds = {
        name: {
            field.name: f"{_STARTS[field.name] if field.default is MISSING else field.default:g}"
            for field in fields(kind)
        }
        for name, kind in NAMES.items()
    }
    choices = {name: [*names] for name, names in _CHOICES.items()}
    return {"defaults": DEFAULTS, "choices": choices, "parameters": kinds}


def read(given: Mapping[str, Any]) -> Settings:
    """Return the settings of the fields' texts.

    Raises:
        FieldsError: with one line for every invalid field.
    """
    problems: dict[str, str] = {}
    values: dict[str, Any] = {}
    for name, check in _NUMBERS.items():
        with _collect(problems, name):
            values[name] = check(**{name: number(given[name])})
    for name, allowed in _CHOICES.items():
        with _collect(problems, name):
            values[name] = validate.choice(allowed, **{name: given[name]})
    if "schedule" not in problems:
        with _collect(problems):
            values["stepsizes"] = _schedule(problems, given)
    if problems:
        raise FieldsError(problems)
    settings = Settings(**values)
    with _collect(problems):
        _check_together(settings)
    if problems:
        raise FieldsError(problems)
    return settings


def field_of(message: str) -> str:
    """Return the field that an error message is about, or "".

    >>> field_of("sample_rate must be above delta"), field_of("stepsizes[3] must be positive")
    ('batch_size', 'schedule')
    """
    word = re.split(r"\W", message, maxsplit=1)[0]
    name = _FIELDS_OF_ARGUMENTS.get(word, word)
    return name if name in DEFAULTS else ""


def number(text: str) -> object:
    """Return the number of a text, an integer as an int, or the text if it is not a number."""
    try:
        return int(text) if text.strip().lstrip("+-").isdecimal() else float(text)
    except ValueError:
        return text.strip()


def _schedule(problems: dict[str, str], given: Mapping[str, Any]) -> ClosedForm | None:
    kind, parameters = NAMES[given["schedule"]], given["parameters"]
    known = [field.name for field in fields(kind)]
    numbers = {name: number(text) for name, text in parameters.items()}
    for name, value in numbers.items():
        with _collect(problems, f"parameters.{name}"):
            validate.finite(**{name: value})
    if any(name.startswith("parameters.") for name in problems):
        return None
    try:
        return kind(**numbers)
    except (validate.InvalidValueError, validate.InvalidTypeError) as problem:
        word = re.split(r"\W", str(problem), maxsplit=1)[0]
        problems[f"parameters.{word}" if word in known else "schedule"] = str(problem)
        return None


def _check_together(settings: Settings) -> None:
    validate.batch_within(batch_size=settings.batch_size, dataset_size=settings.dataset_size)
    try:
        T = settings.steps
    except validate.InvalidValueError:
        T = validate.MOST_STEPS
    if T > MAX_STEPS:
        raise validate.InvalidValueError(
            f"epochs must make at most {MAX_STEPS:,} steps, ceil(epochs·n/m), on this page, "
            f"got {settings.epochs:g}"
        )
    settings.rates()


@contextmanager
def _collect(problems: dict[str, str], field: str = "") -> Iterator[None]:
    """Collect an error, at the given field or at the one that its message names."""
    try:
        yield
    except (validate.InvalidValueError, validate.InvalidTypeError) as problem:
        problems[field or field_of(str(problem))] = str(problem)
