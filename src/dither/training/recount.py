"""Numbers on a tape that are the number of rows, or were computed from it.

``len(inputs)`` is a plain number once Python has it. So what a tape is given is guessed by its
value: in arithmetic up to four times the number of rows, or one over that; in all other calls the
first number if it equals it, as in ``view(len(inputs), -1)``.
"""

from collections.abc import Callable
from typing import Any

_ARITHMETIC = (
    "mul", "multiply", "__mul__", "__rmul__", "__imul__", "mul_", "div", "divide", "true_divide",
    "__truediv__", "__rtruediv__", "__itruediv__", "__rdiv__", "div_",
)  # fmt: skip


def recounted(
    function: Callable[..., Any], args: tuple[Any, ...], old: int, new: int, arithmetic: bool = True
) -> tuple[Any, ...]:
    """Return a call's positional arguments as they would be for another number of rows.

    Args:
        function: what is called.
        args: with what.
        old: the number of rows.
        new: the new one.
        arithmetic: whether numbers in arithmetic are meant, too.

    >>> import torch
    >>> recounted(torch.Tensor.view, (7, -1, 7), old=7, new=3)
    (3, -1, 7)
    >>> recounted(torch.mul, (14, 0.5), old=7, new=3)
    (6.0, 0.5)
    """
    is_arithmetic = getattr(function, "__name__", "") in _ARITHMETIC
    if old == new or (is_arithmetic and not arithmetic):
        return args
    if is_arithmetic:
        return tuple(_rescaled(value, old, new) for value in args)
    return tuple(_with_first_replaced(list(args), old, new))


def _rescaled(value: Any, old: int, new: int) -> Any:
    if type(value) not in (int, float) or value == 0:
        return value
    for multiple in range(old, 5 * old, old):
        if value == multiple:
            return value * new / old
        if abs(value * multiple - 1.0) <= 1e-12:
            return value * old / new
    return value


def _with_first_replaced(values: list[Any], old: int, new: int) -> list[Any]:
    """Replace the first number among the arguments, if it is the number of rows."""
    for place, value in enumerate(values):
        if type(value) is int:
            return [*values[:place], new, *values[place + 1 :]] if value == old else values
        if isinstance(value, tuple | list) and value:
            inner = _with_first_replaced(list(value), old, new)
            return [*values[:place], type(value)(inner), *values[place + 1 :]]
    return values
