"""Embeddings: the cost grows with the tokens of a batch, not with the vocabulary."""

from torch import Tensor
from torch.nn import functional

from dither.clipping.contributions import Contribution, Lookup
from dither.clipping.registry import Call, UnseenUseError, register


@register(functional.embedding, leading_alike=True)
def embedding(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """Each token's gradient belongs to the row that was looked up; the padding's row has none."""
    indices, weight, padding, longest, _, by_frequency = call.arguments(
        "input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq"
    )
    if longest is not None or by_frequency:
        raise UnseenUseError("embedding has max_norm or scale_grad_by_freq, which mix records")
    indices = indices.reshape(call.records, -1)
    values = gradient.reshape(call.records, -1, gradient.shape[-1])
    if padding is not None:
        padding = padding % len(weight)
        values = values.masked_fill((indices == padding)[:, :, None], 0.0)
    return [(weight, Lookup(indices, values, len(weight)))]
