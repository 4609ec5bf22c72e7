"""Private fine-tuning of models of `transformers`, in full or by adapters of `peft`.

A record is a document. `PrivateTrainer` is the `Trainer` of `transformers` with private steps. For
other loops, `pad_documents` makes tensors of documents, and the losses are one per document,
computed from that document only. Models may be trained as they are; `prepare` makes some faster.
"""

from dither.integrations.transformers.documents import pad_documents
from dither.integrations.transformers.losses import (
    IGNORE_INDEX,
    causal_losses,
    classification_losses,
    token_losses,
)
from dither.integrations.transformers.prepare import prepare
from dither.integrations.transformers.trainer import PrivateSeq2SeqTrainer, PrivateTrainer

__all__ = [
    "IGNORE_INDEX",
    "PrivateSeq2SeqTrainer",
    "PrivateTrainer",
    "causal_losses",
    "classification_losses",
    "pad_documents",
    "prepare",
    "token_losses",
]
