"""Settings of a trainer, a module and a dataloader that a private fit refuses, with the remedy."""

import math
from collections.abc import Collection, Mapping
from typing import Any

from lightning.pytorch import callbacks
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from dither.validate import InvalidTypeError, InvalidValueError

_SETTINGS = {
    "gradient_clip_val": (None, "give clip_norm= to PrivateStrategy, or a plan"),
    "accumulate_grad_batches": (
        1,
        "batch_size of the DataLoader is that of a step; give PrivateStrategy microbatch_size= to "
        "compute it in parts",
    ),
    "overfit_batches": (0, "the records of every step are drawn at random"),
    "reload_dataloaders_every_n_epochs": (0, "the run has one dataset from its first step on"),
}
_HOOKS = {
    "backward": "gradients are computed per record, from the losses that training_step returns",
    "configure_gradient_clipping": "give clip_norm= to PrivateStrategy, or a plan",
}
_CALLBACKS = {
    callbacks.GradientAccumulationScheduler: "give microbatch_size= to PrivateStrategy",
    callbacks.StochasticWeightAveraging: "it changes the learning rate, which the plan owns",
    callbacks.LearningRateFinder: "its steps would not be accounted for",
    callbacks.BatchSizeFinder: 'give microbatch_size="auto" to PrivateStrategy',
    callbacks.ThroughputMonitor: "it logs how many records were drawn, which is private",
    callbacks.SpikeDetection: "it looks at training losses, which are private",
}


def check_budget(plan: object, budget: Mapping[str, Any], settings: Collection[str]) -> None:
    """Raise unless there is either a plan or a budget."""
    if (plan is None) == ("epsilon" not in budget):
        got = "neither" if plan is None else "both"
        raise InvalidTypeError(f"PrivateStrategy takes either a plan or epsilon=, got {got}")
    if plan is not None and budget:
        raise InvalidTypeError(
            f"PrivateStrategy takes {', '.join(budget)} for a plan that it makes from epsilon=, "
            "got a plan, which has its own"
        )
    unknown = budget.keys() - {"epsilon", "delta", "dataset_size", *settings}
    if unknown:
        raise InvalidTypeError(
            f"settings must be of {', '.join(settings)}, got {', '.join(sorted(unknown))}"
        )


def check_fit(trainer: Any) -> None:
    """Raise if the trainer or its module is set to something that cannot be private."""
    module = trainer.lightning_module
    if not module.automatic_optimization:
        raise InvalidValueError(
            "automatic_optimization must be True, got False: return one loss per record from "
            "training_step, and one optimizer, with several groups of parameters if need be"
        )
    for hook, remedy in _HOOKS.items():
        if is_overridden(hook, module):
            raise InvalidValueError(f"the module must not override {hook}: {remedy}")
    for name, (allowed, remedy) in _SETTINGS.items():
        if (value := getattr(trainer, name)) != allowed:
            raise InvalidValueError(f"{name} must be {allowed!r}, got {value!r}: {remedy}")
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        raise InvalidValueError(
            "precision must not need a GradScaler, which changes gradients before they are "
            f'clipped, got {trainer.precision!r}: use "bf16-mixed" or "32-true"'
        )
    for callback in trainer.callbacks:
        for kind, remedy in _CALLBACKS.items():
            if isinstance(callback, kind):
                raise InvalidValueError(f"callbacks must not have {kind.__name__}: {remedy}")


def check_no_hooks(module: nn.Module) -> None:
    """Raise if hooks get the gradients of parameters."""
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks:
            raise InvalidValueError(
                f"parameters must have no hooks, got one on {name}, which gets the gradient of "
                'every record without noise: use watch(module, log="parameters") of a logger, or '
                "show them with log_sensitive_training_values=True"
            )


def check_are_public(measured: Collection[object], training: DataLoader[Any] | None) -> None:
    """Raise if the private records are among the datasets that are measured without noise."""
    if training is not None and any(each is training.dataset for each in measured):
        raise InvalidValueError(
            "dataloaders of validation and test must have public records, got the dataset of "
            "training, whose records would be measured without noise: use other records, or pay "
            "for them with dither.evaluation"
        )


def check_schedulers(plan: object, budget: Mapping[str, Any]) -> None:
    """Raise if step sizes are given, and the module configures a scheduler as well."""
    if plan is not None or "stepsizes" in budget:
        raise InvalidValueError(
            "configure_optimizers must return an optimizer alone where a plan or stepsizes= is "
            "given, which owns the learning rate, got a scheduler: leave it out, and give its "
            "schedule to the plan by dither.schedules.from_torch"
        )


def check_loader(loader: object) -> DataLoader[Any]:
    """Return the training dataloader; raise if its records cannot be drawn at random."""
    if not isinstance(loader, DataLoader):
        raise InvalidTypeError(
            "train_dataloaders must be a torch DataLoader, whose dataset gives any record by its "
            f"index, got {type(loader).__name__}"
        )
    if isinstance(loader.dataset, IterableDataset):
        raise InvalidTypeError(
            "the dataset must give any record by its index, got an IterableDataset, which gives "
            "records in its own order: the privacy guarantee needs random sampling"
        )
    if loader.batch_size is None:
        raise InvalidValueError(
            "train_dataloaders must have a batch_size, which is the expected number of records in "
            "a step, and no batch_sampler, got no batch_size"
        )
    if type(loader.sampler) not in (RandomSampler, SequentialSampler, DistributedSampler):
        raise InvalidValueError(
            "train_dataloaders must have no sampler of its own, got one: every record is drawn "
            "with the same probability, as the plan is accounted for; leave sampler= out"
        )
    return loader


def steps_of(trainer: Any) -> float:
    """Return how many steps a trainer takes, by its own limits."""
    epochs, limit = trainer.max_epochs, trainer.max_steps
    by_epochs = math.inf if epochs in (None, -1) else float(epochs * trainer.num_training_batches)
    return by_epochs if limit == -1 else min(by_epochs, limit)


def check_steps(trainer: Any) -> int:
    """Return how many steps a trainer takes; raise if no plan can be made for them."""
    steps = steps_of(trainer)
    if not math.isfinite(steps):
        raise InvalidValueError(
            "max_epochs or max_steps of the trainer must be given with epsilon=, got neither: they "
            "say how many steps the plan has"
        )
    if trainer.fast_dev_run:
        raise InvalidValueError(
            f"fast_dev_run must be False with epsilon=, got a run of {steps:g} steps, which would "
            "spend all of it: give a plan, of which it takes the first steps"
        )
    return int(steps)
