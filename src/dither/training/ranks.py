"""Who takes part in a run: one process alone, or the ranks of a process group.

In a group every rank draws from records of its own and adds up their clipped gradients. The sums
are reduced to the first rank, which pays for the step, adds the noise once and sends the release to
all. Nobody but the first rank holds the sum of all, and it holds no other rank's own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol, TypeVar, final
from weakref import WeakSet, ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from dither.training.errors import RankLostError, RefusedByFirstError

T = TypeVar("T")


class Ranks(Protocol):
    """Those who take part."""

    rank: int
    size: int

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that pays and releases."""
        ...

    def by_first(self, work: Callable[[], T]) -> T:
        """Return to all ranks what the first makes of something; what it raises, all raise."""
        ...

    def total(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the sum over all ranks to the first, zeros to the others; in the same order."""
        ...

    def shared(self, gradients: Mapping[str, Tensor]) -> None:
        """Overwrite every rank's tensors with those of the first."""
        ...

    def gathered(self, value: T) -> list[T]:
        """Return every rank's value to all, in the order of the ranks."""
        ...

    def sent(self) -> int:
        """Return how many messages there were between ranks besides those of runs."""
        ...

    def close(self) -> None:
        """Send no more."""
        ...


@final
class Alone:
    """One process."""

    rank, size, is_first = 0, 1, True

    def by_first(self, work: Callable[[], T]) -> T:
        """Do it."""
        return work()

    def total(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the sums as they are."""
        return sums

    def shared(self, gradients: Mapping[str, Tensor]) -> None:
        """Leave them as they are."""

    def gathered(self, value: T) -> list[T]:
        """Return the value."""
        return [value]

    def sent(self) -> int:
        """Return 0."""
        return 0

    def close(self) -> None:
        """Do nothing."""


_of_runs: WeakSet[Any] = WeakSet()
"""Process groups in which runs send."""


@final
class Group:
    """The ranks of torch.distributed's default process group, in a group of their own.

    What a user's code or another run sends cannot be taken for a sum of gradients.
    """

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        made = dist.new_group(timeout=_timeout(dist.group.WORLD))
        _of_runs.add(made)
        # Torch keeps it until it is destroyed; whoever kept it longer would crash at the exit.
        self._group = ref(made)

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def by_first(self, work: Callable[[], T]) -> T:
        """Let rank 0 do it, and hear of what came of it; a refusal reaches everybody."""
        if not self.is_first:
            heard: list[Any] = [None, None]
            with self._reached() as own:
                dist.broadcast_object_list(heard, src=0, group=own)
            if heard[0] is not None:
                raise RefusedByFirstError(f"rank 0 has refused: {heard[0]}")
            result: T = heard[1]
            return result
        try:
            result = work()
        except Exception as problem:  # whatever it was, it is raised again
            self._tell(f"{type(problem).__name__}: {problem}", None)
            raise
        self._tell(None, result)
        return result

    def _tell(self, refusal: str | None, result: object) -> None:
        with self._reached() as own:
            dist.broadcast_object_list([refusal, result], src=0, group=own)

    def total(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """Reduce to rank 0; what others have left of the way there is wiped."""
        flat = torch.cat([each.reshape(-1) for each in sums.values()])
        with self._reached() as own:
            dist.reduce(flat, dst=0, group=own)
        if not self.is_first:
            flat.zero_()
        pieces = flat.split([each.numel() for each in sums.values()])
        return {
            name: piece.view_as(each)
            for (name, each), piece in zip(sums.items(), pieces, strict=True)
        }

    def shared(self, gradients: Mapping[str, Tensor]) -> None:
        """Broadcast rank 0's."""
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for each in gradients.values():
            by_type.setdefault(each.dtype, []).append(each)
        for alike in by_type.values():
            flat = torch.cat([each.reshape(-1) for each in alike])
            with self._reached() as own:
                dist.broadcast(flat, src=0, group=own)
            for each, piece in zip(alike, flat.split([e.numel() for e in alike]), strict=True):
                each.copy_(piece.view_as(each))

    def gathered(self, value: T) -> list[T]:
        """Return everybody's."""
        everybody: list[Any] = [None] * self.size
        with self._reached() as own:
            dist.all_gather_object(everybody, value, group=own)
        return everybody

    def sent(self) -> int:
        """Return the sum of the numbers that torch gives to the messages of every group."""
        groups: Sequence[Any] = [*distributed_c10d._world.pg_map]
        return sum(each._get_sequence_number_for_group() for each in groups if each not in _of_runs)

    def close(self) -> None:
        """Leave the group; the others go on without hearing of it."""
        made = self._group()
        if made is not None:  # else it has gone with the default group, or before
            dist.destroy_process_group(made)

    @contextmanager
    def _reached(self) -> Iterator[Any]:
        """Give the group, and say in words of ours if nobody answers there."""
        made = self._group()
        if made is None:
            raise RankLostError("the process group is gone: destroy it when the run is over")
        try:
            yield made
        except RuntimeError as problem:
            raise RankLostError(
                "another rank has died, has ended, or was silent for longer than the group's "
                "time-out; a run with a folder goes on from its last checkpoint with resume=True, "
                "on the command line --resume"
            ) from problem


def _timeout(group: Any) -> timedelta | None:
    """Return how long a group waits; a new one would wait for torch's usual half an hour.

    None where a version of torch does not tell: then it is that half an hour.
    """
    backend = group._get_backend(group._device_types[0])
    waits: timedelta | None = getattr(getattr(backend, "options", None), "_timeout", None)
    return waits


def place() -> tuple[int, int]:
    """Return this process' rank and how many there are."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def ranks() -> Ranks:
    """Return those who take part: the ranks of the process group, or this process alone.

    They are for one run: no other sends in their group.
    """
    return Alone() if place()[1] == 1 else Group()
