"""One file a kind of layer; importing them registers their rules."""

from dither.clipping.rules import (
    convolution,
    elementwise,
    embedding,
    expand,
    group_norm,
    instance_norm,
    layer_norm,
    linear,
    matmul,
    rms_norm,
)

__all__ = [
    "convolution",
    "elementwise",
    "embedding",
    "expand",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "linear",
    "matmul",
    "rms_norm",
]
