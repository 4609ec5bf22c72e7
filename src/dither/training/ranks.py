"""The processes of a run: one alone, or the ranks of torch.distributed's default process group.

Each rank draws from its own records and sums their clipped gradients. The sums are reduced to rank
0, which pays for the step, adds the noise once and broadcasts the release. Only rank 0 holds the
sum over all ranks, and it holds no other rank's own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from dither.training.errors import RankLostError, RankZeroError, StepError

T = TypeVar("T")


class Ranks:
    """The processes that take part in a run; all must make the same calls in the same order."""

    def __init__(self) -> None:
        self.rank, self.size = rank_and_size()

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is the rank that pays and releases."""
        return self.rank == 0

    def on_rank_zero(self, work: Callable[[], T]) -> T:
        """Call a function on rank 0 only; all ranks return its result or raise its error."""
        if self.size == 1:
            return work()
        if not self.is_rank_zero:
            refusal, result = self._broadcast_objects(None, None)
            if refusal is not None:
                raise RankZeroError(f"rank 0 has refused: {refusal}")
            return result  # type: ignore[no-any-return]
        try:
            made = work()
        except Exception as problem:
            self._broadcast_objects(f"{type(problem).__name__}: {problem}", None)
            raise
        self._broadcast_objects(None, made)
        return made

    def reduce_sums(self, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sums over all ranks on rank 0, and zeros on the others."""
        if rank_and_size() != (self.rank, self.size):
            raise StepError(
                "the process group has changed since make_private: ranks that each hold all "
                "records would each be a run of its own; call init_process_group first"
            )
        if self.size == 1:
            return dict(sums)
        own = [*sums.values()]
        flat = torch.cat([each.reshape(-1) for each in own])
        with _ranks_reached():
            dist.reduce(flat, dst=0)
        if not self.is_rank_zero:
            flat.zero_()  # partial sums of others pass through here
        return dict(zip(sums, _split_like(flat, own), strict=True))

    def broadcast(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite every rank's tensors with those of rank 0."""
        if self.size == 1:
            return
        for dtype in sorted({each.dtype for each in tensors.values()}, key=str):
            own = [each for each in tensors.values() if each.dtype == dtype]
            flat = torch.cat([each.reshape(-1) for each in own])
            with _ranks_reached():
                dist.broadcast(flat, src=0)
            for each, part in zip(own, _split_like(flat, own), strict=True):
                each.copy_(part)

    def all_gather(self, value: T) -> list[T]:
        """Return every rank's value on all ranks, in the order of the ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with _ranks_reached():
            dist.all_gather_object(values, value)
        return values

    def _broadcast_objects(self, *objects: Any) -> list[Any]:
        received = [*objects]
        with _ranks_reached():
            dist.broadcast_object_list(received, src=0)
        return received


def rank_and_size() -> tuple[int, int]:
    """Return this process' rank, and how many ranks there are."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _split_like(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    parts = flat.split([each.numel() for each in tensors])
    return [part.view_as(each) for part, each in zip(parts, tensors, strict=True)]


@contextmanager
def _ranks_reached() -> Iterator[None]:
    """Say in plain words that other ranks cannot be reached."""
    try:
        yield
    except (RuntimeError, ValueError) as problem:  # torch raises the latter if there is no group
        raise RankLostError(
            "another rank has died or ended, was silent for longer than the process group's "
            "time-out, or the group was destroyed before the run was over; a run with a folder "
            "goes on from its last checkpoint with resume=True, on the command line --resume"
        ) from problem
