"""Private fine-tuning of models of `transformers`, in full or by adapters of `peft`.

A record is a document. `pad_documents` makes tensors of documents, and the losses are one per
document, computed from that document only. Models may be trained as they are; `prepare` makes some
faster.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from dither import validate

__all__ = [
    "IGNORE_INDEX",
    "causal_losses",
    "classification_losses",
    "pad_documents",
    "prepare",
]

IGNORE_INDEX = -100
"""The label of a token that has no loss, as in `transformers`."""

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


def pad_documents(
    documents: Sequence[Sequence[int]], *, length: int, padding: int = 0
) -> dict[str, Tensor]:
    """Return documents of token ids as ``input_ids`` and ``attention_mask``, documents × length.

    Longer documents are cut off, shorter ones are padded at the end. The length must be public: the
    length of the longest document would reveal it.

    Args:
        documents: one list of token ids per document; a document is a record.
        length: tokens per document, a public number.
        padding: the id of padding, which the mask hides.

    Example:
        >>> batch = pad_documents([[5, 6, 7], [8]], length=2)
        >>> batch["input_ids"].tolist(), batch["attention_mask"].tolist()
        ([[5, 6], [8, 0]], [[1, 1], [1, 0]])
    """
    length = validate.count(length=length)
    ids = torch.full((len(documents), length), padding)
    mask = torch.zeros_like(ids)
    for row, document in enumerate(documents):
        if isinstance(document, str):
            raise validate.InvalidTypeError(
                "documents must be lists of token ids, got a text: use a tokenizer"
            )
        tokens = list(document[:length])
        ids[row, : len(tokens)] = torch.tensor(tokens, dtype=ids.dtype)
        mask[row, : len(tokens)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def classification_losses(outputs: Any, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each document's class.

    Args:
        outputs: what a sequence classifier returns; a loss in it is not used, since it is the mean
            of the batch.
        labels: one class per document.

    Example:
        >>> from types import SimpleNamespace
        >>> outputs = SimpleNamespace(logits=torch.tensor([[0.0, 0.0], [3.0, -3.0]]))
        >>> classification_losses(outputs, torch.tensor([0, 0])).shape
        torch.Size([2])
    """
    logits = _logits(outputs, 2, "documents × classes; causal_losses is for language models")
    if labels.is_floating_point():
        raise validate.InvalidTypeError(
            f"labels must be integers, one class per document, got {labels.dtype}: for other "
            "targets write a loss of your own, with one value per document"
        )
    return functional.cross_entropy(logits, labels, reduction="none")


def causal_losses(outputs: Any, labels: Tensor, *, reduction: str = "mean") -> Tensor:
    """Return each document's loss: the cross-entropy of its own next tokens.

    "mean" divides by the document's own number of tokens. The mean over all tokens of the batch,
    which `transformers` computes, divides by a number that depends on all other documents, so that
    no document's gradient would be its own.

    Args:
        outputs: what a causal language model returns.
        labels: the token ids, documents × length, with -100 where nothing is to be predicted.
        reduction: "mean" or "sum" over a document's own tokens.

    Returns:
        One loss per document; 0 for one with fewer than two tokens.

    Example:
        >>> from types import SimpleNamespace
        >>> outputs = SimpleNamespace(logits=torch.zeros(2, 3, 5))
        >>> causal_losses(outputs, torch.tensor([[1, 2, 3], [4, -100, -100]])).tolist()
        [1.6094379425048828, 0.0]
    """
    validate.choice(("mean", "sum"), reduction=reduction)
    kind = "documents × tokens × vocabulary; classification_losses is for classifiers"
    logits = _logits(outputs, 3, kind)
    following = functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)  # logits are not copied
    losses = functional.cross_entropy(
        logits.flatten(0, 1), following.flatten(), reduction="none", ignore_index=IGNORE_INDEX
    )
    totals = losses.view(following.shape).sum(1)
    if reduction == "sum":
        return totals
    return totals / (following != IGNORE_INDEX).sum(1).clamp(min=1)


def _logits(outputs: Any, dimensions: int, kind: str) -> Tensor:
    """Return the logits of a model's outputs; raise unless they have that many dimensions."""
    logits = getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor) or logits.dim() != dimensions:
        shown = f"{logits.dim()} dimensions" if isinstance(logits, Tensor) else "none"
        raise validate.InvalidTypeError(f"outputs must have logits, {kind}, got {shown}")
    return logits


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
