"""Labelled records in memory: what every reader returns."""

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
        targets: int64, one label per record.
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
                "targets must have one label per record, "
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
        """The inputs, one record per row."""
        return self.tensors[0]

    @property
    def targets(self) -> Tensor:
        """The labels, one per record."""
        return self.tensors[1]


@dataclass(frozen=True)
class Split:
    """A set in two parts.

    Attributes:
        train: the records to train on.
        test: the records to evaluate on, or None if the source has no such part.

    Example:
        >>> import torch
        >>> pets = Examples(torch.zeros(2, 3), torch.tensor([0, 1]), ["cat", "dog"])
        >>> Split(train=pets, test=None).train.classes
        ('cat', 'dog')
    """

    train: Examples
    test: Examples | None


def from_bytes(
    pixels: NDArray[np.uint8], targets: NDArray[np.int64], classes: Sequence[str]
) -> Examples:
    """Return the examples of pixels in 0 … 255, scaled to [0, 1]."""
    inputs = torch.tensor(pixels, dtype=torch.float32).div_(255.0)
    return Examples(inputs, torch.tensor(targets, dtype=torch.int64), classes)


def with_classes(examples: Examples, classes: Sequence[str]) -> Examples:
    """Return records labelled by a public list of classes instead of those that occur.

    Example:
        >>> import torch
        >>> dogs = Examples(torch.zeros(1, 3), torch.tensor([0]), ["dog"])
        >>> with_classes(dogs, ["cat", "dog"]).targets
        tensor([1])
    """
    if len(set(classes)) != len(classes) or len(classes) < 2:
        raise InvalidValueError(
            f"classes must be two or more different names, got {', '.join(classes)!r}"
        )
    unknown = sum(name not in classes for name in examples.classes)
    if unknown:
        raise InvalidValueError(
            f"classes must include every class of the records, got {', '.join(classes)!r} without "
            f"{unknown} of them"
        )
    return _relabel(examples, classes)


def align_with(examples: Examples, reference: Examples) -> Examples:
    """Return public records with the labels of a reference set, matched by name.

    Args:
        examples: the records; their classes must be among those of the reference.
        reference: the training records.

    Example:
        >>> import torch
        >>> pets = Examples(torch.zeros(2, 3), torch.tensor([0, 1]), ["cat", "dog"])
        >>> dogs = Examples(torch.zeros(1, 3), torch.tensor([0]), ["dog"])
        >>> align_with(dogs, pets).targets
        tensor([1])
    """
    unknown = [name for name in examples.classes if name not in reference.classes]
    if unknown:
        raise InvalidValueError(
            f"the public records must have classes of the training records, got {unknown[0]!r}"
        )
    if examples.inputs.shape[1:] != reference.inputs.shape[1:]:
        raise InvalidValueError(
            "the public records must have the shape of the training records, "
            f"{tuple(reference.inputs.shape[1:])}, got {tuple(examples.inputs.shape[1:])}"
        )
    return _relabel(examples, reference.classes)


def _relabel(examples: Examples, classes: Sequence[str]) -> Examples:
    positions = torch.tensor([classes.index(name) for name in examples.classes])
    return Examples(examples.inputs, positions[examples.targets], classes)
