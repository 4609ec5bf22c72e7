"""Normalisation layers: weight and bias follow a normalisation of every record by itself."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from dither.clipping.contributions import Contribution, PerRecord
from dither.clipping.rules.registry import Call, UnsupportedCallError, register
from dither.validate import InvalidValueError


def affine(
    gradient: Tensor,
    normalised: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    kept: Sequence[int],
) -> list[tuple[Tensor, Contribution]]:
    """Return contributions of y = weight·normalised + bias, whose shape is the ``kept`` axes."""
    summed = [axis for axis in range(1, gradient.dim()) if axis not in kept]

    def reduced(values: Tensor) -> PerRecord:
        return PerRecord(values.sum(summed) if summed else values)

    found: list[tuple[Tensor, Contribution]] = []
    if weight is not None:
        found.append((weight, reduced(gradient * normalised)))
    if bias is not None:
        found.append((bias, reduced(gradient)))
    return found


@register(functional.group_norm)
def group_norm(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """Weight and bias have one entry per channel."""
    inputs, groups, weight, bias, eps = call.arguments(
        "input", "num_groups", "weight", "bias", "eps"
    )
    normalised = functional.group_norm(inputs, groups, eps=1e-5 if eps is None else eps)
    return affine(gradient, normalised, weight, bias, [1])


@register(functional.instance_norm)
def instance_norm(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """Weight and bias have one entry per channel; running statistics would leak the records."""
    inputs, mean, variance, weight, bias, by_input, _, eps = call.arguments(
        "input", "running_mean", "running_var", "weight", "bias", "use_input_stats",
        "momentum", "eps",
    )  # fmt: skip
    by_input = True if by_input is None else by_input
    if by_input and mean is not None:
        raise InvalidValueError(
            "model must not store statistics of its records, got instance_norm with "
            "track_running_stats=True in training mode; make the layer without it"
        )
    normalised = functional.instance_norm(
        inputs, mean, variance, use_input_stats=by_input, eps=1e-5 if eps is None else eps
    )
    return affine(gradient, normalised, weight, bias, [1])


@register(functional.batch_norm, torch.batch_norm)
def batch_norm(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """Weight and bias have one entry per channel; the statistics are fixed."""
    inputs, mean, variance, weight, bias, training, _, eps = call.arguments(
        "input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"
    )
    if training or mean is None:
        raise UnsupportedCallError("batch_norm uses statistics of the batch")
    normalised = functional.batch_norm(inputs, mean, variance, eps=1e-5 if eps is None else eps)
    return affine(gradient, normalised, weight, bias, [1])


@register(functional.layer_norm, torch.layer_norm, any_leading_dims=True)
def layer_norm(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """Weight and bias have the shape of the last dimensions, which are normalised together."""
    inputs, shape, weight, bias, eps = call.arguments(
        "input", "normalized_shape", "weight", "bias", "eps"
    )
    if tuple(inputs.shape[-len(shape) :]) != tuple(shape):
        raise UnsupportedCallError("layer_norm has records within the dimensions it normalises")
    normalised = functional.layer_norm(inputs, shape, eps=1e-5 if eps is None else eps)
    kept = range(gradient.dim() - len(shape), gradient.dim())
    return affine(gradient, normalised, weight, bias, kept)


@register(functional.rms_norm, torch.rms_norm, any_leading_dims=True)
def rms_norm(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """There is a weight and no bias."""
    inputs, shape, weight, eps = call.arguments("input", "normalized_shape", "weight", "eps")
    normalised = functional.rms_norm(inputs, shape, eps=eps)
    kept = range(gradient.dim() - len(shape), gradient.dim())
    return affine(gradient, normalised, weight, None, kept)
