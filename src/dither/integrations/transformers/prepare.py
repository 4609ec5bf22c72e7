"""Attention masks and token types made record by record, so that steps are faster."""

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from dither import validate

_ATTENTION = "dither_sdpa"
"""The name of attention whose masks are made from every record's own padding."""


def prepare(model: nn.Module) -> nn.Module:
    """Make the private training of a model of `transformers`, or of `peft` around one, faster.

    Two things change in place, and no output changes:

    - The attention mask of every record is made from its own row of the padding mask. An unprepared
      model indexes rows, possibly those of other records, so that the engine compares the gradients
      with plain autograd in every step.
    - Token types that are not given, zeros, are made from every record's own tokens. An unprepared
      model makes them without the records, so that the engine computes the gradient of their table
      record by record.

    Args:
        model: a model whose attention is scaled dot products (``attn_implementation="sdpa"``).

    Returns:
        The same model.

    Raises:
        InvalidTypeError: it holds no model of `transformers`.
        InvalidValueError: its attention is of another kind.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> tiny = BertConfig(vocab_size=9, hidden_size=4, num_hidden_layers=1,
        ...                   num_attention_heads=1, intermediate_size=4)
        >>> model = BertForSequenceClassification(tiny)
        >>> prepare(model) is model
        True
    """
    validate.instance(nn.Module, model=model)
    models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    if not models:
        raise validate.InvalidTypeError(
            f"model must be or hold a model of transformers, got {type(model).__name__}"
        )
    for one in models:
        kind = one.config._attn_implementation
        if kind not in (None, "sdpa", _ATTENTION):
            raise validate.InvalidValueError(
                f'model must have attn_implementation "sdpa", got {kind!r}: call '
                'model.set_attn_implementation("sdpa") first, or train the model as it is'
            )
    models[0].set_attn_implementation(_ATTENTION)
    for module in model.modules():
        hooks = module._forward_pre_hooks.values()
        if hasattr(module, "token_type_embeddings") and _add_token_types not in hooks:
            module.register_forward_pre_hook(_add_token_types, with_kwargs=True)
    return model


def _add_token_types(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Add every record's own token types, zeros, to the inputs of embeddings without any."""
    ids = kwargs.get("input_ids")
    if ids is None or kwargs.get("token_type_ids", ids) is not None:
        return args, kwargs
    return args, {**kwargs, "token_type_ids": ids * 0}


def _mask_per_record(*args: Any, **kwargs: Any) -> Tensor | None:
    """Make a mask as `transformers` does, without looking at the padding of all records at once."""
    padding, length = kwargs.get("attention_mask"), kwargs.get("kv_length")
    if padding is None or padding.dim() != 2 or padding.shape[1] != length:
        mask: Tensor | None = sdpa_mask(*args, **kwargs)
        return mask
    skips = {name: False for name in kwargs if name.endswith("_skip")}
    causal: Tensor = sdpa_mask(*args, **{**kwargs, "attention_mask": None, **skips})
    return causal.logical_and(padding[:, None, None, :])


AttentionInterface.register(_ATTENTION, sdpa_attention_forward)
AttentionMaskInterface.register(_ATTENTION, _mask_per_record)
