"""Normalisation by the root mean square."""

import torch
from torch import Tensor
from torch.nn import functional

from dither.clipping.contributions import Contribution
from dither.clipping.registry import Call, register
from dither.clipping.rules.affine import affine


@register(functional.rms_norm, torch.rms_norm, leading_alike=True)
def rms_norm(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """There is a weight and no bias."""
    inputs, shape, weight, eps = call.arguments("input", "normalized_shape", "weight", "eps")
    normalised = functional.rms_norm(inputs, shape, eps=eps)
    kept = range(gradient.dim() - len(shape), gradient.dim())
    return affine(gradient, normalised, weight, None, kept)
