"""Labels as they are written, numbered 0 … K−1 in sorted order."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Label = TypeVar("Label", int, str)


def encode(labels: Sequence[Label]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the number of each label, and the labels in sorted order as text.

    Labels that are 0 … K−1 already stay as they are.

    Example:
        >>> encode([7, -1, 7])
        (array([1, 0, 1]), ('-1', '7'))
        >>> encode(["dog", "cat", "dog"])
        (array([1, 0, 1]), ('cat', 'dog'))
    """
    ordered = sorted(set(labels))
    number = {label: index for index, label in enumerate(ordered)}
    numbers = np.fromiter((number[label] for label in labels), np.int64, len(labels))
    return numbers, tuple(str(label) for label in ordered)
