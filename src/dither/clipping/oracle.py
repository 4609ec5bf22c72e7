"""The truth, slow and obvious: one gradient a record, clipped, added up."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dither.clipping.batch import (
    Objective,
    copied,
    mapped,
    take,
    tensors,
    trainable,
    unchanged,
    vmapped,
    wide,
)
from dither.clipping.precision import full_precision

PIECE = 2**26
"""Numbers that the gradients of the records of a piece may occupy together."""


def oracle(
    model: nn.Module,
    objective: Objective,
    batch: Any,
    records: int,
    clip_norm: float,
    views: int = 1,
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the clipped sum and the norms from explicit gradients of single records.

    With several views, the gradients of every so many neighbours are averaged first.
    """
    parameters = trainable(model)
    sums = {name: torch.zeros_like(p, dtype=wide(p.dtype)) for name, p in parameters.items()}
    norms: list[Tensor] = []
    size = max(1, sum(parameter.numel() for parameter in parameters.values()))
    step = views * max(1, min(records, PIECE // size) // views)
    device = tensors(batch)[0].device.type
    for start in range(0, records, step):
        piece = slice(start, min(records, start + step))
        with unchanged(model, batch) as same, torch.enable_grad():
            part = take(batch, piece), piece.stop - piece.start
            rows = per_record_gradients(model, same, objective, *part)
        if views > 1:
            rows = {name: each.unflatten(0, (-1, views)).mean(1) for name, each in rows.items()}
        with full_precision(device), torch.no_grad():
            _add_clipped(sums, norms, rows, clip_norm)
    return sums, torch.cat(norms).to(_norm_type(parameters.values()))


def per_record_gradients(
    model: nn.Module,
    called: Callable[..., Any],
    objective: Objective,
    batch: Any,
    records: int,
) -> dict[str, Tensor]:
    """Return parameter name → one gradient a record: by vmap if that works, else by a loop."""
    first = _gradients_of(model, called, objective, batch, 0)
    if records > 1:
        try:
            rows = _by_vmap(model, objective, batch)
        except (RuntimeError, TypeError):
            rows = {}
        if rows and all(_same(rows[name][0], gradient) for name, gradient in first.items()):
            return rows
    others = [_gradients_of(model, called, objective, batch, i) for i in range(1, records)]
    return {name: torch.stack([each[name] for each in (first, *others)]) for name in first}


def _by_vmap(model: nn.Module, objective: Objective, batch: Any) -> dict[str, Tensor]:
    parameters = {name: p.detach() for name, p in trainable(model).items()}
    rows = tensors(batch)

    def loss_of(values: dict[str, Tensor], *row: Tensor) -> Tensor:
        def called(*args: Any, **kwargs: Any) -> Any:
            return torch.func.functional_call(model, values, args, kwargs)

        given = iter(row)
        return objective.loss_of_one(called, mapped(batch, lambda _: next(given)[None]))

    along = (None, *(0 for _ in rows))
    gradients = vmapped(torch.func.grad(loss_of), along, randomness="different")
    found: dict[str, Tensor] = gradients(parameters, *rows)
    return found


def _gradients_of(
    model: nn.Module,
    called: Callable[..., Any],
    objective: Objective,
    batch: Any,
    record: int,
) -> dict[str, Tensor]:
    only = slice(record, record + 1)
    parameters = trainable(model)
    loss = objective.loss_of_one(called, copied(take(batch, only)))
    if not loss.requires_grad:
        return {name: torch.zeros_like(p) for name, p in parameters.items()}
    found: tuple[Tensor | None, ...] = torch.autograd.grad(
        loss, list(parameters.values()), allow_unused=True
    )
    return {
        name: torch.zeros_like(p) if g is None else g.to_dense() if g.is_sparse else g
        for (name, p), g in zip(parameters.items(), found, strict=True)
    }


def _add_clipped(
    sums: dict[str, Tensor], norms: list[Tensor], rows: Mapping[str, Tensor], clip_norm: float
) -> None:
    flat = [gradients.reshape(len(gradients), -1).double() for gradients in rows.values()]
    norm = torch.stack([torch.linalg.vector_norm(each, dim=1) for each in flat]).norm(dim=0)
    finite = torch.isfinite(norm)
    norms.append(torch.where(finite, norm, torch.inf))
    weights = torch.where(finite, (clip_norm / norm).clamp(max=1.0), 0.0)
    for (name, gradients), each in zip(rows.items(), flat, strict=True):
        kept = torch.where(finite[:, None], each, 0.0)
        sums[name] += (weights @ kept).view(gradients.shape[1:]).to(sums[name].dtype)


def _same(one: Tensor, other: Tensor) -> bool:
    tolerance = 8.0 * torch.finfo(other.dtype).eps ** 0.5
    scale = float(other.abs().nan_to_num(0.0, 0.0, 0.0).max()) if other.numel() else 0.0
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _norm_type(parameters: Iterable[Tensor]) -> torch.dtype:
    return torch.float64 if any(p.dtype == torch.float64 for p in parameters) else torch.float32
