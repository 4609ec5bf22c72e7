"""Schedules written as text, for command lines and files: ``inverse-sqrt:a=20,c=1``."""

from dataclasses import MISSING, fields

from dither import validate
from dither.schedules.fixed import (
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

    Args:
        schedule: a name in `NAMES`, a colon, and the parameters of its class; those with a default
            may be left out, and with them the colon.

    Returns:
        The schedule.

    Example:
        >>> parse("linear:start=2,end=0.01")
        Linear(start=2.0, end=0.01)
        >>> parse("inverse-sqrt")
        InverseSqrt(a=20.0, c=1.0, scale=1.0)
    """
    text = validate.instance(str, schedule=schedule)
    name, _, rest = (piece.strip() for piece in text.partition(":"))
    kind = NAMES[validate.choice(NAMES, schedule=name)]
    known = {field.name: field for field in fields(kind)}
    given: dict[str, float] = {}
    for part in rest.split(",") if rest else []:
        key, number = _parameter(text, part)
        validate.choice(known, **{f"a parameter of schedule {name}": key})
        if key in given:
            raise validate.InvalidValueError(f"schedule must give {key} once, got {text!r}")
        given[key] = number
    missing = [key for key, field in known.items() if field.default is MISSING and key not in given]
    if missing:
        raise validate.InvalidValueError(
            f"schedule {name} needs {', '.join(missing)}, got {text!r}"
        )
    return kind(**given)


def text_of(schedule: object) -> str | None:
    """Return the text that `parse` reads as this schedule; None if there is none.

    >>> text_of(Linear(1.0, 0.05))
    'linear:start=1.0,end=0.05'
    """
    for name, kind in NAMES.items():
        if type(schedule) is kind:
            pairs = (f"{each.name}={getattr(schedule, each.name)!r}" for each in fields(kind))
            return f"{name}:{','.join(pairs)}"
    return None


def parameters(name: str) -> str:
    """Return how the schedule of that name is written, for help texts."""
    shown = [
        field.name if field.default is MISSING else f"{field.name}={field.default:g}"
        for field in fields(NAMES[name])
    ]
    return f"{name}:{','.join(shown)}"


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
