"""What of `TrainingArguments` a private run takes, and the plan that they describe."""

import math
import os
import warnings
from typing import Any

from torch.optim import SGD
from torch.utils.data import IterableDataset
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorWithFlattening,
    get_scheduler,
)

from dither import schedules, validate
from dither.planning import Plan, ReactivePlan
from dither.planning.planner import plan as make_plan
from dither.training.optimizer_hooks import has_scheduler
from dither.validate import InvalidTypeError, InvalidValueError

_SAMPLING = "the privacy guarantee needs random batches"
_REFUSED = {
    "fp16": "its loss scaling is for one loss per batch: bf16=True works",
    "deepspeed": "private runs on several processes reduce their own gradients: use torchrun",
    "fsdp": "private runs on several processes reduce their own gradients: use torchrun",
    "parallelism_config": "a model must be complete on every process: use torchrun",
    "auto_find_batch_size": 'it restarts the run: PrivateTrainer(microbatch_size="auto") finds it',
    "neftune_noise_alpha": "its noise depends on how far other documents pad the batch",
    "use_liger_kernel": "it computes one loss per batch",
    "group_by_length": _SAMPLING,  # before transformers had train_sampling_strategy
}
_OPTIMIZERS = ("lomo", "layerwise", "schedule_free")
_OVERRIDDEN = {
    "compute_loss": "give loss=, a function loss(outputs, labels) with one value per record",
    "get_train_dataloader": "pass train_dataset and data_collator, from which the plan draws",
}


def check_arguments(args: Any) -> None:
    """Raise if a private run cannot do what the arguments ask for."""
    for name in _REFUSED:
        if value := getattr(args, name, None):
            _refuse(name, repr(value) if isinstance(value, str | int | float) else "a dict")
    _check_equal(args, "train_sampling_strategy", "random", _SAMPLING)
    _check_equal(
        args, "include_num_input_tokens_seen", "no", "how many tokens were drawn is private"
    )
    if args.n_gpu > 1:
        raise InvalidValueError(
            f"n_gpu must be at most 1 per process, got {args.n_gpu}: start one process per GPU "
            "with torchrun, or set CUDA_VISIBLE_DEVICES=0"
        )
    optim = str(getattr(args.optim, "value", args.optim))
    if any(part in optim for part in _OPTIMIZERS):
        raise InvalidValueError(
            f"optim must take its step after the backward pass, at the plan's learning rate, got "
            f"{optim!r}: use adamw_torch or sgd"
        )
    if args.gradient_checkpointing and (args.gradient_checkpointing_kwargs or {}).get(
        "use_reentrant"
    ):
        raise InvalidValueError(
            "gradient_checkpointing_kwargs must have use_reentrant=False, got True, which hides "
            "the graph that per-record gradients need"
        )


def warn_of_checkpoints(args: Any) -> None:
    """Warn if no checkpoint can be resumed."""
    if args.save_only_model and args.save_strategy != "no":
        warnings.warn(
            "save_only_model=True leaves out of checkpoints what the run has spent: a run that is "
            "killed cannot go on, and stays paid",
            stacklevel=3,
        )


def check_wandb(args: Any) -> None:
    """Raise if Weights & Biases would log gradients, which are those of single records."""
    watched = os.getenv("WANDB_WATCH", "false")
    if watched in ("gradients", "all") and "wandb" in args.report_to:
        raise InvalidValueError(
            'WANDB_WATCH must be "false" or "parameters" in the environment of a private run, got '
            f"{watched!r}, which logs gradients of records without noise"
        )


def check_backend(**enabled: bool) -> None:
    """Raise if the accelerator was configured outside of the arguments for sharded models."""
    for name, is_enabled in enabled.items():
        if is_enabled:
            _refuse(name, "it from accelerate's configuration")


def check_public(train_dataset: Any, eval_dataset: Any) -> None:
    """Raise if the private records are what is measured."""
    measured = eval_dataset.values() if isinstance(eval_dataset, dict) else [eval_dataset]
    if train_dataset is not None and any(each is train_dataset for each in measured):
        raise InvalidValueError(
            "eval_dataset must be public, got train_dataset: it is measured without noise; "
            "dither.evaluate measures private records for a budget"
        )


def check_index(dataset: Any) -> None:
    """Raise if records cannot be taken by their index."""
    has_index = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not has_index or isinstance(dataset, IterableDataset):
        raise InvalidTypeError(
            f"train_dataset must give any record by its index, got {type(dataset).__name__}: the "
            "privacy guarantee needs random sampling"
        )


def check_methods(trainer: type, base: type) -> None:
    """Raise if a trainer overrides what a private run does not call, or must do itself."""
    for name, remedy in _OVERRIDDEN.items():
        if getattr(trainer, name) is not getattr(base, name):
            raise InvalidTypeError(
                f"{name} of {trainer.__name__} must not be overridden, since private training has "
                f"its own: {remedy}"
            )


def check_collator(collator: Any) -> None:
    """Raise if the rows of a collator depend on other records."""
    if isinstance(collator, DataCollatorWithFlattening):
        raise InvalidTypeError(
            "data_collator must keep every document in its own row, got DataCollatorWithFlattening,"
            " which joins them: use DataCollatorWithPadding"
        )
    seed = getattr(collator, "seed", None)
    if isinstance(collator, DataCollatorForLanguageModeling) and seed is not None:
        raise InvalidValueError(
            f"data_collator must be made without seed=, got {type(collator).__name__}(seed={seed}):"
            " every record would shift the masks of all that come after it"
        )


def check_parts(optimizers: Any, compute_loss_func: Any) -> None:
    """Raise if loss or scheduler are not those of a private run."""
    if compute_loss_func is not None:
        raise InvalidTypeError(
            "compute_loss_func must be left out: give loss=, a function loss(outputs, labels) with "
            "one value per record"
        )
    optimizer, scheduler = optimizers
    if scheduler is not None or (optimizer is not None and has_scheduler(optimizer)):
        shown = "one attached to the optimizer" if scheduler is None else type(scheduler).__name__
        raise InvalidTypeError(
            f"optimizers must have no scheduler, got {shown}: the plan owns the learning rate. Do "
            "not construct one; set lr_scheduler_type, or give "
            "plan=dither.plan(stepsizes=dither.schedules.from_torch(...))"
        )


def plan_for(
    args: Any,
    dataset_size: int,
    *,
    epsilon: float,
    delta: float | None,
    optimizer: Any,
) -> Plan:
    """Return the plan of the run that the arguments describe.

    Batches, steps, warm-up and schedule are those of the same run without privacy, and
    ``max_grad_norm`` is the clip norm of every record. The noise has the shape of the schedule for
    SGD; other optimizers divide every step by its own noise, so that shapes gain nothing.
    """
    m = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    steps = args.max_steps
    if steps <= 0:
        steps = math.ceil(args.num_train_epochs * steps_per_epoch(dataset_size, m))
    if not args.max_grad_norm:
        raise InvalidValueError(
            f"max_grad_norm must be positive, got {args.max_grad_norm!r}: it is the clip norm of "
            "every record, which bounds what one record can do"
        )
    is_sgd = optimizer == "sgd" or isinstance(optimizer, SGD)
    made = make_plan(
        epsilon=epsilon,
        delta=1 / (10 * dataset_size) if delta is None else delta,
        dataset_size=dataset_size,
        batch_size=m,
        steps=steps,
        clip_norm=args.max_grad_norm,
        stepsizes=_schedule(args, steps),
        noise="optimal" if is_sgd else "uniform",
    )
    return validate.instance(Plan, plan=made)


def steps_per_epoch(dataset_size: int, batch_size: int) -> int:
    """Return how many steps the progress bar and the callbacks take for one epoch."""
    return math.ceil(dataset_size / batch_size)


def check_plan(args: Any, plan: Plan | ReactivePlan) -> None:
    """Raise if the arguments ask for another number of steps than the plan has."""
    if not isinstance(plan, Plan | ReactivePlan):
        raise InvalidTypeError(f"plan must be what dither.plan returns, got {type(plan).__name__}")
    if args.max_steps > 0 and args.max_steps != plan.steps:
        raise InvalidValueError(
            f"max_steps must be left out or the plan's number of steps, {plan.steps}, got "
            f"{args.max_steps}"
        )


def _schedule(args: Any, steps: int) -> schedules.TorchSchedule:
    kind = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    if kind in ("reduce_lr_on_plateau", "greedy"):
        raise InvalidValueError(
            f"lr_scheduler_type must be a schedule that is known before the run, got {kind!r}: the "
            "noise of every step is planned for its learning rate"
        )
    return schedules.from_torch(
        lambda optimizer: get_scheduler(
            kind,
            optimizer=optimizer,
            num_warmup_steps=args.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
    )


def _refuse(name: str, shown: str) -> None:
    raise InvalidValueError(
        f"{name} must be left out of TrainingArguments, got {shown}: {_REFUSED[name]}"
    )


def _check_equal(args: Any, name: str, wanted: str, why: str) -> None:
    value = str(getattr(args, name, wanted))
    if value != wanted:
        raise InvalidValueError(f"{name} must be {wanted!r}, got {value!r}: {why}")
