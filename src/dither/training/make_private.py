"""Private training with your own loop."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from dither import validate
from dither.clipping.layers import check_layers
from dither.ledger import Ledger
from dither.ledger.ledger import account_for
from dither.planning import Plan, ReactivePlan
from dither.planning.search import check_no_search
from dither.randomness import Source
from dither.sinks import Sink, Sinks
from dither.training.augmentation import Augment
from dither.training.collate import CollateFn
from dither.training.distributed import Ranks, check_rank_zero_has, check_same_run, own_records
from dither.training.history import Row
from dither.training.optimizers import warn_of_scaling
from dither.training.private import Private
from dither.training.records import Draws, warn_of_dataset_size
from dither.training.users import Users


def make_private(
    model: nn.Module,
    optimizer: Optimizer,
    plan: Plan | ReactivePlan,
    dataset: Any,
    collate_fn: CollateFn | None = None,
    seed: int | None = None,
    workers: int = 0,
    *,
    augment: Augment | None = None,
    ledger: Ledger | str | Path | Callable[[], Ledger] | None = None,
    run_name: str | None = None,
    users: Any = None,
    rows_per_user: int | None = None,
    missing: str = "drop",
    sinks: Sequence[Sink] = (),
) -> Private:
    """Join a model, an optimizer, a plan and a dataset for your own private training loop.

    Guarantees:
        - Every step draws its records as the plan was accounted for, clips each record's gradient,
          adds the plan's noise once, when the optimizer steps, and divides by the plan's batch
          size. The release overwrites ``p.grad``.
        - Anything that is not as planned is refused before the step is released: a changed
          learning rate, a scheduler, a step without `Private.backward` or beyond the plan, records
          that are missing or come twice.
        - In the first step, models and losses in which the graph of a record reaches another one
          are refused. What a loop does outside of the graph is the caller's: ``losses[i]`` must be
          the same number whatever other records are drawn.

    Args:
        model: any module that treats every record by itself. It stays the same object, with hooks
            that a copy does not have. It may be called itself, through its submodules or through
            its own methods, several times per step.
        optimizer: any of ``torch.optim`` that takes one step per call, with the model's parameters.
            At step t every group's learning rate is its own ``lr`` times the plan's step size.
        plan: from `dither.plan`.
        dataset: tensors, arrays or data frames with one record per row, or any map-style dataset.
        collate_fn: makes a batch from a list of records, as in ``torch.utils.data.DataLoader``.
        seed: for tests and experiments only: the same noise and batches every time.
        workers: processes that fetch the records of a map-style dataset.
        augment: ``augment(inputs)`` returns several augmented copies of every record, of shape
            (records, multiplicity, …); their gradients are averaged before they are clipped.
        ledger: where every step's cost is written before its release can be seen: a `Ledger`, the
            path of one, or a function that opens one when the first step begins. It is for this
            run, or for all runs on the same data.
        run_name: the name of the run in its ledger; None makes one.
        users: whose each record is, where people have several: one id per record, or a function
            from a record to its id. Users are then drawn instead of records, the mean gradient of a
            user's records is clipped as one, the plan's ``dataset_size`` and ``batch_size`` are
            numbers of users, and ε is for adding or removing a user with all records.
        rows_per_user: the most records of a user in a step, chosen at random every time; None is
            what the plan says, or 8.
        missing: what becomes of records whose id is None, NaN or empty: "drop" leaves them out,
            "own" makes each a user of its own.
        sinks: what receives ε, step size and noise multiplier after every step, as `dither.sinks`
            describes; `Private.close` closes them.

    Returns:
        A `Private`.

    Example:
        >>> import dither
        >>> import torch
        >>> x, y = torch.randn(100, 4), torch.randint(2, (100,))
        >>> model = nn.Linear(4, 2)
        >>> plan = dither.plan(epsilon=3.0, delta=1e-3, dataset_size=100, batch_size=20, steps=5)
        >>> private = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, (x, y))
        >>> for inputs, targets in private.batches():
        ...     outputs = private.model(inputs)
        ...     losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
        ...     private.backward(losses)
        ...     private.optimizer.step()
        ...     private.optimizer.zero_grad()
        >>> private.step, private.spent().epsilon <= 3.0
        (5, True)
    """
    check_no_search(plan)
    outputs = Sinks(sinks, is_used=Ranks().is_rank_zero)
    private = join(
        model, optimizer, plan, dataset, collate_fn=collate_fn, seed=seed, workers=workers,
        augment=augment, ledger=ledger, run_name=run_name, users=users,
        rows_per_user=rows_per_user, missing=missing,
    )  # fmt: skip
    if outputs:
        _log_steps(private, outputs)
    return private


def _log_steps(private: Private, sinks: Sinks) -> None:
    """Send the numbers of every step to sinks, once the optimizer has taken it."""

    def log() -> None:
        numbers = private.spent().epsilon, private.stepsize, private.noise_multiplier
        sinks.log(private.step, Row(private.step, *numbers).numbers())

    hooks = private._optimizer_hooks
    hooks.after_step, hooks.after_run = log, sinks.close


def join(
    model: nn.Module,
    optimizer: Optimizer,
    plan: Plan | ReactivePlan,
    dataset: Any,
    *,
    collate_fn: CollateFn | None = None,
    seed: int | None = None,
    workers: int = 0,
    augment: Augment | None = None,
    ledger: Ledger | str | Path | Callable[[], Ledger] | None = None,
    run_name: str | None = None,
    users: Any = None,
    rows_per_user: int | None = None,
    missing: str = "drop",
) -> Private:
    """Do what `make_private` does, also with a plan that begins with a search."""
    validate.instance(nn.Module, model=model)
    if not isinstance(plan, Plan | ReactivePlan):
        raise validate.InvalidTypeError(
            f"plan must be what dither.plan returns, got {type(plan).__name__}"
        )
    if workers != 0:
        validate.count(workers=workers)
    check_layers(model)
    ranks = Ranks()
    check_rank_zero_has(ranks, ledger=ledger)
    account = account_for(
        ledger if ranks.is_rank_zero else None, name=run_name, is_seeded=seed is not None
    )
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    records, own = own_records(
        dataset, ranks, users=users, rows_per_user=rows_per_user, missing=missing,
        planned=plan.rows_per_user, collate_fn=collate_fn, workers=workers, dtype=dtype,
    )  # fmt: skip
    plan = for_users(plan, own)
    check_same_run(ranks, model, optimizer, plan, seed=seed, augment=augment is not None)
    length = sum(ranks.all_gather(records.length if own is None else own.count))
    source = Source(seed)
    draws = Draws(records, own, plan, source, length=length, rank=ranks.rank)
    if ranks.is_rank_zero:
        warn_of_dataset_size(plan, length, stacklevel=4)
        warn_of_scaling(optimizer, plan)
    return Private(
        model, optimizer, plan, draws, source=source, augment=augment, account=account, ranks=ranks
    )


def for_users(plan: Plan | ReactivePlan, users: Users | None) -> Plan | ReactivePlan:
    """Return the plan for these users, or for records if there are none."""
    if users is not None:
        return plan.for_users(users.rows_per_user)
    if plan.unit == "user":
        raise validate.InvalidValueError(
            "users must be given for a plan that protects users, got None: whose each record is"
        )
    return plan
