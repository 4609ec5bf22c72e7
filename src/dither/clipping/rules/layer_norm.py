"""Layer normalisation."""

import torch
from torch import Tensor
from torch.nn import functional

from dither.clipping.contributions import Contribution
from dither.clipping.registry import Call, register
from dither.clipping.rules.affine import affine


@register(functional.layer_norm, torch.layer_norm, leading_alike=True)
def layer_norm(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """Weight and bias have the shape of the last dimensions, which are normalised together."""
    inputs, shape, weight, bias, eps = call.arguments(
        "input", "normalized_shape", "weight", "bias", "eps"
    )
    normalised = functional.layer_norm(inputs, shape, eps=1e-5 if eps is None else eps)
    kept = range(gradient.dim() - len(shape), gradient.dim())
    return affine(gradient, normalised, weight, bias, kept)
