"""Linear layers, with any number of dimensions between the records and the features."""

from math import prod

from torch import Tensor
from torch.nn import functional

from dither.clipping.contributions import Contribution, Outer, PerRecord
from dither.clipping.registry import Call, register


@register(functional.linear, leading_alike=True)
def linear(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """The weight's gradient is Σ_t gradient_t ⊗ input_t, the bias' is Σ_t gradient_t."""
    inputs, weight, bias = call.arguments("input", "weight", "bias")
    gradients = terms(gradient)
    found: list[tuple[Tensor, Contribution]] = [(weight, Outer(gradients, terms(inputs)))]
    if bias is not None:
        found.append((bias, PerRecord(over_terms(gradients))))
    return found


def terms(tensor: Tensor) -> Tensor:
    """Join everything between records and features: records × terms × features."""
    return tensor.reshape(len(tensor), prod(tensor.shape[1:-1]), tensor.shape[-1]).contiguous()


def over_terms(tensor: Tensor) -> Tensor:
    """Add up the terms of each record."""
    return tensor.squeeze(1) if tensor.shape[1] == 1 else tensor.sum(1)
