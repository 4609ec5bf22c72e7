"""The processes of a run: one alone, or the ranks of torch.distributed's default process group.

Each rank draws from its own records and sums their clipped gradients. The sums are reduced to rank
0, which charges the step, adds the noise once and broadcasts the release. Only rank 0 holds the sum
over all ranks, and it holds no other rank's own sum.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar, final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Subset

from dither.clipping.batch import tensors, trainable
from dither.planning import Plan, ReactivePlan
from dither.release import ReleaseFacts
from dither.training.errors import RankLostError, RankZeroError, StepError
from dither.training.records import Records, part_of, records_of
from dither.training.users import Users, users_of
from dither.validate import InvalidTypeError, InvalidValueError

T = TypeVar("T")
_COMPARED_ROWS, _KIND = 64, "the data, complete, a Shard or a Shard with keys,"
_SHARED_KEY = (
    "keys must be different for all records of all ranks, got one that occurs twice: a record that "
    "is there twice counts twice, and the plan protects records that count once"
)
_SHARED_USER = (
    "users must have all of their rows on one rank, got one whose rows are in the shards of two: "
    "such a user counts twice, and the plan protects users that count once"
)


class Ranks:
    """The processes that take part in a run; all must make the same calls in the same order."""

    def __init__(self) -> None:
        self.rank, self.size = rank_and_size()

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is the rank that charges and releases."""
        return self.rank == 0

    def on_rank_zero(self, work: Callable[[], T]) -> T:
        """Call a function on rank 0 only; all ranks return its result or raise its error."""
        if self.size == 1:
            return work()
        if not self.is_rank_zero:
            error, received = self._broadcast_objects(None, None)
            if error is not None:
                raise RankZeroError(f"rank 0 has refused: {error}")
            return received  # type: ignore[no-any-return]
        try:
            result = work()
        except Exception as problem:
            self._broadcast_objects(f"{type(problem).__name__}: {problem}", None)
            raise
        self._broadcast_objects(None, result)
        return result

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
        flat = torch.cat([each.reshape(-1).double() for each in own])
        with _reaching_ranks():
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
            with _reaching_ranks():
                dist.broadcast(flat, src=0)
            for each, part in zip(own, _split_like(flat, own), strict=True):
                each.copy_(part)

    def all_gather(self, value: T) -> list[T]:
        """Return every rank's value on all ranks, in the order of the ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with _reaching_ranks():
            dist.all_gather_object(values, value)
        return values

    def _broadcast_objects(self, *objects: Any) -> list[Any]:
        received = [*objects]
        with _reaching_ranks():
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
def _reaching_ranks() -> Iterator[None]:
    """Raise `RankLostError` if other ranks cannot be reached."""
    try:
        yield
    except (RuntimeError, ValueError) as problem:  # torch raises the latter if there is no group
        raise RankLostError(
            "another rank has died or ended, was silent for longer than the process group's "
            "time-out, or the group was destroyed before the run was over; start it again from its "
            "last checkpoint (dither.train: resume=True; on the command line: --resume)"
        ) from problem


@final
@dataclass(frozen=True)
class Shard:
    """Declares that a dataset has this rank's records, which no other rank has.

    Without it every rank of a process group must pass the same complete dataset, and each takes its
    own part.

    Guarantees: with ``keys``, shards that share a key are refused, and so is a key that occurs
    twice in a shard. Without them nothing is compared: a record that two ranks hold counts twice,
    and the plan protects records that count once.

    Args:
        dataset: what `make_private` takes as a dataset; it may be empty if it is in memory.
        keys: one id per record, in their order: a sequence or an array of integers or strings.
            Ranks compare hashes of them.

    Example:
        >>> Shard(torch.zeros(3, 2), keys=["a", "b", "c"]).keys
        ['a', 'b', 'c']
    """

    dataset: Any
    keys: Any = None


def held(data: Any) -> Any:
    """Return the data of a shard, or the data."""
    return data.dataset if isinstance(data, Shard) else data


def own_records(
    dataset: Any,
    ranks: Ranks,
    *,
    users: Any = None,
    rows_per_user: int | None = None,
    missing: str = "drop",
    planned: int | None = None,
    **settings: Any,
) -> tuple[Records, Users | None]:
    """Return this rank's part of the dataset, or its shard, and its users if there are any.

    Settings are those of `users_of` and `records_of`.
    """
    is_shard = isinstance(dataset, Shard)
    records = records_of(held(dataset), may_be_empty=is_shard and ranks.size > 1, **settings)
    kind = "complete" if not is_shard else "a Shard" + " with keys" * (dataset.keys is not None)
    check_same(ranks, {_KIND: kind, "users": users is not None})
    own = users_of(users, records, rows_per_user=rows_per_user, missing=missing, planned=planned)
    if is_shard:
        if dataset.keys is not None:
            _check_keys(ranks, dataset.keys, records.length)
        if own is not None:
            _check_once(ranks, own.names.tolist(), _SHARED_USER)
        return records, own
    _check_complete(ranks, dataset, records, own)
    if own is not None:
        return records, own.part(ranks.rank, ranks.size)
    return part_of(records, ranks.rank, ranks.size), None


def check_single_process(name: str) -> None:
    """Raise in a process group, for what runs in one process."""
    size = rank_and_size()[1]
    if size > 1:
        raise InvalidValueError(
            f"{name} is for one process, got a process group of {size} ranks: each would be "
            "a run of its own on the same records; dither.make_private is for all of them"
        )


def check_rank_zero_has(ranks: Ranks, **given: object) -> None:
    """Raise on every rank if another rank was given what rank 0 keeps, and rank 0 was not."""
    for name, each in given.items():
        first, *others = ranks.all_gather(each is not None)
        if any(others) and not first:
            raise InvalidValueError(
                f"{name} must be given to rank 0, which keeps it for all, got one on another only"
            )


def check_same(ranks: Ranks, own: Mapping[str, object]) -> None:
    """Raise on every rank unless all have the same value of everything."""
    gathered = ranks.all_gather(dict(own))
    for name in own:
        if any(each[name] != own[name] for each in gathered):
            raise InvalidValueError(f"{name} must be the same on every rank, got different ones")


def check_same_run(
    ranks: Ranks,
    model: nn.Module,
    optimizer: Optimizer,
    plan: Plan | ReactivePlan,
    **settings: object,
) -> None:
    """Raise on every rank unless all are given the same run.

    Then every rank's parameters and buffers become those of rank 0.
    """
    if ranks.size == 1:
        return
    if plan.sampling == "fixed" and plan.sample_rate < 1.0:
        raise InvalidValueError(
            f"plan must be of Poisson sampling in a process group, got {plan.sampling!r}: a fixed "
            "number of records cannot be drawn by ranks that know only their own"
        )
    state = {name: each for name, each in model.state_dict().items() if isinstance(each, Tensor)}
    shapes = [(name, str(each.dtype), each.shape) for name, each in state.items()]
    kinds = [(name, type(each).__qualname__) for name, each in model.named_modules()]
    plain = (bool, int, float, str, tuple, Tensor)  # repr of other objects may be an address
    options = [
        {name: repr(value) for name, value in group.items() if isinstance(value, plain)}
        for group in optimizer.param_groups
    ]
    own = {
        "plan": plan.fingerprint,
        "model": [shapes, kinds, sorted(trainable(model))],
        "optimizer": [type(optimizer).__name__, options],
    }
    check_same(ranks, {**own, **settings})
    with torch.no_grad():
        ranks.broadcast(state)


def check_same_step(facts: ReleaseFacts, step: int, noise_multiplier: float) -> None:
    """Raise unless rank 0 has released the step that this rank is at."""
    if (facts.step, facts.noise_multiplier) != (step, noise_multiplier):
        raise StepError(
            f"ranks must be at the same step of the same plan, but rank 0 has released step "
            f"{facts.step} with noise {facts.noise_multiplier!r}, and here it is step {step} with "
            f"noise {noise_multiplier!r}"
        )


def _check_complete(ranks: Ranks, dataset: Any, records: Records, users: Users | None) -> None:
    """Raise on every rank if they do not take their parts of the same dataset.

    Compared are lengths, the indices of a ``Subset`` (``random_split`` returns such), which rows
    each user has, and a few rows of tensors in memory. Datasets that fetch their records may
    augment them at random.
    """
    if ranks.size == 1:
        return
    indices, rows = blake2b(), list[Tensor]()
    while isinstance(dataset, Subset):
        indices.update(np.asarray(dataset.indices, np.int64).tobytes())
        dataset = dataset.dataset
    if users is not None:
        indices.update(users.rows.tobytes() + users.ends.tobytes())
    if records.is_in_memory:
        places = np.linspace(0, records.length - 1, _COMPARED_ROWS).astype(np.int64)
        rows = [each.cpu() for each in tensors(next(records.batches([places])))]
    own = records.length, indices.digest(), rows
    (length, digest, rows), *others = ranks.all_gather(own)
    if not all(
        other[:2] == (length, digest)
        and len(other[2]) == len(rows)
        and all(map(_are_close, rows, other[2]))
        for other in others
    ):
        raise InvalidValueError(
            "the data must be the same on every rank, in the same order, got different ones: every "
            "rank takes its own part; shuffle and split with the same seed on all. For "
            "ranks with records of their own, pass dither.training.Shard(dataset)"
        )


def _are_close(one: Tensor, other: Tensor) -> bool:
    """Return whether tensors agree, but for rounding on another machine."""
    is_alike = (one.shape, one.dtype) == (other.shape, other.dtype)
    return is_alike and torch.allclose(one, other, rtol=1e-3, equal_nan=True)


def _check_keys(ranks: Ranks, keys: Any, length: int) -> None:
    """Raise on every rank if a key occurs twice; a number is the same key as its digits."""
    array = np.asarray(keys)
    if array.shape != (length,):
        raise InvalidValueError("keys must have one entry per record of the Shard, got others")
    is_key = [isinstance(each, int | np.integer | str) for each in array.tolist()]
    if not all(is_key) or array.dtype == bool:
        raise InvalidTypeError("keys must be integers or strings, got others")
    _check_once(ranks, array.tolist(), _SHARED_KEY)


def _check_once(ranks: Ranks, names: Sequence[object], message: str) -> None:
    """Raise on every rank if a name occurs twice; ranks compare hashes."""
    hashes = [blake2b(str(name).encode(), digest_size=16).digest() for name in names]
    gathered = np.concatenate(ranks.all_gather(np.array(hashes, "S16")))
    if np.unique(gathered).size < gathered.size:
        raise InvalidValueError(message)
