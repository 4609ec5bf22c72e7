"""Embeddings and bags of them: rows of a table are looked up, perhaps summed with weights."""

import torch
from torch import Tensor
from torch.nn import functional

from dither.clipping.contributions import Contribution, Lookup, PerRecord
from dither.clipping.layouts import Layout, Rows, layout_of
from dither.clipping.rules.registry import Call, UnsupportedCallError, register


@register(functional.embedding, any_leading_dims=True)
def embedding(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """Each token's gradient belongs to the row that was looked up; the padding's row has none."""
    indices, weight, padding, longest, _, by_frequency = call.arguments(
        "input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq"
    )
    if longest is not None or by_frequency:
        raise UnsupportedCallError(
            "embedding has max_norm or scale_grad_by_freq, which mix records"
        )
    indices = indices.reshape(call.records, -1)
    values = gradient.reshape(call.records, -1, gradient.shape[-1])
    if padding is not None:
        padding = padding % len(weight)
        values = values.masked_fill((indices == padding)[:, :, None], 0.0)
    return [(weight, Lookup(indices, values, len(weight)))]


def _locate_bags(call: Call, shape: torch.Size) -> Layout | None:
    return layout_of(shape, call.records, any_leading_dims=False)


@register(functional.embedding_bag, locate=_locate_bags)
def embedding_bag(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """Each token's gradient is that of its bag, times its share in it."""
    indices, weight, offsets, longest, _, by_frequency, mode, _, shares, last, padding = (
        call.arguments(
            "input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode",
            "sparse", "per_sample_weights", "include_last_offset", "padding_idx",
        )
    )  # fmt: skip
    if longest is not None or by_frequency or call.is_parameter(shares):
        raise UnsupportedCallError("embedding_bag has max_norm, scale_grad_by_freq or own weights")
    if offsets is None:
        bags = torch.arange(len(indices), device=indices.device).repeat_interleave(indices.shape[1])
        indices = indices.flatten()
    else:
        ends = offsets[1:] if last else offsets[1:].clone()
        places = torch.arange(len(indices), device=indices.device)
        bags = torch.searchsorted(ends.contiguous(), places, right=True)
    is_used = torch.ones_like(indices, dtype=torch.bool)
    if padding is not None:
        is_used = indices != padding % len(weight)
    if mode == "max":
        values = gradient[bags] * _is_maximum(weight.detach()[indices], bags, is_used)
    else:
        values = gradient[bags] * is_used[:, None]
    if mode in (None, "mean"):
        counts = torch.bincount(bags[is_used], minlength=len(gradient)).clamp(min=1)
        values = values / counts[bags, None]
    if shares is not None:
        values = values * shares.reshape(-1, 1)
    rows = Rows(indices.shape, bags // (len(gradient) // call.records), call.records)
    found, given = (rows.record_first(each, call.records) for each in (indices, values))
    return [(weight, Lookup(found, given, len(weight)))]


def _is_maximum(looked_up: Tensor, bags: Tensor, is_used: Tensor) -> Tensor:
    """Return whether an entry is the first maximum of its bag: bags are neighbours."""
    values = looked_up.masked_fill(~is_used[:, None], -torch.inf)
    index = bags[:, None].expand_as(values)
    most = torch.full_like(values, -torch.inf).scatter_reduce_(0, index, values, "amax")
    places = torch.arange(len(bags), device=bags.device)[:, None].expand_as(values)
    candidates = places.masked_fill(values < most.gather(0, index), len(bags))
    first = torch.full_like(places, len(bags)).contiguous()
    first.scatter_reduce_(0, index, candidates, "amin")
    return (places == first.gather(0, index)) & is_used[:, None]


@register(torch.Tensor.__getitem__)
def pick(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """Entries of a parameter at indices of the records: ``parameter[indices]``."""
    parameter, index = call.args
    indices = index if isinstance(index, tuple) else (index,)
    if not all(isinstance(each, Tensor) and each.dtype == torch.int64 for each in indices):
        raise UnsupportedCallError("a parameter is indexed by more than indices of the records")
    if len(indices) == 1 and parameter.dim() == 2:
        values = gradient.reshape(call.records, -1, gradient.shape[-1])
        rows = indices[0].reshape(call.records, -1) % len(parameter)
        return [(parameter, Lookup(rows, values, len(parameter)))]
    owners = torch.arange(call.records, device=gradient.device)
    places = torch.broadcast_tensors(*indices)
    owners = owners.view(-1, *(1,) * (places[0].dim() - 1)).expand_as(places[0])
    sums = gradient.new_zeros(call.records, *parameter.shape)
    return [(parameter, PerRecord(sums.index_put_((owners, *places), gradient, accumulate=True)))]
