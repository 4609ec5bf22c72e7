"""Schedules written as text, for command lines and files: ``inverse-sqrt:a=20,c=1``."""

from dataclasses import MISSING, fields

from dither import validate
from dither.schedules.closed_form import (
    ClosedForm,
    Constant,
    Cosine,
    Exponential,
    InverseSqrt,
    Linear,
    Polynomial,
    SqrtToZero,
    Step,
)

NAMES: dict[str, type[ClosedForm]] = {
    "constant": Constant,
    "cosine": Cosine,
    "exponential": Exponential,
    "inverse-sqrt": InverseSqrt,
    "linear": Linear,
    "polynomial": Polynomial,
    "sqrt-to-zero": SqrtToZero,
    "step": Step,
}


def parse(schedule: str) -> ClosedForm:
    """Return the schedule that ``name:key=value,key=value`` stands for.

    >>> parse("linear:start=2,end=0.01")
    Linear(start=2.0, end=0.01)
    >>> parse("inverse-sqrt")
    InverseSqrt(a=20.0, c=1.0, scale=1.0)
    """
    name, _, rest = schedule.partition(":")
    kind = NAMES[validate.choice(NAMES, schedule=name.strip())]
    given = dict(_parameter(schedule, part) for part in rest.split(",") if part.strip())
    known = {field.name: field for field in fields(kind)}
    for key in given:
        validate.choice(known, **{f"a parameter of schedule {name}": key})
    missing = [key for key, field in known.items() if field.default is MISSING and key not in given]
    if missing:
        raise validate.InvalidValueError(
            f"schedule {name} needs {', '.join(missing)}, got {schedule!r}"
        )
    return kind(**given)


def _parameter(schedule: str, part: str) -> tuple[str, float]:
    key, equals, text = (piece.strip() for piece in part.partition("="))
    try:
        number = float(text)
    except ValueError:
        equals = ""
    if not equals:
        raise validate.InvalidValueError(
            f"schedule must look like name:key=number,key=number, got {schedule!r}"
        )
    return key, number
