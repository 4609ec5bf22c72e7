"""Functions of PyTorch that are replaced while a model is recorded.

PyTorch's recurrent layers are spelled out in ``recurrent``.

PyTorch's multi-head attention is one call with its projections inside. Here the same is spelled out
with the functions that have rules: projections, scaled dot products, output projection.

PyTorch's max pooling walks over every window by itself. Where windows move by one place at a time,
the complete input can be compared with itself, shifted by one place of the window after the other,
in long runs of memory: on CPUs more than twice as fast, and equal. Of several equal maxima the
first is meant, as in PyTorch, so that gradients are the same, too; the backward pass is PyTorch's.
"""

from collections.abc import Callable, Iterable
from functools import partial
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dither.clipping.recurrent import is_recurrent, recurrent

_ARGUMENTS = (
    "query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias",
    "bias_k", "bias_v", "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias",
    "training", "key_padding_mask", "need_weights", "attn_mask", "use_separate_proj_weight",
    "q_proj_weight", "k_proj_weight", "v_proj_weight", "static_k", "static_v",
    "average_attn_weights", "is_causal",
)  # fmt: skip
_DEFAULTS = {"training": True, "need_weights": True, "average_attn_weights": True}
_UNSUPPORTED = ("bias_k", "bias_v", "add_zero_attn", "static_k", "static_v")


class Replacing(TorchFunctionMode):
    """Spells out what is spelled out while a model is recorded, so that it rounds alike."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """See one call of a PyTorch function."""
        replacement = spelled_out(func, args, kwargs or {})
        return func(*args, **kwargs or {}) if replacement is None else replacement()


def spelled_out(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    order: Tensor | None = None,
) -> Callable[[], Any] | None:
    """Return what a call of attention or a recurrent layer is replaced with.

    Nothing is replaced where a checkpoint will repeat PyTorch's own functions.

    Args:
        function: what is called.
        args: its positional arguments.
        kwargs: its keyword arguments.
        order: of the records in the first argument, if it is known to be another one.
    """
    is_attention = function is functional.multi_head_attention_forward
    if not (is_attention or is_recurrent(function)) or not torch.is_grad_enabled():
        return None
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return None
    if is_attention:
        named = attention_arguments(args, kwargs)
        return partial(attention, named) if can_replace_attention(named) else None
    return partial(recurrent, function, args, order)


def attention_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of ``multi_head_attention_forward`` by their names."""
    return (
        dict.fromkeys(_ARGUMENTS) | _DEFAULTS | dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
    )


def can_replace_attention(given: dict[str, Any]) -> bool:
    """Return whether a call with these arguments can be spelled out here."""
    plain = all(given[name] is None or given[name] is False for name in _UNSUPPORTED)
    return plain and given["query"].dim() == 3


def attention(given: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Return what ``torch.nn.functional.multi_head_attention_forward`` returns.

    Queries, keys and values are terms × records × width, as there. That a mask is causal is a
    hint there, which is not needed here.
    """
    heads, (length, records, width) = given["num_heads"], given["query"].shape
    q, k, v = (x.unflatten(2, (heads, -1)).transpose(1, 2) for x in _project(given))
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


def _project(given: dict[str, Any]) -> list[Tensor]:
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


ATTENTION_ARGUMENTS = "query", "key", "value", "attn_mask", "dropout_p", "is_causal"
"""Of ``torch.nn.functional.scaled_dot_product_attention``, by position."""


def mask_of_scores(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return a mask with the shape of all scores: a view, with gradients of every record's own."""
    scores = (*query.shape[:-1], key.shape[-2])
    return mask.expand(torch.broadcast_shapes(mask.shape, scores))


_MOST_PLACES = 16
_CHUNK = 2**18
"""Numbers that are compared at a time: they stay in the cache."""


class MaxPool2d(torch.autograd.Function):
    """The maximum of every window of a contiguous input."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, kernel: Any) -> Tensor:
        """Return the maxima, and remember where they are."""
        high, wide = inputs.shape[-2] - kernel[0] + 1, inputs.shape[-1] - kernel[1] + 1
        most = inputs.new_empty(*inputs.shape[:2], high, wide)
        places = torch.empty(most.shape, dtype=torch.int64)
        corners = (torch.arange(high)[:, None] * inputs.shape[-1] + torch.arange(wide)).to(most)
        step = max(1, _CHUNK // inputs[0].numel())
        for start in range(0, len(inputs), step):
            part = slice(start, start + step)
            found, offset = _first_maxima(inputs[part], kernel)
            most[part].copy_(found)
            places[part].copy_(offset + corners)
        ctx.save_for_backward(inputs, places)
        ctx.kernel = kernel
        return most

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Send every gradient to the place of its maximum."""
        inputs, places = ctx.saved_tensors
        window = ctx.kernel, (1, 1), (0, 0), (1, 1), False
        back = torch.ops.aten.max_pool2d_with_indices_backward
        return back(gradient.contiguous(), inputs, *window, places), None


def max_pool2d(
    inputs: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Do what ``torch.nn.functional.max_pool2d`` does, by the quick way where there is one."""
    kernel = _pair(kernel_size)
    is_quick = (
        not return_indices
        and inputs.device.type == "cpu"
        and inputs.dtype in (torch.float32, torch.float64)
        and inputs.dim() == 4
        and inputs.is_contiguous()
        and inputs.numel() > 0
        and _pair(kernel_size if stride is None or stride == [] else stride) == (1, 1)
        and _pair(padding) == (0, 0)
        and _pair(dilation) == (1, 1)
        and 1 < kernel[0] * kernel[1] <= _MOST_PLACES
        and inputs.shape[-2] >= kernel[0]
        and inputs.shape[-1] >= kernel[1]
    )
    if not is_quick:
        window = kernel_size, stride, padding, dilation
        return functional.max_pool2d(inputs, *window, ceil_mode, return_indices)  # type: ignore[call-overload] # a bool
    return MaxPool2d.apply(inputs, kernel)  # type: ignore[no-untyped-call] # torch's


def _first_maxima(inputs: Tensor, kernel: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the maximum of every window, and how far behind its corner the first of them is."""
    (high, wide), width = kernel, inputs.shape[-1]
    flat = inputs.view(-1)
    length = flat.numel() - (wide - 1)
    rows, offsets = flat[:length], torch.zeros_like(flat[:length])
    for j in range(1, wide):
        rows, offsets = _larger(rows, offsets, flat[j : j + length], offsets.new_full((), j))
    length -= (high - 1) * width
    most, offset = rows[:length], offsets[:length]
    for i in range(1, high):
        below = slice(i * width, i * width + length)
        most, offset = _larger(most, offset, rows[below], offsets[below] + i * width)
    shape = *inputs.shape[:2], inputs.shape[-2] - high + 1, width - wide + 1
    return most.as_strided(shape, inputs.stride()), offset.as_strided(shape, inputs.stride())


def _larger(one: Tensor, places: Tensor, two: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Return the larger entries and their places; the first ones where both are equal."""
    more = torch.maximum(one, two)
    is_two = torch.ne(more, one, out=torch.empty_like(more))
    return more, torch.addcmul(places, is_two, others - places)


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    first, *others = value
    return int(first), int(others[0] if others else first)
