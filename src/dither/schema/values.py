"""Checks of the lists that a schema declares."""

from collections.abc import Iterable
from typing import Any

from dither import validate
from dither.schema.cells import text_of
from dither.validate import InvalidTypeError, InvalidValueError


def items(**argument: Any) -> list[Any]:
    """Return the argument as a list; text is none."""
    ((name, value),) = argument.items()
    if isinstance(value, str | bytes | dict) or not isinstance(value, Iterable):
        raise InvalidTypeError(f"{name} must be a list, got {value!r}")
    return [*value]


def finite_pair(**argument: Any) -> tuple[float, float]:
    """Return two finite numbers, the smaller one first."""
    ((name, value),) = argument.items()
    numbers = [validate.finite(**{name: each}) for each in items(**argument)]
    if (
        len(numbers) != 2
        or not numbers[0] < numbers[1]
        or max(map(abs, numbers)) > validate.LARGEST
    ):
        raise InvalidValueError(
            f"{name} must be two numbers within −1e50 … 1e50, the smaller one first, got {value!r}"
        )
    return numbers[0], numbers[1]


def labels(**argument: Any) -> tuple[str, ...]:
    """Return values as distinct texts, at least one of them."""
    ((name, value),) = argument.items()
    texts = []
    for each in items(**argument):
        if not isinstance(each, str | int | float) or text_of(each) is None:
            raise InvalidTypeError(f"{name} must be texts, none of them empty, got {each!r}")
        texts.append(each.strip() if isinstance(each, str) else str(text_of(each)))
    compared = [text_of(text) for text in texts]
    for index, text in enumerate(compared):
        if text in compared[:index]:
            raise InvalidValueError(
                f"{name} must have every value once, got {texts[index]!r} twice"
            )
    if not texts:
        raise InvalidValueError(f"{name} must have at least one value, got {value!r}")
    return tuple(texts)
