"""Who takes part in a run: one process alone, or the ranks of a process group.

In a group every rank draws from records of its own and adds up their clipped gradients. The sums
are reduced to the first rank, which pays for the step, adds the noise once and sends the release to
all. Nobody but the first rank holds the sum of all, and it holds no other rank's own.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, TypeVar, final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import distributed_c10d

from dither.clipping.batch import trainable
from dither.planning import Plan, ReactivePlan
from dither.training.errors import RefusedByFirstError
from dither.training.prints import Prints, prints_of
from dither.validate import InvalidValueError

T = TypeVar("T")


@final
@dataclass(frozen=True)
class Shard:
    """Declares that a dataset has this rank's records, which no other rank has.

    Without it every rank of a process group is taken to hold the same, whole dataset, of which it
    takes its own part. A record that two ranks hold counts twice, and a plan protects one.

    Args:
        dataset: what `make_private` takes as a dataset; it may be empty if it is in memory.
        has_twins: whether another rank may have an equal record, of somebody else. Without it all
            records are looked at before the run begins, equal ones are taken for the same one and
            refused, and so are records that are others at every look.
    """

    dataset: Any
    has_twins: bool = False


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


_of_runs: set[Any] = set()
"""Process groups in which runs send."""


@final
class Group:
    """The ranks of torch.distributed's default process group, in a group of their own.

    What a user's code or another run sends cannot be taken for a sum of gradients.
    """

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._own = dist.new_group(timeout=_timeout(dist.group.WORLD))
        _of_runs.add(self._own)

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def by_first(self, work: Callable[[], T]) -> T:
        """Let rank 0 do it, and hear of what came of it; a refusal reaches everybody."""
        if not self.is_first:
            heard: list[Any] = [None, None]
            dist.broadcast_object_list(heard, src=0, group=self._own)
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
        dist.broadcast_object_list([refusal, result], src=0, group=self._own)

    def total(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """Reduce to rank 0; what others have left of the way there is wiped."""
        flat = torch.cat([each.reshape(-1) for each in sums.values()])
        dist.reduce(flat, dst=0, group=self._own)
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
            dist.broadcast(flat, src=0, group=self._own)
            for each, piece in zip(alike, flat.split([e.numel() for e in alike]), strict=True):
                each.copy_(piece.view_as(each))

    def gathered(self, value: T) -> list[T]:
        """Return everybody's."""
        everybody: list[Any] = [None] * self.size
        dist.all_gather_object(everybody, value, group=self._own)
        return everybody

    def sent(self) -> int:
        """Return the sum of the numbers that torch gives to the messages of every group."""
        groups: Sequence[Any] = [*distributed_c10d._world.pg_map]
        return sum(each._get_sequence_number_for_group() for each in groups if each not in _of_runs)

    def close(self) -> None:
        """Leave the group; the others go on without hearing of it."""
        if self._own in _of_runs:
            _of_runs.remove(self._own)
            with suppress(ValueError):  # it has gone with the default group
                dist.destroy_process_group(self._own)


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


_joined: list[tuple[object, Group]] = []


def ranks_of_a_run() -> Ranks:
    """Return those who take part in a new run: no other sends in their group."""
    return Alone() if place()[1] == 1 else Group()


def ranks() -> Ranks:
    """Return the ranks of the process group if there is one, for all that is of no run."""
    if place()[1] == 1:
        return Alone()
    if not _joined or _joined[0][0] is not dist.group.WORLD:
        _joined[:] = [(dist.group.WORLD, Group())]
    return _joined[0][1]


def refuse_several(name: str) -> None:
    """Raise in a process group, of what is for one process."""
    if place()[1] > 1:
        raise InvalidValueError(
            f"{name} is for one process, got a process group of {place()[1]} ranks: each would be "
            "a run of its own on the same records; dither.make_private is for all of them"
        )


def refuse_on_others_alone(group: Ranks, **given: object) -> None:
    """Raise on every rank if another than the first was given what the first is to keep."""
    for name, each in given.items():
        first, *others = group.gathered(each is not None)
        if any(others) and not first:
            raise InvalidValueError(
                f"{name} must be given to rank 0, which keeps it for all, got one on another only"
            )


def agree(
    group: Ranks, model: nn.Module, plan: Plan | ReactivePlan, dataset: Any, **settings: object
) -> None:
    """Raise on every rank unless all have the same model, plan, settings, dataset or own shards.

    Then every rank's parameters and buffers are those of the first.
    """
    if group.size == 1:
        return
    if plan.sampling != "poisson" and plan.sample_rate < 1.0:
        raise InvalidValueError(
            f"plan must be of Poisson sampling in a process group, got {plan.sampling!r}: a fixed "
            "number of records cannot be drawn by ranks that know only their own"
        )
    state = model.state_dict()
    shapes = [(name, str(each.dtype), list(each.shape)) for name, each in state.items()]
    own: dict[str, Any] = {
        "plan": plan.fingerprint,
        "model": json.dumps([shapes, sorted(trainable(model))]),
        **settings,
        "dataset": dataset.has_twins if isinstance(dataset, Shard) else "whole",
    }
    everybody = group.gathered(own)
    for name in own:
        if any(each[name] != own[name] for each in everybody):
            raise InvalidValueError(f"{name} must be the same on every rank, got different ones")
    if not isinstance(dataset, Shard):
        _refuse_different(group.gathered(prints_of(dataset, some=True)))
    elif not dataset.has_twins:
        some = partial(prints_of, dataset.dataset, some=True)
        _refuse_changing(group.gathered(np.array_equal(some(), some())))
        _refuse_shared(group.gathered(prints_of(dataset.dataset)))
    with torch.no_grad():
        group.shared(state)


def _refuse_changing(are_same: Sequence[bool]) -> None:
    """Raise if a rank's records cannot be compared with others'."""
    if not all(are_same):
        raise InvalidValueError(
            "dataset must have records that can be compared, got a Shard of ones that are others "
            "at every look, augmented by other dice than those of torch, numpy and Python: if no "
            "record is on two ranks, say Shard(dataset, has_twins=True)"
        )


def _refuse_shared(everybody: Sequence[Prints]) -> None:
    """Raise if a record is on two ranks."""
    held = np.concatenate([np.unique(each) for each in everybody])
    if np.unique(held).size < held.size:
        raise InvalidValueError(
            "dataset must have other records on every rank, got a Shard with a record that another "
            "has: one that is there twice counts twice, and the plan protects one; if it is of "
            "somebody else who has the same values, say Shard(dataset, has_twins=True)"
        )


def _refuse_different(everybody: Sequence[Prints]) -> None:
    if any(not np.array_equal(each, everybody[0]) for each in everybody):
        raise InvalidValueError(
            "dataset must be the same on every rank, in the same order, got different ones: each "
            "takes its part of the whole. A rank with records of its own, which no other has, says "
            "so with dither.training.Shard(dataset). Records that are augmented by other dice than "
            "those of torch, numpy and Python look different everywhere: give every rank its own "
            "part, Shard(Subset(dataset, range(rank, n, ranks)), has_twins=True)"
        )
