"""Group normalisation."""

from torch import Tensor
from torch.nn import functional

from dither.clipping.contributions import Contribution
from dither.clipping.registry import Call, register
from dither.clipping.rules.affine import affine


@register(functional.group_norm)
def group_norm(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """Weight and bias have one entry a channel."""
    inputs, groups, weight, bias, eps = call.arguments(
        "input", "num_groups", "weight", "bias", "eps"
    )
    normalised = functional.group_norm(inputs, groups, eps=1e-5 if eps is None else eps)
    return affine(gradient, normalised, weight, bias, [1])
