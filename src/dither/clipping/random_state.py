"""Random numbers that a model draws: generator states, and constants instead of draws."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_DROPOUT = {
    torch.dropout,
    functional.alpha_dropout,
    functional.dropout,
    functional.dropout1d,
    functional.dropout2d,
    functional.dropout3d,
    functional.feature_alpha_dropout,
}
_UNIFORM = {torch.rand, torch.rand_like, Tensor.uniform_}
_CENTRED = {
    torch.normal,
    torch.randint,
    torch.randint_like,
    torch.randn,
    torch.randn_like,
    Tensor.cauchy_,
    Tensor.normal_,
    Tensor.random_,
}
_POSITIVE = {
    torch.bernoulli,
    Tensor.bernoulli,
    Tensor.bernoulli_,
    Tensor.exponential_,
    Tensor.geometric_,
    Tensor.log_normal_,
}
_MEANS: dict[Any, Callable[..., Tensor]] = {
    torch.poisson: lambda rate, *_: rate,
    torch._standard_gamma: lambda shape, *_: shape,
    torch._sample_dirichlet: lambda weights, *_: weights / weights.sum(-1, keepdim=True),
    torch.binomial: lambda count, share, *_: count * share,
}
"""Draws that take more random numbers for some values than for others."""


def random_state(given: Iterable[Tensor]) -> tuple[Any, ...]:
    """Return the state of all generators that a model with such inputs may draw from."""
    devices = sorted({t.device.index or 0 for t in given if t.device.type == "cuda"})
    cuda = tuple((device, torch.cuda.get_rng_state(device)) for device in devices)
    numpy_state = np.random.get_state()  # noqa: NPY002 (models draw from it)
    return torch.get_rng_state(), cuda, random.getstate(), numpy_state


def set_random_state(state: tuple[Any, ...]) -> None:
    """Put all generators into a state."""
    torch.set_rng_state(state[0])
    for device, found in state[1]:
        torch.cuda.set_rng_state(found, device)
    random.setstate(state[2])
    np.random.set_state(state[3])  # noqa: NPY002


def has_drawn(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    """Return whether random numbers were drawn between two states."""
    return (
        not torch.equal(before[0], after[0])
        or any(not torch.equal(a[1], b[1]) for a, b in zip(before[1], after[1], strict=True))
        or before[2] != after[2]
        or before[3][2] != after[3][2]
        or not np.array_equal(before[3][1], after[3][1])
    )


class ConstantDraws(TorchFunctionMode):
    """Dropout is the identity, and random draws are constant: only permutations stay random.

    Args:
        uniform: what is drawn from the uniform distribution over [0, 1].
    """

    def __init__(self, uniform: float) -> None:
        super().__init__()
        self._uniform = uniform

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Replace one draw."""
        kwargs = kwargs or {}
        if func in _DROPOUT:
            return args[0] if args else kwargs["input"]
        if func is functional.scaled_dot_product_attention:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            named = dict(zip(names, args, strict=False)) | kwargs
            return func(**{**named, "dropout_p": 0.0})
        if func in _MEANS:
            return _MEANS[func](*args)
        output = func(*args, **kwargs)
        value = self._value(func)
        if value is None:
            return output
        with torch.no_grad():
            return output.fill_(value if output.is_floating_point() else 0)

    def _value(self, func: Callable[..., Any]) -> float | None:
        if func in _UNIFORM:
            return self._uniform
        if func in _CENTRED:
            return 0.0
        return 1.0 if func in _POSITIVE else None
