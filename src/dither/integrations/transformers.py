"""Private fine-tuning of models of `transformers`, whole or by adapters of `peft`.

A record is a document. `padded` makes tensors of documents, and the losses are one per document,
which no other document enters. Models may be trained as they are; `prepare` makes some faster.
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

__all__ = ["ATTENTION", "causal_losses", "classification_losses", "padded", "prepare"]

ATTENTION = "dither_sdpa"
"""The name of attention with masks that are made from every record's own padding."""

IGNORED = -100
"""The label of a token that counts for nothing, as in `transformers`."""


def prepare(model: nn.Module) -> nn.Module:
    """Make the private training of a model of `transformers`, or of `peft` around one, faster.

    Two things change in place, and no output does:

    - The mask of every record is made from its own row of the padding mask. A model as it is takes
      rows by their numbers, which may be those of other records, so that the engine compares the
      gradients with plain autograd in every step.
    - Types of tokens that are not given, zeros, come from every record's own tokens. A model as it
      is makes them without a record, so that the engine computes their table record by record.

    Args:
        model: a model whose attention is scaled dot products (``attn_implementation="sdpa"``).

    Returns:
        The same model.

    Raises:
        InvalidTypeError: there is no model of `transformers` in it.
        InvalidValueError: its attention is of another kind.
    """
    validate.instance(nn.Module, model=model)
    found = [each for each in model.modules() if isinstance(each, PreTrainedModel)]
    if not found:
        raise validate.InvalidTypeError(
            f"model must be or hold a model of transformers, got {type(model).__name__}"
        )
    for each in found:
        kind = each.config._attn_implementation
        if kind not in (None, "sdpa", ATTENTION):
            raise validate.InvalidValueError(
                f'model must have attn_implementation "sdpa", got {kind!r}: call '
                'model.set_attn_implementation("sdpa") first, or train the model as it is'
            )
    found[0].set_attn_implementation(ATTENTION)
    for module in model.modules():
        hooks = module._forward_pre_hooks.values()
        if hasattr(module, "token_type_embeddings") and _with_types not in hooks:
            module.register_forward_pre_hook(_with_types, with_kwargs=True)
    return model


def _with_types(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give embeddings each record's own types of tokens, zeros, where there are none."""
    ids = kwargs.get("input_ids")
    if ids is None or kwargs.get("token_type_ids", ids) is not None:
        return args, kwargs
    return args, {**kwargs, "token_type_ids": ids * 0}


def padded(
    documents: Sequence[Sequence[int]], *, length: int, padding: int = 0
) -> dict[str, Tensor]:
    """Return documents of token ids as ``input_ids`` and ``attention_mask``, documents × length.

    What is longer is cut off, what is shorter is padded at the end. The length must be public: the
    longest document's own length would give that document away.

    Args:
        documents: one list of token ids per document; a document is a record.
        length: tokens per document, a public number.
        padding: the id that fills up; the mask hides it.

    Example:
        >>> batch = padded([[5, 6, 7], [8]], length=2)
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
        kept = list(document[:length])
        ids[row, : len(kept)] = torch.tensor(kept, dtype=ids.dtype)
        mask[row, : len(kept)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def classification_losses(outputs: Any, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each document's class.

    Args:
        outputs: what a sequence classifier returns; the loss that it may hold is not used, as it
            is the batch's mean.
        labels: one class per document.
    """
    logits = _logits(outputs, 2, "documents × classes; causal_losses is for language models")
    if labels.is_floating_point():
        raise validate.InvalidTypeError(
            f"labels must be whole numbers, one class per document, got {labels.dtype}: for other "
            "numbers write a loss of your own, with one value per document"
        )
    return functional.cross_entropy(logits, labels, reduction="none")


def causal_losses(outputs: Any, labels: Tensor, *, reduction: str = "mean") -> Tensor:
    """Return each document's loss: the cross-entropy of its own next tokens.

    With "mean" a document's tokens are averaged by the document's own number of them. A mean over
    all tokens of the batch, which `transformers` computes, divides by a number that every other
    document is part of, so that no document's gradient would be its own.

    Args:
        outputs: what a causal language model returns.
        labels: the token ids, documents × length, with -100 where nothing is to be predicted.
        reduction: "mean" or "sum" over a document's own tokens.

    Returns:
        One loss per document; 0 for one with fewer than two tokens.
    """
    validate.choice(("mean", "sum"), reduction=reduction)
    kind = "documents × tokens × words; classification_losses is for classifiers"
    logits, following = _logits(outputs, 3, kind), labels[:, 1:]
    losses = functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), following, reduction="none", ignore_index=IGNORED
    )
    if reduction == "sum":
        return losses.sum(1)
    return losses.sum(1) / (following != IGNORED).sum(1).clamp(min=1)


def _logits(outputs: Any, dimensions: int, kind: str) -> Tensor:
    """Return the logits of a model's outputs, if they are of that kind."""
    logits = getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor) or logits.dim() != dimensions:
        shown = f"{logits.dim()} dimensions" if isinstance(logits, Tensor) else "none"
        raise validate.InvalidTypeError(f"outputs must have logits, {kind}, got {shown}")
    return logits


def _mask_of_each(*args: Any, **kwargs: Any) -> Tensor | None:
    """Make a mask as `transformers` does, without looking at the padding of all records at once."""
    padding, length = kwargs.get("attention_mask"), kwargs.get("kv_length")
    if padding is None or padding.dim() != 2 or padding.shape[1] != length:
        made: Tensor | None = sdpa_mask(*args, **kwargs)
        return made
    skips = {name: False for name in kwargs if name.endswith("_skip")}
    whole: Tensor = sdpa_mask(*args, **{**kwargs, "attention_mask": None, **skips})
    return whole.logical_and(padding[:, None, None, :])


AttentionInterface.register(ATTENTION, sdpa_attention_forward)
AttentionMaskInterface.register(ATTENTION, _mask_of_each)
