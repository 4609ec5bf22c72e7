"""What the ranks of a run compare before it begins: all that must be the same, or apart."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from dither.clipping.batch import trainable
from dither.planning import Plan, ReactivePlan
from dither.training.errors import StepError
from dither.training.prints import Prints, prints_of
from dither.training.ranks import Ranks, place
from dither.training.records import CollateFn, Records, part_of, records_of
from dither.validate import InvalidValueError


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


def own_records(
    dataset: Any,
    group: Ranks,
    collate_fn: CollateFn | None,
    workers: int,
    dtype: torch.dtype | None,
) -> Records:
    """Return this rank's part of the whole dataset, or the shard that is its own."""
    settings: dict[str, Any] = {"collate_fn": collate_fn, "workers": workers, "dtype": dtype}
    if isinstance(dataset, Shard):
        return records_of(dataset.dataset, may_be_empty=group.size > 1, **settings)
    return part_of(records_of(dataset, **settings), group.rank, group.size)


def check_same_group(group: Ranks) -> None:
    """Raise if the process group is not the one that a run began with."""
    if place() != (group.rank, group.size):
        raise StepError(
            "the process group has changed since make_private: ranks that each hold all "
            "records would each be a run of its own; call init_process_group first"
        )


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


def refuse_different(group: Ranks, own: Mapping[str, object]) -> None:
    """Raise on every rank unless all have the same of everything."""
    everybody = group.gathered(dict(own))
    for name in own:
        if any(each[name] != own[name] for each in everybody):
            raise InvalidValueError(f"{name} must be the same on every rank, got different ones")


def agree(
    group: Ranks,
    model: nn.Module,
    optimizer: Optimizer,
    plan: Plan | ReactivePlan,
    dataset: Any,
    **settings: object,
) -> None:
    """Raise on every rank unless all have the same of what is given, or shards of their own.

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
    kinds = [(name, type(each).__qualname__) for name, each in model.named_modules()]
    own = {
        "plan": plan.fingerprint,
        "model": json.dumps([shapes, kinds, sorted(trainable(model))]),
        "optimizer": _described(optimizer),
        **settings,
        "dataset, a Shard or a whole,": dataset.has_twins
        if isinstance(dataset, Shard)
        else "whole",
    }
    refuse_different(group, own)
    if not isinstance(dataset, Shard):
        _refuse_other_wholes(group.gathered(prints_of(dataset, some=True)))
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


def _refuse_other_wholes(everybody: Sequence[Prints]) -> None:
    if any(not np.array_equal(each, everybody[0]) for each in everybody):
        raise InvalidValueError(
            "dataset must be the same on every rank, in the same order, got different ones: each "
            "takes its part of the whole. A rank with records of its own, which no other has, says "
            "so with dither.training.Shard(dataset). Records that are augmented by other dice than "
            "those of torch, numpy and Python look different everywhere: give every rank its own "
            "part, Shard(Subset(dataset, range(rank, n, ranks)), has_twins=True)"
        )


def _described(optimizer: Optimizer) -> str:
    """Return what an optimizer does, but for its parameters and its state."""
    groups = [
        {name: repr(value) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    return json.dumps([type(optimizer).__name__, groups], sort_keys=True)
