"""Losses of models of `transformers`: one per record, computed from that record only."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dither import validate

IGNORE_INDEX = -100
"""The label of a token that has no loss, as in `transformers`."""


def classification_losses(outputs: Any, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy of each document's class.

    Args:
        outputs: what a sequence classifier returns; a loss in it is not used, since it is the mean
            of the batch.
        labels: one class per document.
        label_smoothing: the share of a target that is spread over all classes.

    Example:
        >>> from types import SimpleNamespace
        >>> outputs = SimpleNamespace(logits=torch.tensor([[0.0, 0.0], [3.0, -3.0]]))
        >>> classification_losses(outputs, torch.tensor([0, 0])).shape
        torch.Size([2])
    """
    logits = logits_of(outputs, 2, "documents × classes; causal_losses is for language models")
    if labels.is_floating_point():
        raise validate.InvalidTypeError(
            f"labels must be integers, one class per document, got {labels.dtype}: for other "
            "targets write a loss of your own, with one value per document"
        )
    return functional.cross_entropy(
        logits, labels, reduction="none", label_smoothing=label_smoothing
    )


def causal_losses(
    outputs: Any, labels: Tensor, *, reduction: str = "mean", label_smoothing: float = 0.0
) -> Tensor:
    """Return each document's loss: the cross-entropy of its own next tokens.

    "mean" divides by the document's own number of tokens. The mean over all tokens of the batch,
    which `transformers` computes, divides by a number that depends on all other documents, so that
    no document's gradient would be its own.

    Args:
        outputs: what a causal language model returns.
        labels: the token ids, documents × length, with -100 where nothing is to be predicted.
        reduction: "mean" or "sum" over a document's own tokens.
        label_smoothing: the share of a target that is spread over all tokens.

    Returns:
        One loss per document; 0 for one with fewer than two tokens.

    Example:
        >>> from types import SimpleNamespace
        >>> outputs = SimpleNamespace(logits=torch.zeros(2, 3, 5))
        >>> causal_losses(outputs, torch.tensor([[1, 2, 3], [4, -100, -100]])).tolist()
        [1.6094379425048828, 0.0]
    """
    following = functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)  # logits are not copied
    return token_losses(outputs, following, reduction=reduction, label_smoothing=label_smoothing)


def token_losses(
    outputs: Any, labels: Tensor, *, reduction: str = "mean", label_smoothing: float = 0.0
) -> Tensor:
    """Return each document's loss where labels are not shifted: the cross-entropy of its tokens.

    For token classifiers, masked language models, and models that read one text and write another.

    Args:
        outputs: what such a model returns.
        labels: one class per token, documents × length, with -100 where there is none.
        reduction: "mean" or "sum" over a document's own tokens.
        label_smoothing: the share of a target that is spread over all classes.

    Returns:
        One loss per document; 0 for one without labels.

    Example:
        >>> from types import SimpleNamespace
        >>> outputs = SimpleNamespace(logits=torch.zeros(2, 3, 5))
        >>> token_losses(outputs, torch.tensor([[1, 2, 3], [-100] * 3])).tolist()
        [1.6094379425048828, 0.0]
    """
    validate.choice(("mean", "sum"), reduction=reduction)
    kind = "documents × tokens × vocabulary; classification_losses is for classifiers"
    logits = logits_of(outputs, 3, kind)
    losses = functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORE_INDEX,
        label_smoothing=label_smoothing,
    )  # fmt: skip
    totals = losses.view(labels.shape).sum(1)
    if reduction == "sum":
        return totals
    return totals / (labels != IGNORE_INDEX).sum(1).clamp(min=1)


def logits_of(outputs: Any, dimensions: int, kind: str) -> Tensor:
    """Return the logits of a model's outputs; raise unless they have that many dimensions."""
    logits = getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor) or logits.dim() != dimensions:
        shown = f"{logits.dim()} dimensions" if isinstance(logits, Tensor) else "none"
        raise validate.InvalidTypeError(f"outputs must have logits, {kind}, got {shown}")
    is_half = logits.dtype in (torch.float16, torch.bfloat16)
    return logits.float() if is_half else logits
