"""Who takes part in a run: one process alone, or the ranks of a process group.

In a group every rank draws from records of its own and adds up their clipped gradients. The sums
are reduced to the first rank, which pays for the step, adds the noise once and sends the release to
all. Nobody but the first rank holds the sum of all, and it holds no other rank's own.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol, TypeVar, final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dither.clipping.batch import tensors
from dither.planning import Plan, ReactivePlan
from dither.training.errors import RefusedByFirstError
from dither.training.records import records_of
from dither.validate import InvalidValueError

T = TypeVar("T")
_LOOKED_AT = 64
"""Records of a dataset by which ranks know that they hold the same."""


@final
@dataclass(frozen=True)
class Shard:
    """Declares that a dataset has this rank's records, which no other rank has.

    Without it every rank of a process group is taken to hold the same, whole dataset, of which it
    takes its own part. A record that two ranks hold counts twice, and a plan protects one.

    Args:
        dataset: what `make_private` takes as a dataset; it may be empty if it is in memory.
    """

    dataset: Any


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

    def together(self, number: int) -> int:
        """Return the sum of every rank's number to all."""
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

    def together(self, number: int) -> int:
        """Return the number."""
        return number


@final
class Group:
    """The ranks of torch.distributed's default process group."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def by_first(self, work: Callable[[], T]) -> T:
        """Let rank 0 do it, and hear of what came of it; a refusal reaches everybody."""
        if not self.is_first:
            heard: list[Any] = [None, None]
            dist.broadcast_object_list(heard, src=0)
            if heard[0] is not None:
                raise RefusedByFirstError(f"rank 0 has refused: {heard[0]}")
            result: T = heard[1]
            return result
        try:
            result = work()
        except Exception as problem:  # whatever it was, it is raised again
            dist.broadcast_object_list([f"{type(problem).__name__}: {problem}", None], src=0)
            raise
        dist.broadcast_object_list([None, result], src=0)
        return result

    def total(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """Reduce to rank 0; what others have left of the way there is wiped."""
        flat = torch.cat([each.reshape(-1) for each in sums.values()])
        dist.reduce(flat, dst=0)
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
            dist.broadcast(flat, src=0)
            for each, piece in zip(alike, flat.split([e.numel() for e in alike]), strict=True):
                each.copy_(piece.view_as(each))

    def together(self, number: int) -> int:
        """Return the sum of all."""
        is_cuda = dist.get_backend() == "nccl"
        counted = torch.tensor(number, device="cuda" if is_cuda else "cpu")
        dist.all_reduce(counted)
        return int(counted)


def ranks() -> Ranks:
    """Return the ranks of the process group if there is one, else this process alone."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return Group()
    return Alone()


def agree(group: Ranks, model: nn.Module, plan: Plan | ReactivePlan, dataset: Any) -> None:
    """Raise on every rank unless all have the same model, plan and dataset, or shards of their own.

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
    own = _Held(plan.fingerprint, json.dumps(shapes), isinstance(dataset, Shard), *_look(dataset))
    everybody: list[Any] = [None] * group.size
    dist.all_gather_object(everybody, own)
    _compare(everybody)
    with torch.no_grad():
        group.shared(state)


@dataclass(frozen=True)
class _Held:
    """What ranks tell each other before they begin."""

    plan: str
    model: str
    is_shard: bool
    length: int
    prints: tuple[str | None, ...]


def _compare(everybody: Sequence[_Held]) -> None:
    for what in ("plan", "model", "is_shard"):
        if len({getattr(each, what) for each in everybody}) > 1:
            name = "dataset" if what == "is_shard" else what
            raise InvalidValueError(f"{name} must be the same on every rank, got different ones")
    if everybody[0].is_shard:
        held = [(each.length, each.prints) for each in everybody if any(each.prints)]
        if len(set(held)) < len(held):
            raise InvalidValueError(
                "dataset must have other records on every rank, got a Shard with the same ones on "
                "two: a record that is there twice counts twice, and the plan protects one"
            )
        return
    alike = all(
        len({one for one in leaf if one is not None}) <= 1
        for leaf in zip_longest(*(each.prints for each in everybody))
    )
    if not alike or len({each.length for each in everybody}) > 1:
        raise InvalidValueError(
            "dataset must be the same on every rank, in the same order, got different ones: each "
            "takes its part of the whole; a rank with records of its own says so with "
            "dither.training.Shard(dataset)"
        )


def _look(dataset: Any) -> tuple[int, tuple[str | None, ...]]:
    """Return the number of records, and for each of their tensors a hash of some of them.

    None is for what is another at every look, as random augmentation makes it.
    """
    plain = dataset.dataset if isinstance(dataset, Shard) else dataset
    records = records_of(plain, may_be_empty=isinstance(dataset, Shard))
    if not records.length:
        return 0, ()
    places = np.unique(np.linspace(0, records.length - 1, _LOOKED_AT).astype(np.int64))
    looks = [[*map(_hash, tensors(next(iter(records.batches([places])))))] for _ in range(2)]
    return records.length, tuple(a if a == b else None for a, b in zip(*looks, strict=True))


def _hash(tensor: Tensor) -> str:
    raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return hashlib.sha256(
        f"{tensor.dtype} {tuple(tensor.shape)}".encode() + raw.tobytes()
    ).hexdigest()
