"""The training dataloader of a private fit."""

from collections.abc import Callable, Iterator
from typing import Any, final

from torch.utils.data import DataLoader, default_collate

from dither.training import Private
from dither.training.collate import CollateFn


@final
class Epochs:
    """Gives the batches of one epoch every time it is iterated.

    Attributes:
        dataset: the training records.
        batch_size: of the dataloader that is replaced.

    Args:
        loader: the dataloader that is replaced.
        running: returns the run, which begins with the first batch.
        steps: in an epoch.
    """

    def __init__(self, loader: DataLoader[Any], running: Callable[[], Private], steps: int) -> None:
        self.dataset, self.batch_size = loader.dataset, loader.batch_size
        self._running, self._steps = running, steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        """Yield private batches: no more than are left in an epoch that is resumed."""
        private = self._running()
        yield from private.batches(self._steps) if private.steps_left else ()

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the strategy saves the state of the run."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load nothing; a dataloader with these methods can be resumed within an epoch."""


def collate_fn_of(loader: DataLoader[Any]) -> CollateFn | None:
    """Return the function that makes a batch from records, or None for torch's own."""
    return None if loader.collate_fn is default_collate else loader.collate_fn
