"""Documents of token ids as tensors of a public length."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dither import validate


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
