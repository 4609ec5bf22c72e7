"""What every reader returns: labelled records in memory, and their two parts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset

from dither.validate import InvalidTypeError, InvalidValueError, instance


class Examples(TensorDataset):
    """Records in memory: a TensorDataset of (inputs, targets) that knows its classes.

    Args:
        inputs: float32, the first dimension runs over the records.
        targets: int64, one label a record.
        classes: the name of each label, in the order of the labels.

    Example:
        >>> import torch
        >>> pets = Examples(torch.zeros(2, 3), torch.tensor([0, 1]), ["cat", "dog"])
        >>> len(pets), pets.classes
        (2, ('cat', 'dog'))
    """

    classes: tuple[str, ...]

    def __init__(self, inputs: Tensor, targets: Tensor, classes: Sequence[str]) -> None:
        for name, tensor, dtype in (
            ("inputs", inputs, torch.float32),
            ("targets", targets, torch.int64),
        ):
            if instance(Tensor, **{name: tensor}).dtype != dtype:
                raise InvalidTypeError(f"{name} must be of {dtype}, got {tensor.dtype}")
        if targets.ndim != 1 or inputs.ndim < 1 or len(inputs) != len(targets):
            raise InvalidValueError(
                "targets must have one label a record, "
                f"got shape {tuple(targets.shape)} for inputs of shape {tuple(inputs.shape)}"
            )
        if inputs.numel() == 0:
            raise InvalidValueError(
                f"inputs must have at least one record and one value, got {tuple(inputs.shape)}"
            )
        super().__init__(inputs, targets)
        self.classes = tuple(classes)

    @property
    def inputs(self) -> Tensor:
        """The inputs, one record a row."""
        return self.tensors[0]

    @property
    def targets(self) -> Tensor:
        """The labels, one a record."""
        return self.tensors[1]


@dataclass(frozen=True)
class Split:
    """A set in two parts.

    Attributes:
        train: the records to train on.
        test: the records to measure with, or None if the source has no such part.
    """

    train: Examples
    test: Examples | None


def from_bytes(
    pixels: NDArray[np.uint8], targets: NDArray[np.int64], classes: Sequence[str]
) -> Examples:
    """Return the examples of pixels in 0 … 255, scaled to [0, 1]."""
    inputs = torch.tensor(pixels, dtype=torch.float32).div_(255.0)
    return Examples(inputs, torch.tensor(targets, dtype=torch.int64), classes)
