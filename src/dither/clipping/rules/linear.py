"""Matrix products with a parameter, and embeddings, which are products with one-hot vectors."""

from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from dither.clipping.contributions import Contribution, Lookup, Outer, PerRecord
from dither.clipping.rules.registry import Call, UnseenUseError, register


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


@register(
    torch.matmul,
    torch.mm,
    Tensor.matmul,
    Tensor.mm,
    Tensor.__matmul__,
    leading_alike=True,
)
def matmul(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """The gradient of a matrix on the right is Σ_t input_t ⊗ gradient_t."""
    inputs, other = (*call.args, *call.kwargs.values())
    if other.dim() != 2 or not call.is_parameter(other) or inputs.dim() < 2:
        raise UnseenUseError("matmul has its parameter on the left, or no matrix on the right")
    return [(other, Outer(terms(inputs), terms(gradient)))]


@register(torch.addmm, leading_alike=True)
def addmm(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """A product with a bias: ``addmm(bias, inputs, weight)``."""
    if len(call.args) != 3 or call.kwargs or call.args[0].dim() != 1:
        raise UnseenUseError("addmm is not of the form addmm(bias, inputs, weight)")
    bias, inputs, weight = call.args
    gradients = terms(gradient)
    return [
        (weight, Outer(terms(inputs), gradients)),
        (bias, PerRecord(over_terms(gradients))),
    ]


@register(functional.embedding, leading_alike=True)
def embedding(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """Each token's gradient belongs to the row that was looked up; the padding's row has none."""
    indices, weight, padding, longest, _, by_frequency = call.arguments(
        "input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq"
    )
    if longest is not None or by_frequency:
        raise UnseenUseError("embedding has max_norm or scale_grad_by_freq, which mix records")
    indices = indices.reshape(call.records, -1)
    values = gradient.reshape(call.records, -1, gradient.shape[-1])
    if padding is not None:
        padding = padding % len(weight)
        values = values.masked_fill((indices == padding)[:, :, None], 0.0)
    return [(weight, Lookup(indices, values, len(weight)))]
