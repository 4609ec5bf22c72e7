"""What every reader returns: labelled records in memory, and their two parts."""

import math
from collections.abc import Mapping, Sequence
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
        columns: the names of the inputs' columns, if they have any.

    Example:
        >>> import torch
        >>> pets = Examples(torch.zeros(2, 3), torch.tensor([0, 1]), ["cat", "dog"])
        >>> len(pets), pets.classes
        (2, ('cat', 'dog'))
    """

    classes: tuple[str, ...]
    columns: tuple[str, ...]

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        classes: Sequence[str],
        columns: Sequence[str] = (),
    ) -> None:
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
        self.classes, self.columns = tuple(classes), tuple(columns)

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


def among(examples: Examples, classes: Sequence[str]) -> Examples:
    """Return records with a set of classes that is known beforehand, and not read off them.

    Example:
        >>> import torch
        >>> dogs = Examples(torch.zeros(1, 3), torch.tensor([0]), ["dog"])
        >>> among(dogs, ["cat", "dog"]).targets
        tensor([1])
    """
    if len(set(classes)) != len(classes) or len(classes) < 2:
        raise InvalidValueError(
            f"classes must be two or more different names, got {', '.join(classes)!r}"
        )
    unknown = sum(name not in classes for name in examples.classes)
    if unknown:
        raise InvalidValueError(
            f"classes must have all that the records have, got {', '.join(classes)!r}, without "
            f"{unknown} of them"
        )
    places = torch.tensor([classes.index(name) for name in examples.classes])
    return Examples(examples.inputs, places[examples.targets], classes, examples.columns)


def within(examples: Examples, bounds: Mapping[str, tuple[float, float]]) -> Examples:
    """Return records whose columns are clipped to public bounds and scaled to −1 … 1.

    Columns without bounds stay as they are.

    Example:
        >>> import torch
        >>> ages, classes = torch.tensor([[30.0], [150.0]]), torch.tensor([0, 1])
        >>> people = Examples(ages, classes, ["ill", "well"], ["age"])
        >>> within(people, {"age": (0.0, 120.0)}).inputs
        tensor([[-0.5000],
                [ 1.0000]])
    """
    inputs = examples.inputs.clone()
    for name, (least, largest) in bounds.items():
        if name not in examples.columns:
            raise InvalidValueError(
                f"bounds must be of columns of the records, {', '.join(examples.columns)}, got "
                f"{name!r}"
            )
        if not (math.isfinite(least) and math.isfinite(largest) and least < largest):
            raise InvalidValueError(
                f"bounds of {name} must be two numbers, the smaller one first, got "
                f"{least:g} and {largest:g}"
            )
        column = inputs[:, examples.columns.index(name)]
        column.clamp_(least, largest).sub_(least).mul_(2.0 / (largest - least)).sub_(1.0)
    return Examples(inputs, examples.targets, examples.classes, examples.columns)


def with_classes(examples: Examples, other: Examples) -> Examples:
    """Return records with the labels and columns of another set, by the names of both.

    Args:
        examples: the records.
        other: the set whose classes are meant; it may have more of them, but must have all.

    Example:
        >>> import torch
        >>> pets = Examples(torch.zeros(2, 3), torch.tensor([0, 1]), ["cat", "dog"])
        >>> dogs = Examples(torch.zeros(1, 3), torch.tensor([0]), ["dog"])
        >>> with_classes(dogs, pets).targets
        tensor([1])
    """
    unknown = [name for name in examples.classes if name not in other.classes]
    if unknown:
        raise InvalidValueError(
            f"the public records must have classes of the training records, got {unknown[0]!r}"
        )
    if examples.inputs.shape[1:] != other.inputs.shape[1:]:
        raise InvalidValueError(
            "the public records must have the shape of the training records, "
            f"{tuple(other.inputs.shape[1:])}, got {tuple(examples.inputs.shape[1:])}"
        )
    inputs = examples.inputs
    if examples.columns != other.columns:
        strange = sorted({*examples.columns} ^ {*other.columns})
        if strange:
            raise InvalidValueError(
                "the public records must have the columns of the training records, but "
                f"{strange[0]!r} is in one of them alone"
            )
        inputs = inputs[:, [examples.columns.index(name) for name in other.columns]]
    places = torch.tensor([other.classes.index(name) for name in examples.classes])
    return Examples(inputs, places[examples.targets], other.classes, other.columns)
