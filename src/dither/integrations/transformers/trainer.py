"""The `Trainer` of `transformers` with private steps."""

import copy
import json
import math
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from transformers import Seq2SeqTrainer, Trainer, TrainingArguments

from dither import validate
from dither.clipping.memory import check_size
from dither.integrations.first_step import check_first_step
from dither.integrations.transformers import arguments
from dither.integrations.transformers.batches import Epochs, check_columns, pads_to_longest
from dither.integrations.transformers.chosen_loss import (
    Batch,
    Computed,
    Loss,
    choose_loss,
    split_labels,
    with_decoder_inputs,
)
from dither.integrations.transformers.padding import check_padding_is_hidden
from dither.ledger import Ledger
from dither.ledger.ledger import FILE
from dither.planning import Plan, ReactivePlan
from dither.training import Private, make_private
from dither.training.users import Users

STATE = "private_state.json"
"""The file of a checkpoint with what the run has spent."""

_LOSSES = ("loss", "train_loss")
_OF_BATCHES = ("grad_norm", "total_flos", "train_samples_per_second")


class PrivateTrainer(Trainer):
    """The `Trainer` of `transformers`, whose training is private.

    Guarantees:
        - Training is the loop of `make_private`, with its guarantees: the plan draws the batches,
          sets the learning rate of every step, clips every record's gradient and adds the noise.
        - Logs, ``trainer_state.json``, callbacks and the result of `train` get released or public
          numbers only: no training loss, unless ``log_sensitive_training_loss``. An
          ``eval_dataset`` is measured without noise, and must be public.
        - Every step is in the ledger before its release. A killed run that resumes pays for the
          steps that it has lost.
        - Arguments that a private run cannot follow are refused by name.

    Args:
        model: as `Trainer` takes it; also a model of `peft`.
        args: `TrainingArguments`. With ``epsilon`` they describe the plan: batches, steps, warm-up,
            schedule, and ``max_grad_norm`` as the clip norm. Microbatches have
            ``per_device_train_batch_size`` records.
        data_collator: as `Trainer` takes it; rows must not depend on other records.
        train_dataset: the private records, any of which can be taken by its index.
        eval_dataset: public records.
        plan: from `dither.plan`; or
        epsilon: the budget of the run. Exactly one of the two.
        delta: δ with ``epsilon``; None is 1/(10·n), n being the number of records, taken as public.
        loss: ``loss(outputs, labels)`` with one value per record; None chooses by the model.
        microbatch_size: the most records to compute at once; "auto" is what fits into memory.
        ledger: as `make_private` takes it; None is a ledger in ``output_dir``.
        run_name: the name of the run in its ledger.
        users: as `make_private` takes it: sizes of data and batches are then numbers of users.
        seed: for tests and experiments only: the same noise and batches every time. The ``seed`` of
            the arguments is for new weights, not for what must be random.
        log_sensitive_training_loss: whether to log the training loss. It is computed from the
            private records without noise, and ε does not cover who sees it.
        others: what else `Trainer` takes.

    Attributes:
        private: the `Private` of the last call of `train`.
        plan: the plan; None without a ``train_dataset``.

    Example:
        >>> import tempfile
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> tiny = BertConfig(vocab_size=9, hidden_size=4, num_hidden_layers=1,
        ...                   num_attention_heads=1, intermediate_size=4)
        >>> records = [{"input_ids": [i % 9, 1], "labels": i % 2} for i in range(40)]
        >>> trainer = PrivateTrainer(
        ...     BertForSequenceClassification(tiny),
        ...     TrainingArguments(tempfile.mkdtemp(), max_steps=2, report_to="none",
        ...                       disable_tqdm=True, logging_strategy="no"),
        ...     train_dataset=records, epsilon=3.0,
        ... )
        >>> result = trainer.train()  # doctest: +ELLIPSIS
        {...
        >>> trainer.private.step, trainer.private.spent().epsilon <= 3.0
        (2, True)
    """

    private: Private

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        *,
        plan: Plan | ReactivePlan | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        loss: Loss | None = None,
        microbatch_size: int | Literal["auto"] | None = None,
        ledger: Ledger | str | Path | Callable[[], Ledger] | None = None,
        run_name: str | None = None,
        users: Any = None,
        seed: int | None = None,
        log_sensitive_training_loss: bool = False,
        **others: Any,
    ) -> None:
        args = copy.copy(TrainingArguments() if args is None else args)
        optimizers = others.get("optimizers", (None, None))
        arguments.check_arguments(args)
        arguments.check_wandb(args)
        arguments.check_methods(type(self), PrivateTrainer)
        arguments.check_collator(data_collator)
        arguments.check_parts(optimizers, others.get("compute_loss_func"))
        arguments.check_public(train_dataset, eval_dataset)
        if train_dataset is not None:
            arguments.check_index(train_dataset)
            arguments.warn_of_checkpoints(args)
        self.plan = _plan(
            args, train_dataset, plan, epsilon, delta, users, optimizers[0] or args.optim
        )
        args.gradient_accumulation_steps, args.ignore_data_skip = 1, True
        args.max_steps = args.max_steps if self.plan is None else self.plan.steps
        super().__init__(model, args, data_collator, train_dataset, eval_dataset, **others)
        side = getattr(self.processing_class, "padding_side", None)
        self._pads = self.plan is not None and pads_to_longest(self.data_collator, side)
        self._loss = choose_loss(self.model, loss, args.label_smoothing_factor)
        self._microbatch_size = microbatch_size or args.per_device_train_batch_size
        check_size(microbatch_size=self._microbatch_size)
        self._shows_loss = log_sensitive_training_loss
        self._make_private = partial(
            make_private, workers=args.dataloader_num_workers, run_name=run_name, users=users,
            seed=seed, ledger=Path(args.output_dir) / FILE if ledger is None else ledger,
        )  # fmt: skip

    def create_accelerator_and_postprocess(self) -> None:
        """Make an accelerator that leaves models unwrapped: dither reduces gradients itself."""
        super().create_accelerator_and_postprocess()
        arguments.check_backend(deepspeed=self.is_deepspeed_enabled, fsdp=self.is_fsdp_enabled)
        prepare = self.accelerator.prepare_model
        self.accelerator.prepare_model = partial(prepare, evaluation_mode=True)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train privately; the arguments and the result are those of `Trainer.train`.

        ``training_loss`` of the result is nan unless the loss was asked for.
        """
        if not resume_from_checkpoint:
            self._warn_of_earlier_run()
        try:
            output = super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            if "private" in vars(self):
                self.private.close()
        return output if self._shows_loss else output._replace(training_loss=math.nan)

    def get_train_dataloader(self) -> Any:
        """Return the private batches of the run, one epoch per pass."""
        plan = self._plan_to_train()
        length = arguments.steps_per_epoch(plan.dataset_size, plan.batch_size)
        return Epochs(
            lambda: self.private, length, lambda: self.state.global_step, pads=self._pads,
            check_padding=self._check_padding,
        )  # fmt: skip

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> "PlannedRates":
        """Join model, optimizer, plan and data, and return what reports the plan's rates."""
        dataset, collate = self.train_dataset, self.data_collator
        check_columns(dataset)
        if hasattr(dataset, "remove_columns"):  # of datasets
            dataset = self._remove_unused_columns(dataset, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        plan = self._plan_to_train()
        self.private = self._make_private(self.model, self.optimizer, plan, dataset, collate)
        check_first_step(self.private)
        self.lr_scheduler = PlannedRates(self.private)
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Add the clipped gradients of a batch; return its mean loss if asked for, or 0."""
        self.model.train()
        total, count = torch.zeros((), device=self.args.device), 0
        for part in self.private.microbatches(inputs, self._microbatch_size):
            with self.compute_loss_context_manager():
                losses = self.record_losses(part)
            self.private.backward(losses)
            if self._shows_loss:
                total, count = total + losses.detach().sum(), count + len(losses)
        return total / max(count, 1)

    def record_losses(self, batch: dict[str, Tensor]) -> Tensor:
        """Return one loss per record of a batch."""
        labels, inputs = self._split(batch)
        return self._loss(Computed(self.model(**inputs), labels, inputs))

    def _split(self, batch: Batch) -> tuple[Batch, Batch]:
        labels, inputs = split_labels(batch, self.label_names)
        return labels, with_decoder_inputs(self.model, inputs, labels)

    def _check_padding(self, batch: Batch) -> None:
        check_padding_is_hidden(
            self.model,
            self._split(batch)[1],
            multiple=getattr(self.data_collator, "pad_to_multiple_of", None) or 1,
            is_mixed=self.accelerator.mixed_precision != "no",
        )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log public and released numbers, and what was spent so far."""
        for name in _OF_BATCHES if self._shows_loss else (*_OF_BATCHES, *_LOSSES):
            logs.pop(name, None)
        if "train_runtime" in logs:
            logs |= self._spent()
            if "epsilon" in logs:
                logs["epsilon_planned"] = self.private.plan.bound.epsilon
        elif self.is_in_train and "learning_rate" in logs:
            logs |= self._spent()
        super().log(logs, start_time)

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: the sizes of batches are private."""
        return 0

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: every trial would spend the budget again."""
        raise validate.InvalidTypeError(
            "hyperparameter_search is not for private runs, whose trials each spend the budget: "
            "choose on public data, or pay for a search with dither.recipe(..., tune=...)"
        )

    def _get_dataloader(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        arguments.check_public(self.train_dataset, dataset)
        return super()._get_dataloader(dataset, *args, **kwargs)

    def _plan_to_train(self) -> Plan | ReactivePlan:
        if self.plan is None:
            raise validate.InvalidTypeError("train_dataset must be given to train, got None")
        return self.plan

    def _warn_of_earlier_run(self) -> None:
        if self.model_init is None and "private" in vars(self) and self.private.step:
            warnings.warn(
                "train was called before, and goes on with its weights: the ε of this run does not "
                "include what they have cost; the total of the ledger does (dither.ledger.Ledger)",
                stacklevel=3,
            )

    def _spent(self) -> dict[str, float]:
        spent, z = self.private.spent(), self.private.noise_multiplier
        if not math.isfinite(spent.epsilon) or not self.private.step:
            return {}
        return {"epsilon": spent.epsilon, "delta": spent.delta, "noise_multiplier": z}

    def _clip_grad_norm(self, model: Any) -> None:
        """Do nothing: records are clipped one by one, before their sum."""

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> None:
        """Return nothing to log: there is no gradient yet."""

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            text = json.dumps(self.private.state_dict())
            (Path(output_dir) / STATE).write_text(text, encoding="utf-8")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        file = Path(checkpoint) / STATE
        if not file.is_file():
            raise validate.InvalidValueError(
                f"resume_from_checkpoint must be a complete checkpoint of a PrivateTrainer, got "
                f"{str(checkpoint)!r} without {STATE}: one before it, saved without save_only_model"
            )
        super()._load_optimizer_and_scheduler(checkpoint)
        self.private.load_state_dict(json.loads(file.read_text(encoding="utf-8")))

    def _save_rng_state(self, output_dir: str) -> None:
        """Write no state of random numbers: what was drawn stays unknown."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Draw new random numbers."""


class PrivateSeq2SeqTrainer(PrivateTrainer, Seq2SeqTrainer):
    """The `Seq2SeqTrainer` of `transformers`, whose training is private as in `PrivateTrainer`.

    Example:
        >>> issubclass(PrivateSeq2SeqTrainer, Seq2SeqTrainer)
        True
    """


class PlannedRates:
    """Reports the learning rates of a plan where `Trainer` asks its scheduler; it sets none."""

    def __init__(self, private: Private) -> None:
        self._private = private

    def get_last_lr(self) -> list[float]:
        """Return the learning rates of the last step, 0 before the first."""
        factor = self._private.stepsize
        groups = self._private.optimizer.param_groups
        return [0.0 if math.isnan(factor) else float(g["lr"]) * factor for g in groups]

    def step(self) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the state of the run has it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""


def _plan(
    args: Any,
    dataset: Any,
    plan: Plan | ReactivePlan | None,
    epsilon: float | None,
    delta: float | None,
    users: Any,
    optimizer: str | Optimizer,
) -> Plan | ReactivePlan | None:
    """Return the plan, as given or made for a budget; None if there is nothing to train on."""
    if (plan is None) == (epsilon is None):
        raise validate.InvalidTypeError(
            f"PrivateTrainer takes exactly one of plan and epsilon, got plan={plan!r}, "
            f"epsilon={epsilon!r}"
        )
    if plan is not None:
        if delta is not None:
            raise validate.InvalidTypeError("delta must be left out with plan=, which has its own")
        arguments.check_plan(args, plan)
        return plan
    budget = validate.positive(epsilon=epsilon)
    if dataset is None:
        return None
    if callable(users):
        raise validate.InvalidTypeError(
            "users must be one id per record with epsilon=, got a function: their number is needed"
        )
    count = len(dataset) if users is None else Users.of(users).count
    return arguments.plan_for(args, count, epsilon=budget, delta=delta, optimizer=optimizer)
