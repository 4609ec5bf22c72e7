"""A strategy that trains a ``LightningModule`` privately."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, Strategy
from lightning.pytorch.trainer.states import TrainerFn
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dither import validate
from dither.clipping.memory import check_size
from dither.integrations.first_step import check_first_step
from dither.integrations.lightning.checks import (
    check_are_public,
    check_budget,
    check_fit,
    check_loader,
    check_no_hooks,
    check_schedulers,
    check_steps,
    steps_of,
)
from dither.integrations.lightning.epochs import Epochs, collate_fn_of
from dither.integrations.lightning.results import ReleasedResults
from dither.integrations.lightning.schedulers import stepsizes_of
from dither.ledger import Ledger
from dither.ledger.ledger import FILE
from dither.noise import Correlated
from dither.planning import Plan, ReactivePlan
from dither.planning import plan as make_plan
from dither.schedules import Constant, Reactive
from dither.training import Private, make_private
from dither.types import Allocation, Schedule

_KEY = "dither"
"""Of the state of the run in a checkpoint."""


class PlanSettings(TypedDict, total=False):
    """What `dither.plan` takes besides the budget and the sizes."""

    clip_norm: float
    clipping: str
    stepsizes: Schedule | Reactive | ArrayLike
    noise: Allocation | Correlated | ArrayLike | str
    accountant: str | None
    sampling: str


class PrivateStrategy(DDPStrategy):
    """Makes ``Trainer.fit`` private: ``Trainer(strategy=PrivateStrategy(epsilon=3.0))``.

    The module stays as it is, but ``training_step`` returns one loss per record, as a tensor or
    under the key "loss". The records of every step are drawn from the dataset of the training
    dataloader as the plan was accounted; its ``batch_size`` is the expected number per process.

    Guarantees:
        - Those of `dither.make_private`, which it calls, on one process or on all ranks.
        - Every step is written to a ledger before its release can be seen. Checkpoints hold the
          state of the run, and ``ckpt_path=`` resumes it; steps lost in between stay spent.
        - Values that the module or a callback logs while training reach no logger, progress bar or
          callback, since they are computed from the records without noise.

    Args:
        plan: from `dither.plan`; None if it is made from a budget.
        epsilon: the ε that the run may spend. The plan has the steps of the trainer's
            ``max_epochs`` or ``max_steps``.
        delta: δ; None is 1/(10·n).
        dataset_size: n, public; None takes the number of records in the dataset as public.
        ledger: where every step's cost is written; None is ``ledger.sqlite`` in the trainer's
            ``default_root_dir``.
        run_name: the name of the run in its ledger; None makes one.
        seed: for tests and experiments only: the same noise and batches every time.
        microbatch_size: the most records to compute at once, which bounds the memory; "auto" is as
            many as fit into half of the memory that is available; None is the full batch.
        log_sensitive_training_values: whether values that are logged while training reach loggers,
            progress bar and callbacks. They are not private.
        settings: other arguments of `dither.plan`, for a plan that is made from a budget.

    Attributes:
        private: the `dither.training.Private` of the last fit, from its first step on.

    Example:
        >>> import lightning
        >>> strategy = PrivateStrategy(epsilon=3.0, dataset_size=60_000, clip_norm=0.5)
        >>> trainer = lightning.Trainer(
        ...     strategy=strategy, accelerator="cpu", devices=1, max_epochs=2, logger=False,
        ...     enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
        >>> trainer.strategy is strategy
        True
    """

    def __init__(
        self,
        plan: Plan | ReactivePlan | None = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        dataset_size: int | None = None,
        ledger: Ledger | str | Path | None = None,
        run_name: str | None = None,
        seed: int | None = None,
        microbatch_size: int | Literal["auto"] | None = None,
        log_sensitive_training_values: bool = False,
        **settings: Unpack[PlanSettings],
    ) -> None:
        super().__init__()
        budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "dataset_size": dataset_size}
        self._budget = {k: v for k, v in {**budget, **settings}.items() if v is not None}
        check_budget(plan, self._budget, PlanSettings.__annotations__)
        if microbatch_size is not None:
            check_size(microbatch_size=microbatch_size)
        self._plan, self._seed = plan, seed
        self._ledger, self._run_name = ledger, run_name
        self._microbatch_size = microbatch_size
        self._logs_sensitive_values = log_sensitive_training_values
        self._loader: DataLoader[Any] | None = None
        self._measured: list[object] = []
        self._stepsizes: Any = None
        self._resumed: Mapping[str, Any] | None = None
        self.private: Private | None = None

    # Setting up: one process has no process group, and no model is wrapped.

    @property
    def _is_alone(self) -> bool:
        return self.num_nodes * self.num_processes == 1

    def _configure_launcher(self) -> None:
        if not self._is_alone:
            super()._configure_launcher()

    def setup_distributed(self) -> None:
        """Make the process group, if there are several processes."""
        if self._is_alone:
            self.set_world_ranks()
        else:
            super().setup_distributed()

    def setup(self, trainer: Trainer) -> None:
        """Refuse what cannot be private; move the model, and make its optimizer."""
        trainer._accelerator_connector.use_distributed_sampler &= not self._is_alone
        if trainer.state.fn == TrainerFn.FITTING:
            check_fit(trainer)
            self._loader = self._resumed = self.private = None
            self._measured.clear()
            self._stepsizes = self._budget.get("stepsizes", Constant(1.0))
            results = ReleasedResults(shows_all=self._logs_sensitive_values)
            trainer.fit_loop.epoch_loop._results = results
        Strategy.setup(self, trainer)

    def _setup_model(self, model: nn.Module) -> nn.Module:  # type: ignore[override]
        return model

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Make the optimizer that the module configures; its schedulers become step sizes."""
        super().setup_optimizers(trainer)
        if self.lr_scheduler_configs:
            check_schedulers(self._plan, self._budget)
            trainer.fit_loop.setup_data()  # which says how long an epoch is
            self._stepsizes = stepsizes_of(
                self.lr_scheduler_configs,
                self._module,
                self.optimizers[0],
                steps=check_steps(trainer),
                epoch=int(trainer.num_training_batches),
            )
            self.lr_scheduler_configs = []

    def process_dataloader(self, dataloader: object) -> object:
        """Return private batches instead of those of the training dataloader."""
        trainer = self._module.trainer
        if not trainer.training:
            if not trainer.predicting:
                self._measured.append(getattr(dataloader, "dataset", None))
                check_are_public(self._measured, self._loader)
            return dataloader
        if self._loader is not None:
            raise validate.InvalidValueError(
                "train_dataloaders must be one DataLoader, got several: join their datasets, so "
                "that the records of a step are drawn from all of them"
            )
        self._loader = check_loader(dataloader)
        check_are_public(self._measured, self._loader)
        n, m = self._sizes()
        return Epochs(self._loader, lambda: self._running, steps=math.ceil(n / m))

    # The run, from its first step to its last.

    def on_train_start(self) -> None:
        """Begin the run, or continue that of the checkpoint."""
        trainer, loader = self._module.trainer, self._loader
        assert loader is not None  # noqa: S101 - the trainer has asked for it
        if not self._logs_sensitive_values:
            check_no_hooks(self._module)
        self.private = make_private(
            self._module,
            self.optimizers[0],
            self._plan or self._plan_of_budget(trainer),
            loader.dataset,
            collate_fn_of(loader),
            self._seed,
            loader.num_workers,
            ledger=self._ledger or Path(trainer.default_root_dir) / FILE,
            run_name=self._run_name,
        )
        check_first_step(self.private)
        if self._resumed is not None:
            self.private.load_state_dict(self._resumed)
        last = trainer.global_step + self.private.steps_left
        if steps_of(trainer) > last:
            trainer.fit_loop.epoch_loop.max_steps = last

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the losses of a batch; in microbatches, also their gradients."""
        if self._microbatch_size is None:
            return super().training_step(*args, **kwargs)
        batch, *others = args
        computed = []
        for part in self._running.microbatches(batch, self._microbatch_size):
            output: Any = super().training_step(part, *others, **kwargs)
            losses = output["loss"] if isinstance(output, Mapping) else output
            self._add_gradients(losses)
            computed.append(losses.detach())
        return torch.cat(computed)

    def backward(
        self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Add the clipped gradients of the records to the step's sum."""
        if self._microbatch_size is None:
            self._add_gradients(closure_loss)
        return closure_loss.detach()

    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        model: LightningModule | nn.Module | None = None,
        **kwargs: Any,
    ) -> Any:
        """Compute the gradients; then release them, and take the step."""
        losses = closure()
        self.precision_plugin._after_closure(self._module, optimizer)
        optimizer.step(**kwargs)
        self._log()
        return losses

    def teardown(self) -> None:
        """End the run in its ledger, and remove its hooks from model and optimizer."""
        if self.private is not None:
            self.private.close()
        super().teardown()

    # Checkpoints.

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any = None
    ) -> None:
        """Save a checkpoint with the state of the run."""
        if self.private is not None:
            checkpoint[_KEY] = self.private.state_dict()
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load the state of the optimizer, and keep that of the run for its first step."""
        if _KEY not in checkpoint:
            raise validate.InvalidValueError(
                "ckpt_path must be a checkpoint of a private run, got one without its state: to "
                "begin from trained weights, load them into the module before fit"
            )
        super().load_optimizer_state_dict(checkpoint)
        self._resumed = checkpoint[_KEY]

    # Parts of the above.

    @property
    def _module(self) -> LightningModule:
        assert self.lightning_module is not None  # noqa: S101 - the trainer connects it first
        return self.lightning_module

    @property
    def _running(self) -> Private:
        assert self.private is not None  # noqa: S101 - on_train_start makes it
        return self.private

    def _sizes(self) -> tuple[int, int]:
        """Return the public size of the dataset, and the expected size of a batch of all ranks."""
        if self._plan is not None:
            return self._plan.dataset_size, self._plan.batch_size
        assert self._loader is not None  # noqa: S101
        n = self._budget.get("dataset_size", len(self._loader.dataset))  # type: ignore[arg-type]
        m = (self._loader.batch_size or 1) * self.num_nodes * self.num_processes
        return n, min(m, n)

    def _plan_of_budget(self, trainer: Trainer) -> Plan | ReactivePlan:
        n, m = self._sizes()
        run = {"dataset_size": n, "batch_size": m, "steps": check_steps(trainer)}
        made: Plan | ReactivePlan = make_plan(
            **{"delta": 0.1 / n, **self._budget, **run, "stepsizes": self._stepsizes}
        )
        return made

    def _add_gradients(self, losses: Tensor) -> None:
        losses = self.precision_plugin.pre_backward(losses, self._module)
        self._running.backward(losses)
        self.precision_plugin.post_backward(losses, self._module)

    def _log(self) -> None:
        """Log what was released or is public: ε, the noise and the learning rate of the step."""
        private, trainer = self._running, self._module.trainer
        if trainer._logger_connector.should_update_logs or not private.steps_left:
            results: Any = trainer.fit_loop.epoch_loop._results
            results.log_released(
                epsilon=private.spent().epsilon,
                noise_multiplier=private.noise_multiplier,
                learning_rate=private.stepsize * float(self.optimizers[0].param_groups[0]["lr"]),
            )
