"""The truth, slow and obvious: each record alone through the model, its gradient clipped, added."""

from typing import Any

import torch
from torch import Tensor, nn

from dither.clipping.batch import (
    Loss,
    accumulation_dtype,
    check_losses,
    forward,
    mapped,
    trainable,
)
from dither.clipping.precision import full_precision
from dither.clipping.result import ClippedSum


def reference(
    model: nn.Module, loss: Loss, inputs: Any, targets: Any, records: int, clip_norm: float
) -> ClippedSum:
    """Return the clipped sum and the norms from explicit gradients of single records."""
    parameters = trainable(model)
    sums = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in parameters.items()}
    norms: list[Tensor] = []
    for record in range(records):
        gradients = _gradients(model, loss, inputs, targets, record)
        with full_precision(next(iter(gradients.values())).device.type), torch.no_grad():
            wide = {name: gradient.double() for name, gradient in gradients.items()}
            norm = torch.stack([gradient.norm() for gradient in wide.values()]).norm()
            is_finite = bool(torch.isfinite(norm))
            norms.append(norm if is_finite else torch.full_like(norm, torch.inf))
            for name, gradient in wide.items() if is_finite else ():
                sums[name] += gradient * (clip_norm / norm).clamp(max=1.0)
    types = {name: accumulation_dtype(p.dtype) for name, p in parameters.items()}
    of_norms = torch.float64 if torch.float64 in types.values() else torch.float32
    found = {name: total.to(types[name]) for name, total in sums.items()}
    return ClippedSum(found, torch.stack(norms).to(of_norms))


def _gradients(
    model: nn.Module, loss: Loss, inputs: Any, targets: Any, record: int
) -> dict[str, Tensor]:
    """Return the gradient of one record's loss by plain autograd."""
    parameters = trainable(model)
    one = mapped((inputs, targets), lambda tensor: tensor[record : record + 1].clone())
    with torch.enable_grad():
        own = check_losses(loss(forward(model, one[0]), one[1]), 1, "loss")
    if not own.requires_grad:
        return {name: torch.zeros_like(p) for name, p in parameters.items()}
    found = torch.autograd.grad(
        own.sum(), list(parameters.values()), allow_unused=True, materialize_grads=True
    )
    dense = (each.to_dense() if each.is_sparse else each for each in found)
    return dict(zip(parameters, dense, strict=True))
