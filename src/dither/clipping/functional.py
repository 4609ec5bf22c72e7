"""The clipped sum as one function of a model, a loss and a batch: fast, or by the reference.

The reference is slow and obvious: every record goes through the model alone, and its gradient is
clipped and added.
"""

from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from dither.clipping.batch import (
    Loss,
    accumulation_dtype,
    check_losses,
    count_records,
    forward,
    map_tensors,
    slice_rows,
    trainable,
)
from dither.clipping.clip import Clip, ClippedSum, full_precision
from dither.clipping.engine import clip_recording, join, zeros_for
from dither.clipping.layers import check_layers
from dither.clipping.memory import check_size
from dither.clipping.recording import CheckCache, ModelHooks, RecordedBatch
from dither.validate import InvalidValueError, choice, instance

_caches: WeakKeyDictionary[nn.Module, CheckCache] = WeakKeyDictionary()


def clipped_sum(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    *,
    clip_norm: float,
    clipping: str = "flat",
    engine: str = "fast",
    microbatch_size: int | Literal["auto"] | None = None,
) -> ClippedSum:
    """Return the sum of clipped per-record gradients g_i of a batch, and the norms ‖g_i‖.

    Flat clipping is Σ_i g_i·min(1, clip_norm/‖g_i‖). Automatic clipping is
    Σ_i g_i·clip_norm/(‖g_i‖ + 0.01), which gives every record about the same influence.

    The fast engine makes one forward pass and one backward pass to the outputs of the layers. The
    norms and the weighted sum come from inputs and output gradients, so that per-record
    (per-sample) gradients are formed only where that is cheaper, a few records at a time.

    Guarantees:
        - No record contributes more than ``clip_norm``·(1 + 1e-4), rounding included: a tenth of
          what the noise is made wider by.
        - A record whose gradient is NaN or infinite counts as zero and leaves the others alone.
        - Every path from the loss to a parameter is accounted for on every batch; parameters that
          no rule covers are computed record by record, with a :class:`FallbackWarning` once. What
          a model does for the first time is compared with plain autograd.
        - When a model is first seen, its call is checked with other records: models and losses in
          which a record depends on another one are refused.
        - The model carries no hooks or wrappers afterwards.

    Args:
        model: any module; called as ``model(inputs)``, ``model(*inputs)`` or ``model(**inputs)``
            for a tensor, a tuple or a dict.
        loss: ``loss(outputs, targets)`` with one value per record.
        inputs: a batch, with the records along the first dimension of every tensor.
        targets: what the loss compares with, or None.
        clip_norm: l2 bound on one record's gradient over all trainable parameters; ``math.inf``
            for the plain sum.
        clipping: ``"flat"`` shortens longer gradients; ``"automatic"`` scales every gradient.
        engine: ``"fast"``, or ``"reference"`` for explicit gradients of single records.
        microbatch_size: compute the batch in microbatches of so many records, with the same result
            in less memory; "auto" is as many as fit into half of the memory that is available.

    Returns:
        A :class:`ClippedSum`. It is sensitive: noise has to be added before anyone sees it.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[3.0, 4.0], [0.0, 0.5]])
        >>> total = clipped_sum(model, lambda out, y: out[:, 0], x, None, clip_norm=1.0)
        >>> total.gradients["weight"], total.norms
        (tensor([[0.6000, 1.3000]]), tensor([5.0000, 0.5000]))
    """
    instance(nn.Module, model=model)
    clip = Clip(clip_norm, clipping)
    choice(("fast", "reference"), engine=engine)
    records = count_records(inputs=inputs)
    if targets is not None and count_records(targets=targets) != records:
        given = count_records(targets=targets)
        raise InvalidValueError(
            f"targets must have as many records as inputs, {records}, got {given}"
        )
    if torch.is_inference_mode_enabled():
        raise InvalidValueError("clipped_sum must be called outside torch.inference_mode()")
    check_layers(model)
    if records == 0:
        return ClippedSum(zeros_for(trainable(model)), torch.zeros(0))
    if engine == "reference":
        return reference(model, loss, inputs, targets, records, clip)
    if microbatch_size is not None:
        check_size(microbatch_size=microbatch_size)
    cache = _caches.setdefault(model, CheckCache())
    found = []
    hooks = ModelHooks(model)
    try:
        stop = 0
        while stop < records:
            size, seen = cache.next_part(microbatch_size or records)
            start, stop = stop, min(records, stop + size)
            part = inputs, targets
            if stop - start < records:
                part = slice_rows(part, slice(start, stop), records)
            recording = RecordedBatch(model, stop - start, cache, seen=seen)
            hooks.begin(recording)
            with torch.enable_grad():
                losses = loss(forward(model, part[0]), part[1])
            hooks.begin(None)  # recomputation in the backward pass is no call
            check_losses(losses, stop - start, "loss")
            found.append(clip_recording(recording, losses, clip))
    finally:
        hooks.remove()
    return join(found)


def reference(
    model: nn.Module, loss: Loss, inputs: Any, targets: Any, records: int, clip: Clip
) -> ClippedSum:
    """Return the clipped sum and the norms from explicit gradients of single records."""
    parameters = trainable(model)
    sums = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in parameters.items()}
    norms: list[Tensor] = []
    for record in range(records):
        gradients = _gradients(model, loss, inputs, targets, record)
        with full_precision(next(iter(gradients.values())).device.type), torch.no_grad():
            exact = {name: gradient.double() for name, gradient in gradients.items()}
            norm = torch.stack([gradient.norm() for gradient in exact.values()]).norm()
            is_finite = bool(torch.isfinite(norm))
            norms.append(norm if is_finite else torch.full_like(norm, torch.inf))
            for name, gradient in exact.items() if is_finite else ():
                sums[name] += gradient * clip.factors(norm)
    types = {name: accumulation_dtype(p.dtype) for name, p in parameters.items()}
    of_norms = torch.float64 if torch.float64 in types.values() else torch.float32
    found = {name: (total * clip.scale).to(types[name]) for name, total in sums.items()}
    return ClippedSum(found, torch.stack(norms).to(of_norms))


def _gradients(
    model: nn.Module, loss: Loss, inputs: Any, targets: Any, record: int
) -> dict[str, Tensor]:
    """Return the gradient of one record's loss by plain autograd."""
    parameters = trainable(model)
    one = map_tensors((inputs, targets), lambda tensor: tensor[record : record + 1].clone())
    with torch.enable_grad():
        own = check_losses(loss(forward(model, one[0]), one[1]), 1, "loss")
    if not own.requires_grad:
        return {name: torch.zeros_like(p) for name, p in parameters.items()}
    found = torch.autograd.grad(
        own.sum(), list(parameters.values()), allow_unused=True, materialize_grads=True
    )
    dense = (each.to_dense() if each.is_sparse else each for each in found)
    return dict(zip(parameters, dense, strict=True))
