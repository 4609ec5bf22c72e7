"""Matrix products with a parameter, and embeddings, which are products with one-hot vectors."""

from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from dither.clipping.contributions import Contribution, Lookup, Outer, PerRecord
from dither.clipping.recurrent import state_product
from dither.clipping.rules.registry import Call, UnsupportedCallError, register


@register(functional.linear, state_product, any_leading_dims=True)
def linear(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """The weight's gradient is Σ_t gradient_t ⊗ input_t, the bias' is Σ_t gradient_t."""
    inputs, weight, bias = call.arguments("input", "weight", "bias")
    gradients = join_terms(gradient)
    found: list[tuple[Tensor, Contribution]] = [(weight, Outer(gradients, join_terms(inputs)))]
    if bias is not None:
        found.append((bias, PerRecord(sum_terms(gradients))))
    return found


def join_terms(tensor: Tensor) -> Tensor:
    """Join everything between records and features: records × terms × features."""
    return tensor.reshape(len(tensor), prod(tensor.shape[1:-1]), tensor.shape[-1]).contiguous()


def sum_terms(tensor: Tensor) -> Tensor:
    """Add up the terms of each record."""
    return tensor.squeeze(1) if tensor.shape[1] == 1 else tensor.sum(1)


@register(
    torch.matmul,
    torch.mm,
    Tensor.matmul,
    Tensor.mm,
    Tensor.__matmul__,
    any_leading_dims=True,
)
def matmul(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """The gradient of a matrix on the right is Σ_t input_t ⊗ gradient_t."""
    inputs, other = (*call.args, *call.kwargs.values())
    if other.dim() != 2 or not call.is_parameter(other) or inputs.dim() < 2:
        raise UnsupportedCallError(
            "matmul has its parameter on the left, or no matrix on the right"
        )
    return [(other, Outer(join_terms(inputs), join_terms(gradient)))]


@register(torch.addmm, any_leading_dims=True)
def addmm(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """A product with a bias: ``addmm(bias, inputs, weight)``."""
    if len(call.args) != 3 or call.kwargs or call.args[0].dim() != 1:
        raise UnsupportedCallError("addmm is not of the form addmm(bias, inputs, weight)")
    bias, inputs, weight = call.args
    gradients = join_terms(gradient)
    return [
        (weight, Outer(join_terms(inputs), gradients)),
        (bias, PerRecord(sum_terms(gradients))),
    ]


@register(functional.embedding, any_leading_dims=True)
def embedding(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """Each token's gradient belongs to the row that was looked up; the padding's row has none."""
    indices, weight, padding, longest, _, by_frequency = call.arguments(
        "input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq"
    )
    if longest is not None or by_frequency:
        raise UnsupportedCallError(
            "embedding has max_norm or scale_grad_by_freq, which mix records"
        )
    indices = indices.reshape(call.records, -1)
    values = gradient.reshape(call.records, -1, gradient.shape[-1])
    if padding is not None:
        padding = padding % len(weight)
        values = values.masked_fill((indices == padding)[:, :, None], 0.0)
    return [(weight, Lookup(indices, values, len(weight)))]
