"""Metrics of a model, on data that is declared public and on no other."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dither.clipping.batch import Loss, forward, map_tensors, tensors
from dither.training.distributed import Shard
from dither.training.records import records_of
from dither.validate import InvalidTypeError, InvalidValueError

_BATCH = 1000


@dataclass(frozen=True)
class Public:
    """Data that is declared public: a model is measured on such data only.

    Args:
        dataset: (inputs, targets) as `train` takes them.

    Example:
        >>> Public((torch.zeros(2, 3), torch.zeros(2)))
        Public(tuple)
    """

    dataset: Any

    def __repr__(self) -> str:
        return f"Public({type(self.dataset).__name__})"


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and every layer back into the mode that it had."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, is_training in modes.items():
            module.training = is_training


@torch.no_grad()
def measure(model: nn.Module, public: Public, loss: Loss) -> dict[str, float]:
    """Return the mean loss, and the accuracy if the targets are classes."""
    records = records_of(public.dataset)
    device = next(iter(model.parameters())).device
    starts = range(0, records.length, _BATCH)
    draws = (np.arange(start, min(records.length, start + _BATCH)) for start in starts)
    right, total, are_classes = 0, 0.0, True
    with eval_mode(model):
        for batch in records.batches(draws):
            *inputs, targets = map_tensors(batch, lambda tensor: tensor.to(device))
            outputs = forward(model, arguments_of(inputs))
            total += float(loss(outputs, targets).double().sum())
            logits = getattr(outputs, "logits", outputs)
            are_classes = are_classes and not targets.is_floating_point()
            are_classes = are_classes and isinstance(logits, Tensor) and logits.dim() == 2
            if are_classes:
                right += int((predicted(logits) == targets).sum())
    loss_only = {"loss": total / records.length}
    return {"accuracy": right / records.length, **loss_only} if are_classes else loss_only


def arguments_of(inputs: Sequence[Any]) -> Any:
    """Return what a model is called with: a dict alone gives keywords, as in `clipped_sum`."""
    is_dict = len(inputs) == 1 and isinstance(inputs[0], Mapping)
    return inputs[0] if is_dict else tuple(inputs)


def predicted(outputs: Tensor) -> Tensor:
    """Return the class of the largest logit, or of a single one its sign."""
    return (outputs[:, 0] > 0).long() if outputs.shape[1] == 1 else outputs.argmax(1)


def check_public(evaluate: object, private: Any) -> Public | None:
    """Return the data to measure on, if it is declared public and not the private data."""
    if evaluate is None:
        return None
    if isinstance(evaluate, Public):
        if evaluate.dataset is private or _places(evaluate.dataset) & _places(private):
            raise InvalidValueError(
                "evaluate must be data that is public, got the private training data itself"
            )
        return evaluate
    raise InvalidTypeError(
        f"evaluate must be dither.Public(dataset) or None, got {type(evaluate).__name__}: a model "
        "is measured on data that is declared public only"
    )


def _places(dataset: Any) -> set[tuple[int, tuple[int, ...]]]:
    """Return the memory addresses and shapes of a dataset's tensors."""
    dataset = dataset.dataset if isinstance(dataset, Shard) else dataset
    held = dataset.tensors if isinstance(dataset, TensorDataset) else dataset
    return {(tensor.data_ptr(), tuple(tensor.shape)) for tensor in tensors(held)}
