"""How many batches a sampler of Opacus has drawn."""

from collections.abc import Iterator
from typing import Any, final

from opacus.utils.uniform_sampler import UniformWithReplacementSampler


class _Counting(UniformWithReplacementSampler):
    """Opacus' sampler, which counts; a sampler is made one by giving it this class."""

    drawn = 0

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            self.drawn += 1
            yield batch


@final
class Draws:
    """Counts the batches of a sampler, and holds steps against them: one step for each.

    Args:
        sampler: the Poisson sampler of a data loader.
        fetches_ahead: whether worker processes draw before they are asked.
    """

    def __init__(self, sampler: Any, *, fetches_ahead: bool) -> None:
        self._sampler, self._fetches_ahead = sampler, fetches_ahead
        self._steps = 0
        self._since: int | None = None
        sampler.__class__ = _Counting
        sampler.drawn = 0

    def look(self, *, is_microbatch: bool) -> str | None:
        """Return why a step, or a microbatch, is not of a batch of its own."""
        drawn = self._sampler.drawn
        if drawn <= self._steps:
            return (
                "a batch is for one step, and each that was drawn has had its own: take the next "
                "from the data loader, and keep none for later"
            )
        if is_microbatch and self._fetches_ahead:
            return (
                "microbatches need a data loader with num_workers=0: workers draw ahead, so that "
                "it is not known where a batch ends"
            )
        if self._since is not None and self._since != drawn:
            return (
                "microbatches of two batches would be in one step: a batch was left before its "
                "last one; finish every batch of the BatchMemoryManager"
            )
        self._since = drawn if is_microbatch else None
        return None

    def step(self) -> None:
        """Count a step."""
        self._steps += 1

    def close(self) -> None:
        """Let the sampler be what it was."""
        self._sampler.__class__ = UniformWithReplacementSampler
