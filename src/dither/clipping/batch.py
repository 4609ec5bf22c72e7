"""A batch is a tensor, a tuple or a dict of tensors; the first dimension counts the records."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dither.validate import InvalidTypeError, InvalidValueError

Loss = Callable[[Any, Any], Tensor]
"""``loss(outputs, targets)`` with one value a record."""


def tensors(batch: Any) -> list[Tensor]:
    """Return the tensors of a batch or of arguments, however they are nested."""
    found: list[Tensor] = []
    _collect(batch, found)
    return found


_SCALARS = frozenset({int, float, bool, str, slice, type(None), type(...), torch.dtype})


def _collect(batch: Any, found: list[Tensor]) -> None:
    if isinstance(batch, Tensor):
        found.append(batch)
    elif type(batch) in _SCALARS:
        return
    elif isinstance(batch, (tuple, list)):
        for value in batch:
            _collect(value, found)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            _collect(value, found)


def count(**argument: Any) -> int:
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


def mapped(batch: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return the batch with a function applied to each of its tensors; lists become tuples."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: mapped(value, function) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(mapped(value, function) for value in batch)
    return batch


def take(batch: Any, records: slice) -> Any:
    """Return the batch of these records only."""
    return mapped(batch, lambda tensor: tensor[records])


def copied(batch: Any) -> Any:
    """Return a copy of a batch, for a model that may change what it is given."""
    return mapped(batch, torch.clone)


def forward(model: Callable[..., Any], inputs: Any) -> Any:
    """Call the model: a tuple gives positional arguments, a dict gives keywords."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def losses_of(loss: Loss, outputs: Any, targets: Any, records: int) -> Tensor:
    """Return the losses, one a record."""
    losses: object = loss(outputs, targets)
    if not isinstance(losses, Tensor) or losses.shape != (records,):
        got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        remedy = (
            "reduce over the other dimensions, for example with .flatten(1).mean(1)"
            if isinstance(losses, Tensor) and losses.dim() > 1
            else 'losses of torch.nn.functional do so with reduction="none"'
        )
        raise InvalidValueError(
            f"loss must return one value a record, a tensor of shape ({records},), got {got}; "
            f"{remedy}"
        )
    return losses


class Objective(Protocol):
    """What is differentiated: from a model and a batch to losses.

    Attributes:
        key: the same for objectives that make the same calls, for what is proven only once.
        sizes_vary: whether a record must not depend on the number of records either.
    """

    @property
    def key(self) -> object:
        """See above."""
        ...

    @property
    def sizes_vary(self) -> bool:
        """See above."""
        ...

    def values(self, called: Callable[..., Any], batch: Any, records: int) -> Tensor:
        """Return one value a record: its loss, or what else would tell that records are mixed."""
        ...

    def loss_of_one(self, called: Callable[..., Any], batch: Any) -> Tensor:
        """Return the loss of a batch of one record, without dimensions."""
        ...


@dataclass(frozen=True)
class LossOf:
    """``loss(model(inputs), targets)`` of a batch (inputs, targets)."""

    loss: Loss
    sizes_vary: bool = True

    @property
    def key(self) -> object:
        """The loss's code: a new closure of the same function makes the same calls."""
        return getattr(self.loss, "__code__", type(self.loss))

    def values(self, called: Callable[..., Any], batch: Any, records: int) -> Tensor:
        """Return the losses."""
        inputs, targets = batch
        return losses_of(self.loss, forward(called, inputs), targets, records)

    def loss_of_one(self, called: Callable[..., Any], batch: Any) -> Tensor:
        """Return the only loss."""
        return self.values(called, batch, 1)[0]


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient, each once, by the model's own names."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def vmapped(function: Callable[..., Any], in_dims: Any = 0, randomness: str = "error") -> Any:
    """Return ``torch.func.vmap`` of a function without its remarks on its own speed."""
    plain = torch.func.vmap(function, in_dims, randomness=randomness)

    def quiet(*args: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            return plain(*args)

    return quiet


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which gradients of this type are computed: never half precision."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


class OnCopies:
    """A model that is called with copies of its buffers, which it may change."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        if not self._buffers:
            return self._model(*args, **kwargs)
        return torch.func.functional_call(self._model, self._buffers, args, kwargs)

    def buffers_now(self) -> list[tuple[str, Tensor]]:
        """Return the copies, as the calls have left them."""
        return list(self._buffers.items())


@contextmanager
def unchanged(model: nn.Module, inputs: Any) -> Iterator[OnCopies]:
    """Give a model to try: its buffers and the random numbers are afterwards as before."""
    devices = {t.device.index for t in tensors(inputs) if t.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)):
        yield OnCopies(model)
