"""A check that a model does not see padding: only then may it depend on the longest document.

A mask hides padding from attention. Convolutions, Fourier transforms and means over all tokens see
it all the same. A document is computed padded and unpadded: its hidden states must agree.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dither.integrations.transformers.chosen_loss import Batch, base_model
from dither.training.collate import leaves_of
from dither.validate import InvalidValueError

_TF32_EPS = 2.0**-10


def check_padding_is_hidden(
    model: nn.Module, inputs: Batch, *, multiple: int = 1, is_mixed: bool = False
) -> None:
    """Raise if the model computes something else for a document that is padded.

    Args:
        model: a model of `transformers`, or of `peft` around one.
        inputs: of the model, padded on the right.
        multiple: what the lengths of rows are multiples of.
        is_mixed: whether the model computes in another precision than that of its weights.
    """
    mask = inputs.get("attention_mask")
    if mask is None or mask.dim() != 2:
        return
    own = mask.ne(0).cumsum(1).argmax(1) + 1  # where the count of tokens ends to grow
    row, longest = int(own.argmin()), mask.shape[1]
    length = -(-int(own[row]) // multiple) * multiple
    if length >= longest:
        return
    padded = {name: value[row : row + 1] for name, value in inputs.items()}
    unpadded = {name: _cut(value, length, longest) for name, value in padded.items()}
    found = [_cut(each, length, longest) for each in _compute(model, padded)]
    expected = _compute(model, unpadded)
    tolerance = _rounding(model, is_mixed) ** 0.5
    if not all(_agree(a, b, tolerance) for a, b in zip(found, expected, strict=False)):
        raise InvalidValueError(
            f"documents must be padded to a public length for {type(base_model(model)).__name__}, "
            "which sees the padding: what it computes for one depends on the longest of its batch; "
            'use padding="max_length" with a max_length, in the tokenizer or the data_collator'
        )


def _cut(value: Tensor, length: int, longest: int) -> Tensor:
    """Return the tokens of a document without its padding, or what is not one entry per token."""
    return value[:, :length] if value.dim() > 1 and value.shape[1] == longest else value


@torch.no_grad()
def _compute(model: nn.Module, inputs: Batch) -> list[Tensor]:
    """Return all that a model computes, with its hidden states if it is of `transformers`."""
    config: Any = getattr(base_model(model), "config", None)
    shows, was_training = getattr(config, "output_hidden_states", None), model.training
    try:
        model.eval()
        if shows is not None:
            config.output_hidden_states = True
        outputs = model(**inputs)
    finally:
        model.train(was_training)
        if shows is not None:
            config.output_hidden_states = shows
    outputs = {**outputs} if isinstance(outputs, Mapping) else outputs
    return [
        each for each in leaves_of(outputs) if isinstance(each, Tensor) and each.is_floating_point()
    ]


def _rounding(model: nn.Module, is_mixed: bool) -> float:
    """Return the relative rounding error of the coarsest numbers in which a model computes."""
    tensors = [each for each in model.parameters() if each.is_floating_point()]
    found = [torch.finfo(each.dtype).eps for each in tensors]
    if any(each.is_cuda for each in tensors):
        found.append(_TF32_EPS)
    if is_mixed or getattr(base_model(model), "is_quantized", False):
        found.append(torch.finfo(torch.bfloat16).eps)
    return max(found, default=_TF32_EPS)


def _agree(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Return whether tensors agree up to rounding, or cannot be compared."""
    if a.shape != b.shape or not a.numel():
        return True
    difference = torch.nan_to_num(a.float() - b.float(), nan=0.0).abs().max()
    return bool(difference <= tolerance * max(1.0, float(a.abs().max())))
