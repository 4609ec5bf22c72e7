"""Matrix products with a parameter."""

from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from dither.clipping.contributions import Contribution, Outer, PerRecord
from dither.clipping.layouts import FIRST, Rows
from dither.clipping.recurrent import state_product
from dither.clipping.rules.einsum import matrix_product, products_with
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
    torch.mv,
    Tensor.mv,
    Tensor.matmul,
    Tensor.mm,
    Tensor.__matmul__,
    any_leading_dims=True,
)
def matmul(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """The gradient of a matrix on the right is Σ_t input_t ⊗ gradient_t."""
    one, other = (*call.args, *call.kwargs.values())
    if other.dim() == 2 and call.is_parameter(other) and one.dim() > 1:
        return [(other, Outer(join_terms(one), join_terms(gradient)))]
    if other.dim() == 1 and call.is_parameter(other) and one.dim() > 1:
        left = join_terms(gradient.unsqueeze(-1))
        return [(other, Outer(left, join_terms(one), other.shape))]
    if call.layout != FIRST or min(one.dim(), other.dim()) < 2:
        raise UnsupportedCallError("matmul has no matrix on the right, and records elsewhere")
    names = matrix_product(one, other)
    operands = list(zip((one, other), names, strict=False))
    return products_with(call, operands, (gradient, names[2]), names[2][0])


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


@register(functional.bilinear, any_leading_dims=True)
def bilinear(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """The weight's gradient is Σ_t gradient_t ⊗ input_t ⊗ other input_t."""
    one, other, weight, bias = call.arguments("input1", "input2", "weight", "bias")
    gradients = join_terms(gradient)
    pairs = (join_terms(one)[..., :, None] * join_terms(other)[..., None, :]).flatten(2)
    found: list[tuple[Tensor, Contribution]] = [(weight, Outer(gradients, pairs, weight.shape))]
    if bias is not None:
        found.append((bias, PerRecord(sum_terms(gradients))))
    return found


@register(torch._grouped_mm, functional.grouped_mm, any_leading_dims=True)
def grouped_mm(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """Rows are sorted by their matrix, ``offs`` has the ends of their groups."""
    inputs, weight, ends, bias = call.arguments("mat_a", "mat_b", "offs", "bias")
    if ends is None or bias is not None or not call.is_parameter(weight) or weight.dim() != 3:
        raise UnsupportedCallError("grouped_mm has no matrices of parameters with ends of groups")
    count = gradient.shape[:-1].numel()
    if isinstance(call.layout, Rows):
        count = call.layout.shape[0]
    places = torch.arange(count, device=ends.device)
    ends = ends.flatten()  # of a single record they have a row
    matrices = torch.searchsorted(ends.to(places.dtype), places, right=True)
    matrices = matrices.clamp(max=len(weight) - 1)  # there is no gradient behind the last end
    of_rows = call.layout.record_first(matrices, call.records).reshape(call.records, -1)
    owners = torch.arange(call.records, device=ends.device)[:, None] * len(weight) + of_rows
    rows = Rows(owners.shape, owners.flatten(), call.records * len(weight))
    factors = (rows.record_first(join_terms(each), rows.records) for each in (inputs, gradient))
    left, right = (each.unflatten(0, (call.records, -1)) for each in factors)
    return [(weight, Outer(left, right, weight.shape))]
