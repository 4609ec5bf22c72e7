"""A model, an optimizer, a plan and a dataset, joined for your own training loop."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, final
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dither import validate
from dither.clipping.batch import (
    check_losses,
    check_weights,
    map_tensors,
    slice_rows,
    tensors,
    trainable,
)
from dither.clipping.clip import Clip, ClippedSum
from dither.clipping.engine import clip_recording, split_rows
from dither.clipping.layers import CheckedLayers
from dither.clipping.memory import SeenBytes, check_size
from dither.clipping.recording import CheckCache, ModelHooks, RecordedBatch
from dither.ledger import Account
from dither.planning import Plan, ReactivePlan
from dither.planning.fixed_state import FixedPlanState
from dither.planning.resuming import check_state
from dither.randomness import Source
from dither.release import ReleaseFacts, Ring, release
from dither.sampling import Indices
from dither.schedules import UnsafeRawAdaGradNorm
from dither.training.augmentation import Augment, Augmentation
from dither.training.distributed import Ranks, check_same, check_same_step
from dither.training.errors import StepError
from dither.training.model_randomness import ModelRandomness
from dither.training.optimizer_hooks import OptimizerHooks
from dither.training.records import Draws
from dither.types import PrivacyBound

_FORMAT = "dither-private-1"
Tensors: TypeAlias = dict[str, Tensor]


@dataclass
class _Step:
    """The current step, of records or of users."""

    rows: Tensor  # in the batch, of each that was drawn; one, which is not used, if none was
    is_empty: bool
    multiplicity: int = 1  # augmented copies per row
    expected: Tensor = field(default_factory=lambda: torch.zeros(0))
    received: int = 0  # records or users whose losses have come; those expected come next
    sums: Tensors = field(default_factory=dict)  # of clipped gradients, by parameter


@final
class Private:
    """Private training with your own loop; made by `make_private`.

    Attributes:
        model: the module that was given.
        optimizer: the optimizer that was given.
        plan: the plan.
        seed: of a seeded run; None if the noise comes from the operating system.
        noise_multiplier: z of the last step that was released; nan before the first.
        stepsize: η of that step.
        run: the name of the run in its ledger, from its first batch on.

    Example:
        >>> import dither
        >>> plan = dither.Plan.unsafe_without_noise(steps=2, dataset_size=9, batch_size=3)
        >>> model = nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters())
        >>> dither.make_private(model, optimizer, plan, torch.zeros(9, 2)).steps_left
        2
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        plan: Plan | ReactivePlan,
        draws: Draws,
        *,
        source: Source,
        augment: Augment | None,
        account: Account,
        ranks: Ranks,
    ) -> None:
        self.model, self.optimizer, self.plan, self.seed = model, optimizer, plan, source.seed
        self.noise_multiplier = self.stepsize = math.nan
        self.run: str | None = None
        self._draws, self._source, self._account, self._ranks = draws, source, account, ranks
        self._state, self._first_plan, self._taken = plan.new_state(), plan, 0
        self._ring = Ring.of(plan)
        self._randomness = ModelRandomness(source, ranks.rank)
        self._augmentation = None if augment is None else Augmentation(augment)
        # Hooks come last: errors before leave none behind.
        self._optimizer_hooks = OptimizerHooks(model, optimizer, self._release)
        self._model_hooks, self._checks = ModelHooks(model), CheckCache()
        self._layers = CheckedLayers(model)
        self._recording: RecordedBatch | None = None
        self._last_losses: Callable[[], Tensor | None] = lambda: None
        self._step: _Step | None = None
        self._loop: Batches | None = None

    @property
    def step(self) -> int:
        """The number of released steps."""
        return self._state.steps

    @property
    def factor(self) -> float | None:
        """The factor of the learning rate that the plan's search has chosen, if any."""
        return self._state.factor if isinstance(self._state, FixedPlanState) else None

    @property
    def steps_left(self) -> int:
        """The most steps that the plan still allows."""
        return 0 if self._state.noise_multiplier is None else self.plan.steps - self.step

    def __repr__(self) -> str:
        return f"Private(step {self.step:,} of {self.plan.steps:,}, {self.spent()})"

    def spent(self) -> PrivacyBound:
        """Return the privacy cost of the releases so far."""
        return self._state.bound()

    def batches(self, steps: int | None = None) -> "Batches":
        """Return the batches of all steps that are left, or of at most ``steps`` of them.

        They have a length, and may be left with ``break``. An empty draw comes as one record whose
        gradient is not used, since models need an input.

        Args:
            steps: the most steps to take, as in a loop over epochs.
        """
        if not (left := self.steps_left):
            raise StepError(
                f"all {self.step} steps of the plan were taken: private.batches() is the full run, "
                "private.batches(steps=k) one epoch of k steps; for a longer run make another plan"
            )
        return Batches(self, left if steps is None else min(left, validate.count(steps=steps)))

    def microbatches(self, batch: Any, size: int | Literal["auto"]) -> Iterator[Any]:
        """Yield a batch in parts, for `backward` after each; then the optimizer steps once.

        Args:
            batch: what `batches` gave, complete.
            size: the most records per part, or all of one user who has more; "auto" is what fits.
        """
        check_size(size=size)
        step, stop = self._step, 0
        k = 1 if step is None else step.multiplicity
        lengths = {len(tensor) for tensor in tensors(batch) if tensor.dim()}
        if step is None or step.received or int(step.rows.sum()) * k not in lengths:
            raise StepError(
                "private.microbatches must get the batch that private.batches() gave last, with "
                "all its rows, before any private.backward(losses) for it"
            )
        total, left = int(step.rows.sum()), step.rows
        while len(left):
            most, seen = self._checks.next_part(size)
            rows = next(split_rows(left, most))
            start, stop, left = stop, stop + int(rows.sum()), left[len(rows) :]
            self._record(step, rows, seen)
            yield slice_rows(batch, slice(start * k, stop * k), total * k)

    def backward(self, losses: Tensor, record_weights: Tensor | None = None) -> None:
        """Add the clipped gradients of a batch, or of a microbatch, to the step's sum.

        Args:
            losses: one per record, from calls of the model with the batch.
            record_weights: one per record, from 0 to 1, which multiplies its clipped gradient and
                depends on that record and public numbers alone; None is 1 for all.
        """
        step, recording = self._step, self._recording
        if step is None:
            raise StepError(
                "private.backward(losses) was called without a batch: take one from "
                "private.batches(), once for every step"
            )
        if recording is None:
            raise StepError(
                "private.backward(losses) was called twice for the same records: call it once per "
                "batch or microbatch, then private.optimizer.step()"
            )
        rows = step.expected * step.multiplicity
        check_losses(losses, int(rows.sum()))
        if record_weights is not None:
            check_weights(record_weights, len(losses))
        if losses is self._last_losses():
            raise StepError(
                "private.backward(losses) got the losses of an earlier batch or microbatch: compute"
                " them again from private.model(inputs), with the records that were drawn last"
            )
        self._stop_recording()  # what is computed again in the backward pass is no call
        clip = Clip(self.plan.clip_norm, self.plan.clipping)
        clipped = clip_recording(recording, losses, clip, rows, record_weights)
        for name, part in clipped.gradients.items() if not step.is_empty else ():
            step.sums[name] = step.sums[name].double().add_(part) if name in step.sums else part
        step.received += len(rows)
        self._last_losses = ref(losses)

    def is_registered(self, run: str) -> bool:
        """Return whether the ledger has a run of that name."""
        return self._ranks.on_rank_zero(lambda: self._account.has_run(run))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run: no random state, no tensors, nothing of the records."""
        return {
            "format": _FORMAT,
            "rows_per_user": self._first_plan.rows_per_user,
            "plan": self._first_plan.fingerprint,
            "seed": self.seed,
            "run": self.run,
            "taken": self._taken,
            "plan_state": self._state.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where another run of the same plan was; what was spent stays spent.

        With a ledger, steps that it has and the state has not are lost: the noise of the remaining
        steps is planned again, so that the total stays what was planned. If that is not possible,
        the run ends with a warning. Without a ledger, steps after the state are not counted.
        """
        # Otherwise what was spent after one of the states would not be counted.
        check_same(self._ranks, {"state": dict(state)})
        taken, spent = check_state(state, self.state_dict(), self.step, self.plan.bands)
        if taken and state.get("run") is None and math.isfinite(self.plan.bound.epsilon):
            validate.warn(
                "without a ledger, steps released after this state was saved are not counted: pass "
                "ledger= to make_private for a run that may be interrupted"
            )
        plan, charged = self._ranks.on_rank_zero(
            lambda: self._account.resume(state.get("run"), self._first_plan, taken, spent)
        )
        plan_state = plan.new_state()
        plan_state.load_state_dict({**state["plan_state"], "spent": charged})
        self.plan, self._state, self._taken, self.run = plan, plan_state, taken, state.get("run")
        self._ring = Ring.of(plan)
        self._draws.restart(self.step)
        self._loop = None  # which may have fetched batches of the subsets before
        self._end_step()

    def close(self) -> None:
        """Remove the hooks from model and optimizer: they are no longer private.

        The run ends in its ledger: what it did not spend is free for others.
        """
        self._optimizer_hooks.remove()
        self._model_hooks.remove()
        self._account.end()

    def _begin_loop(self, loop: "Batches") -> Iterator[tuple[Any, Indices]]:
        """Make a loop the current one, and return its batches and the rows of those drawn."""
        self._loop = loop
        self._end_step()
        self.run = self._ranks.on_rank_zero(lambda: self._account.register(self.plan))
        self._optimizer_hooks.check()
        self._randomness.begin("loader", self.step)
        with self._randomness():
            return self._draws.batches(self.step, self.plan.steps)

    def _begin_step(self, fetched: Iterator[tuple[Any, Indices]]) -> Any:
        self._layers.check()
        self._randomness.begin("data", self.step)
        with self._randomness():
            batch, drawn = next(fetched)
            device = next(self.model.parameters()).device
            batch = map_tensors(batch, lambda tensor: tensor.to(device))
            rows = torch.from_numpy(drawn) if drawn.size else torch.ones(1, dtype=torch.int64)
            step = _Step(rows, is_empty=not drawn.size)
            if self._augmentation is not None:
                batch, step.multiplicity = self._augmentation.apply(batch, int(rows.sum()))
        self._randomness.begin("model", self.step)
        if (z := self._state.noise_multiplier) is not None:
            self._account.begin(*self.plan.charge_of(self.step, z))
        self._optimizer_hooks.begin_step()
        self._step = step
        self._record(step, rows)
        return batch

    def _record(self, step: _Step, rows: Tensor, seen: SeenBytes | None = None) -> None:
        """Record what the model does to the rows of the next records or users."""
        step.expected, records = rows, int(rows.sum()) * step.multiplicity
        self._recording = RecordedBatch(self.model, records, self._checks, self._randomness, seen)
        self._model_hooks.begin(self._recording)

    def _stop_recording(self) -> None:
        self._recording = None
        self._model_hooks.begin(None)

    def _end_step(self) -> None:
        self._step = None
        self._stop_recording()

    def _release(self) -> float:
        """Release the current step into the gradients; return its step size."""
        step, z = self._ready_step()
        parameters, own = trainable(self.model), step.sums
        sums = {n: own[n] if n in own else torch.zeros_like(p) for n, p in parameters.items()}
        gradients = {name: torch.empty_like(p) for name, p in parameters.items()}
        facts = self._release_sums(z, sums, gradients)
        for name, parameter in self.model.named_parameters():
            parameter.grad = gradients.get(name)
        self.noise_multiplier = z
        self.stepsize = self._state.stepsize(facts, lambda: facts.raw_squared_norm)
        return self.stepsize

    def _release_sums(self, z: float, sums: Tensors, released: Tensors) -> ReleaseFacts:
        """Overwrite ``released`` on all ranks with the release of the sums over all ranks."""
        total = self._ranks.reduce_sums(sums)
        facts = self._ranks.on_rank_zero(lambda: self._charge_and_release(z, total, released))
        if not self._ranks.is_rank_zero:
            check_same_step(facts, self.step, z)
            self._spend()
        self._ranks.broadcast(released)
        self._taken += 1
        self._draws.forget(self.step - 1)
        return facts

    def _charge_and_release(self, z: float, total: Tensors, gradients: Tensors) -> ReleaseFacts:
        """Charge a step, and only then overwrite ``gradients`` with its release."""
        number, m = self.step, self.plan.batch_size
        self._account.finish(*self.plan.charge_of(number, z))
        self._spend()
        released = release(
            ClippedSum(total, torch.zeros(0)),
            clip_norm=self.plan.clip_norm,
            noise_multiplier=z,
            batch_size=m,
            stream=self._source.stream("noise", number + 1),
            ring=self._ring,
            step=number,
        )
        for name, gradient in released.gradients.items():
            gradients[name] = gradient.to(gradients[name].dtype)
        energy = raw = math.nan
        if isinstance(self.plan, ReactivePlan):
            energy = released.squared_norm()
            if isinstance(self.plan.stepsizes, UnsafeRawAdaGradNorm):  # which claims nothing
                raw = sum(float((g.double() / m).square().sum()) for g in total.values())
        return ReleaseFacts(number, z, released.noise, released.dimension, energy, raw)

    def _spend(self) -> None:
        """Count the current step as spent: whatever comes now, it is not released again."""
        self._end_step()
        self._state.spend()

    def _ready_step(self) -> tuple[_Step, float]:
        step, z = self._step, self._state.noise_multiplier
        if step is None or z is None or not step.received:
            raise StepError(
                "optimizer.step() was called without private.backward(losses): there is nothing to "
                "release, and gradients of a plain loss.backward() have no noise; take a batch "
                "from private.batches(), and call private.backward(losses) for it"
            )
        if step.received != len(step.rows):
            raise StepError(
                "optimizer.step() was called before private.backward(losses) for all records that "
                "were drawn: go through all of private.microbatches(batch, size) first"
            )
        return step, z


@final
class Batches:
    """The batches of the next steps of a run; made by `Private.batches`."""

    def __init__(self, private: Private, steps: int) -> None:
        self._private, self._steps, self._given = private, steps, 0
        self._fetched: Iterator[tuple[Any, Indices]] | None = None

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Return the batch of the next step."""
        private = self._private
        if self._fetched is None:
            self._fetched = private._begin_loop(self)
        elif private._loop is not self:
            raise StepError("private.batches() was called again: use what it returned last")
        if private._step is not None:
            raise StepError(
                f"the previous batch (step {private.step}) had no optimizer.step(); to accumulate "
                "gradients, plan a larger batch_size and use private.microbatches(batch, size)"
            )
        if self._given == self._steps or not private.steps_left:
            raise StopIteration
        self._given += 1
        return private._begin_step(self._fetched)
