"""The private batches of a run as `Trainer` takes them: epoch by epoch, and checked."""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from dither.training import Private
from dither.validate import InvalidTypeError, InvalidValueError

_PADS = "collate_fn pads to the longest record"
_PACKED = ("seq_lengths", "cu_seq_lens_q", "cu_seq_lens_k", "seq_idx")
_IS_PACKED = (
    "the batches must have one document per row, got packed ones ({}): documents of a row see each "
    "other, and ε would be about rows; turn packing off, and truncate and pad documents"
)


class Epochs:
    """A loader whose every pass is the next epoch of a run; the plan draws the batches.

    An epoch is a public number of steps. After a resume the first pass is the rest of its epoch.

    Args:
        private: returns the run, which is made after its loader.
        length: steps per epoch.
        steps_taken: returns how many steps the model has taken.
        pads: whether rows may be padded to the longest document of a batch.
        check_padding: raises if the model sees the padding of a batch; called once, if there is
            some.
    """

    def __init__(
        self,
        private: Callable[[], Private],
        length: int,
        steps_taken: Callable[[], int],
        *,
        pads: bool,
        check_padding: Callable[[Any], None],
    ) -> None:
        self._private, self._length, self._steps_taken = private, length, steps_taken
        self._pads, self._check_padding, self._has_begun = pads, check_padding, False

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        taken = 0 if self._has_begun else self._steps_taken() % self._length
        self._has_begun = True
        private = self._private()
        if not private.steps_left:  # a resumed run may have too little budget for all its steps
            return
        batches = private.batches(steps=self._length - taken)
        while True:
            batch, is_padded = _next(batches) if self._pads else (next(batches, None), False)
            if batch is None:
                return
            _check(batch, self._pads)
            if is_padded:
                self._check_padding(batch)
            yield batch


def check_columns(dataset: Any) -> None:
    """Raise if the records of a dataset are packed: the columns that say so may be removed."""
    names = getattr(dataset, "column_names", None)
    if names is None and len(dataset) and isinstance(record := dataset[0], Mapping):
        names = [*record]
    _check_names(names or ())


def pads_to_longest(collator: Any, padding_side: str | None) -> bool:
    """Return whether a collator of `transformers` pads to the longest document of a batch.

    Raise if it pads on the left: how far would be visible in the positions of all documents.
    """
    tokenizer = getattr(collator, "tokenizer", None)
    padding = getattr(collator, "padding", True)
    if tokenizer is None or padding is False or padding in ("max_length", "do_not_pad"):
        return False
    if getattr(tokenizer, "padding_side", padding_side) == "left":
        raise InvalidValueError(
            'padding_side of the tokenizer must be "right" where documents are padded to the '
            'longest of their batch, got "left", which moves the tokens of all documents if a '
            'longer one is added: set it, or pad to a public length with padding="max_length"'
        )
    return True


def _next(batches: Iterator[Any]) -> tuple[Any, bool]:
    """Return the next batch, and whether its collator was found to pad to the longest document.

    That is a warning, which is not shown: the model is checked instead.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", _PADS)
        batch = next(batches, None)
    others = [each for each in caught if not str(each.message).startswith(_PADS)]
    for each in others:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    return batch, len(others) < len(caught)


def _check(batch: Any, pads: bool) -> None:
    """Raise if rows are not single documents, or padding is not hidden."""
    if not isinstance(batch, dict):
        raise InvalidTypeError(
            f"data_collator must return a dict of tensors, got {type(batch).__name__}"
        )
    _check_names(batch)
    positions, mask = batch.get("position_ids"), batch.get("attention_mask")
    if isinstance(positions, Tensor) and positions.dim() == 2 and _restarts(positions, mask):
        raise InvalidValueError(_IS_PACKED.format("position_ids that begin again within a row"))
    if pads and mask is None and "input_ids" in batch:
        raise InvalidValueError(
            "the batches must have an attention_mask where documents are padded to the longest of "
            'their batch, got none: pad to a public length with padding="max_length"'
        )


def _check_names(names: Collection[str]) -> None:
    for name in _PACKED:
        if name in names:
            raise InvalidValueError(_IS_PACKED.format(name))


def _restarts(positions: Tensor, mask: Tensor | None) -> bool:
    falls = positions.diff(dim=1) < 0
    if mask is not None and mask.shape == positions.shape:
        falls &= mask[:, 1:].bool() & mask[:, :-1].bool()
    return bool(torch.any(falls))
