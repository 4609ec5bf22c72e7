"""Multi-head attention in pieces that the recorder can see.

PyTorch's own function is one call with its projections inside. Here the same is spelled out with
the functions that have rules: projections, scaled dot products, output projection.
"""

from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_NAMES = (
    "query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias",
    "bias_k", "bias_v", "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias",
    "training", "key_padding_mask", "need_weights", "attn_mask", "use_separate_proj_weight",
    "q_proj_weight", "k_proj_weight", "v_proj_weight", "static_k", "static_v",
    "average_attn_weights", "is_causal",
)  # fmt: skip
_DEFAULTS = {"training": True, "need_weights": True, "average_attn_weights": True}
_UNCOVERED = ("bias_k", "bias_v", "add_zero_attn", "static_k", "static_v")


def arguments_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of ``multi_head_attention_forward`` by their names."""
    return dict.fromkeys(_NAMES) | _DEFAULTS | dict(zip(_NAMES, args, strict=False)) | kwargs


def covers(given: dict[str, Any]) -> bool:
    """Return whether a call with these arguments can be spelled out here."""
    plain = all(given[name] is None or given[name] is False for name in _UNCOVERED)
    return plain and given["query"].dim() == 3


def forward(given: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Return what ``torch.nn.functional.multi_head_attention_forward`` returns.

    Queries, keys and values are terms × records × width, as there. That a mask is causal is a
    hint there, which is not needed here.
    """
    heads, (length, records, width) = given["num_heads"], given["query"].shape
    q, k, v = (x.unflatten(2, (heads, -1)).transpose(1, 2) for x in _projected(given))
    mask = _mask(given["attn_mask"], given["key_padding_mask"], records, heads, q.dtype)
    dropout = given["dropout_p"] if given["training"] else 0.0
    weights = None
    if given["need_weights"]:
        scores = (q / sqrt(q.shape[-1])) @ k.transpose(2, 3)
        weights = functional.softmax(scores if mask is None else scores + mask, dim=-1)
        weights = functional.dropout(weights, dropout) if dropout else weights
        mixed = weights @ v
        weights = weights.mean(1) if given["average_attn_weights"] else weights
    else:
        mixed = functional.scaled_dot_product_attention(q, k, v, mask, dropout)
    joined = mixed.transpose(1, 2).reshape(records, length, width)
    output = functional.linear(joined, given["out_proj_weight"], given["out_proj_bias"])
    return output.transpose(0, 1), weights


def _projected(given: dict[str, Any]) -> list[Tensor]:
    """Return queries, keys and values, records × terms × width."""
    inputs = [given[name] for name in ("query", "key", "value")]
    same = inputs[0] is inputs[1] and inputs[1] is inputs[2]
    turned = [x.transpose(0, 1) for x in inputs]
    weight, bias = given["in_proj_weight"], given["in_proj_bias"]
    biases = [None] * 3 if bias is None else bias.chunk(3)
    if given["use_separate_proj_weight"]:
        weights = [given[name] for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight")]
    elif same:
        return list(functional.linear(turned[0], weight, bias).chunk(3, dim=-1))
    else:
        weights = weight.chunk(3)
    return [functional.linear(x, w, b) for x, w, b in zip(turned, weights, biases, strict=True)]


def _mask(
    attention: Tensor | None,
    padding: Tensor | None,
    records: int,
    heads: int,
    dtype: torch.dtype,
) -> Tensor | None:
    """Return both masks as one to be added to the scores, records × heads × terms × terms."""
    mask = None
    if attention is not None:
        mask = _additive(attention, dtype)
        mask = mask.unflatten(0, (records, heads)) if mask.dim() == 3 else mask
    if padding is not None:
        added = _additive(padding, dtype)[:, None, None, :]
        mask = added if mask is None else mask + added
    return mask


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -torch.inf)
