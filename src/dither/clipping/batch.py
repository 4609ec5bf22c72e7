"""Batches and arguments as trees of tensors; the first dimension counts the records."""

import copy
import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dither.validate import InvalidTypeError, InvalidValueError

Loss = Callable[[Any, Any], Tensor]
"""``loss(outputs, targets)`` with one value per record."""

_SCALARS = frozenset({int, float, bool, str, slice, type(None), type(...), torch.dtype})


def tensors(tree: Any) -> list[Tensor]:
    """Return the tensors of a batch or of arguments, however they are nested."""
    found: list[Tensor] = []
    _collect(tree, found)
    return found


def _collect(tree: Any, found: list[Tensor]) -> None:
    if isinstance(tree, Tensor):
        found.append(tree)
    elif type(tree) in _SCALARS:
        return
    elif isinstance(tree, (tuple, list)):
        for value in tree:
            _collect(value, found)
    elif isinstance(tree, (dict, Mapping)):  # a check of the abstract class is slow
        for value in tree.values():
            _collect(value, found)


def tensors_anywhere(value: Any) -> list[Tensor]:
    """Return the tensors of what a model returns: also those in attributes of objects."""
    found: list[Tensor] = []
    seen: set[int] = set()
    ahead = [value]
    while ahead:
        each = ahead.pop()
        if isinstance(each, Tensor):
            found.append(each)
        elif type(each) in _SCALARS or isinstance(each, nn.Module | type) or id(each) in seen:
            continue
        elif isinstance(each, Mapping):
            ahead += reversed(list(each.values()))
        elif isinstance(each, tuple | list | set | frozenset):
            ahead += reversed(list(each))
        elif hasattr(each, "__dict__"):
            ahead += reversed(list(vars(each).values()))
        seen.add(id(each))
    return found


def map_tensors(
    tree: Any, function: Callable[[Tensor], Tensor], others: Callable[[Any], Any] | None = None
) -> Any:
    """Return the same tree with a function applied to each of its tensors.

    Args:
        tree: tensors in tuples, lists, mappings and dataclasses, however they are nested.
        function: for tensors.
        others: for lists and tuples that have no tensors.
    """
    if isinstance(tree, Tensor):
        return function(tree)
    if type(tree) in _SCALARS:
        return tree
    if isinstance(tree, tuple | list):
        if others is not None and not tensors(tree):
            return others(tree)
        values = [map_tensors(value, function, others) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = {f.name: getattr(tree, f.name) for f in dataclasses.fields(tree) if f.init}
        changed = {name: map_tensors(value, function, others) for name, value in fields.items()}
        return dataclasses.replace(tree, **changed)
    if isinstance(tree, Mapping):
        values_by_key = {key: map_tensors(value, function, others) for key, value in tree.items()}
        return values_by_key if type(tree) is dict else _like_mapping(tree, values_by_key)
    return tree


def _like_mapping(tree: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """Return a mapping of the same kind; a plain dict where that cannot be changed."""
    if not hasattr(tree, "__setitem__"):
        return values
    made = copy.copy(tree)
    for key, value in values.items():
        made[key] = value
    return made


def slice_rows(tree: Any, rows: slice, total: int) -> Any:
    """Return some rows of every tensor and list in a batch that has that many rows in total."""
    return map_tensors(
        tree,
        lambda tensor: tensor[rows] if tensor.shape[:1] == (total,) else tensor,
        lambda values: values[rows] if len(values) == total else values,
    )


def count_records(**argument: Any) -> int:
    """Return the number of records in a batch, on which all its tensors must agree."""
    ((name, batch),) = argument.items()
    sizes = {tensor.shape[0] if tensor.dim() else None for tensor in tensors(batch)}
    if not sizes:
        raise InvalidTypeError(
            f"{name} must be a tensor, or a tuple or dict of tensors, got {type(batch).__name__}"
        )
    if len(sizes) > 1 or None in sizes:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors(batch))
        raise InvalidValueError(
            f"{name} must have the records along the first dimension of every tensor, "
            f"got shapes {shapes}"
        )
    (size,) = sizes
    assert size is not None  # noqa: S101 (for the type checker: excluded above)
    return size


def forward(model: Callable[..., Any], inputs: Any) -> Any:
    """Call the model: a tuple gives positional arguments, a dict gives keywords."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def check_losses(losses: object, records: int, name: str = "losses") -> Tensor:
    """Return the losses if there is one per record; raise if not."""
    if isinstance(losses, Tensor) and losses.shape == (records,):
        return losses
    if not isinstance(losses, Tensor):
        got, remedy = type(losses).__name__, 'use reduction="none"'
    elif losses.dim() == 0:
        got = "a single number"
        remedy = (
            'use reduction="none"; where the model returns its own mean loss, compute one loss per '
            "record from its logits"
        )
    elif losses.dim() == 1:
        got = "a vector of another length"
        remedy = (
            "compute a loss for every record that was drawn, with zeros for those that do not "
            "count, and take parts of a batch from private.microbatches(batch, size)"
        )
    else:
        got = f"{losses.dim()} dimensions"
        remedy = "reduce over the dimensions of one record, as .flatten(1).mean(1) does"
    raise InvalidValueError(
        f"{name} must be one value per record, a tensor of shape (records,), got {got}; {remedy}"
    )


def check_weights(record_weights: object, records: int) -> Tensor:
    """Return the weights if there is one per record; raise if not."""
    if isinstance(record_weights, Tensor) and record_weights.shape == (records,):
        return record_weights
    got = type(record_weights).__name__
    if isinstance(record_weights, Tensor):
        got = f"{record_weights.dim()} dimensions" if record_weights.dim() != 1 else "others"
    raise InvalidValueError(
        f"record_weights must be one number per record, a tensor of shape (records,), got {got}"
    )


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient, each once, by the model's own names."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def quiet_vmap(function: Callable[..., Any]) -> Any:
    """Return ``torch.func.vmap`` of a function without its performance warnings."""
    plain = torch.func.vmap(function)

    def quiet(*args: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            return plain(*args)

    return quiet


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which gradients of this type are computed: never half precision."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
