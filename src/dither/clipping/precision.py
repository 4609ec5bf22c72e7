"""Single precision that is no less than it says."""

from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch

_OF_DEVICE: dict[str, tuple[Any, ...]] = {
    "cpu": attrgetter("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")(torch.backends),
    "cuda": attrgetter("cuda.matmul", "cudnn.conv", "cudnn.rnn")(torch.backends),
}


@contextmanager
def full_precision(device: str) -> Iterator[None]:
    """Compute float32 in float32: no autocast, and no products of numbers with fewer digits.

    Torch can be told to round the factors of float32 products to TF32 or bfloat16, and on GPUs
    convolutions do so by default. A norm and a sum that are computed like that can differ by more
    than `dither.release.margin` pays for. What a model does on its way to the losses may be as
    coarse as its user likes: it is the same record's gradient that is measured and added.

    Args:
        device: the type of the device, such as "cpu".
    """
    coarse = {
        place: place.fp32_precision
        for place in _OF_DEVICE.get(device, ())
        if place.fp32_precision not in ("ieee", "none")
    }
    try:
        for place in coarse:
            place.fp32_precision = "ieee"
        with torch.autocast(device, enabled=False):
            yield
    finally:
        for place, precision in coarse.items():
            place.fp32_precision = precision
