"""Matrix products with a parameter on the right, as hand-written layers have them."""

import torch
from torch import Tensor

from dither.clipping.contributions import Contribution, Outer, PerRecord
from dither.clipping.registry import Call, UnseenUseError, register
from dither.clipping.rules.linear import over_terms, terms


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
