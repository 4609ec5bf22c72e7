"""The step that is under way, from its batch to the sums of its clipped gradients."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from dither.clipping.batch import tensors
from dither.clipping.engine import Recording
from dither.training.declared import Reading
from dither.training.tape import Tape

TWICE = (
    "private.backward(losses) came twice for the same records: call it once for a batch or a "
    "piece, then private.optimizer.step()"
)


@dataclass
class Piece:
    """Some of a step's records on their way through the loop."""

    tape: Tape
    first: int
    records: int
    recording: Recording | None = None


@dataclass
class Step:
    """The step that is under way: how many records were drawn, and what has come of them.

    ``sent`` is how many messages ranks had sent to each other when it began.
    """

    drawn: int
    records: int
    sent: int
    reading: Reading = field(default_factory=Reading)
    batch: Any = None
    sums: dict[str, Tensor] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    piece: Piece | None = None

    @property
    def received(self) -> int:
        """How many records have been through the loop."""
        return len(self.seen)


def misuse(step: Step | None, tape: Tape | None) -> str:
    """Return what is wrong with losses that are not of the piece that is under way."""
    if step is None:
        return (
            "private.backward(losses) came without a batch: take one from private.batches(), once "
            "for every step"
        )
    if step.piece is None:
        return TWICE
    if tape is None or tape is step.piece.tape:
        return (
            "losses must be computed from private.model(inputs) with the batch that "
            "private.batches() gave, got losses that do not come from there"
        )
    return "losses must be of the batch that was given last, got those of an earlier one"


def are_same(one: Any, two: Any) -> bool:
    """Return whether two batches are of the very same tensors."""
    return [*map(id, tensors(one))] == [*map(id, tensors(two))]
