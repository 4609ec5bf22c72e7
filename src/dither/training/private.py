"""A model, an optimizer, a plan and a dataset, joined for a loop of one's own."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dither import validate
from dither.clipping.batch import mapped, take, tensors, wide
from dither.clipping.engine import Recording, telling_once
from dither.clipping.proof import refuse_kept_records
from dither.clipping.refusals import refuse_unsound_layers
from dither.planning import Plan, ReactivePlan
from dither.randomness import Source
from dither.sampling import sampler_for
from dither.sampling.sampler import Indices
from dither.training.agreement import Shard, agree
from dither.training.declared import PublicNumber, PublicTensors
from dither.training.dice import dice
from dither.training.errors import StepError
from dither.training.guard import Guard
from dither.training.loop_watch import LoopWatch
from dither.training.outputs_alone import OutputsAlone
from dither.training.payments import Payments
from dither.training.ranks import Ranks
from dither.training.records import Records, part_of, records_of, warn_of_other_size
from dither.training.releases import Ready, Releases
from dither.training.step import TWICE, Piece, Step, are_same, misuse
from dither.training.tape import Tape, Taped, plain
from dither.training.taped_loss import TapedLoss, rows_alone
from dither.training.views import Augment, Views
from dither.training.watch import Args, Kwargs, Watch
from dither.types import PrivacyBound

_FORMAT = "dither-private-1"
_MOST_ROWS = 4096
"""Sums of more rows than this in single precision would be off by more than the noise allows."""


@final
class Private:
    """Private training with a loop of one's own; made by `make_private`.

    Attributes:
        model: the module that was given.
        optimizer: the optimizer that was given.
        plan: the plan.
        seed: of a run that can be repeated; None where the noise comes from the operating system.
        noise_multiplier: z of the last step that was released; nan before the first.
        stepsize: η of that step.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        plan: Plan | ReactivePlan,
        dataset: Any,
        *,
        reduction: str | None,
        seed: int | None,
        workers: int,
        engine: str,
        augment: Augment | None,
        payments: Payments,
        group: Ranks,
    ) -> None:
        self.model, self.optimizer, self.plan, self.seed = model, optimizer, plan, seed
        self._source = Source(seed)
        self._reduction, self._engine = reduction, engine
        self._augment = None if augment is None else Views(augment)
        self._ranks = group
        self._records = _own_records(dataset, self._ranks, workers)
        agree(
            self._ranks, model, optimizer, plan, dataset, seed=seed, reduction=reduction,
            engine=engine, augment=augment is not None,
        )  # fmt: skip
        length = sum(self._ranks.gathered(self._records.length))
        self._sampler = sampler_for(plan, length=length)
        if self._ranks.is_first:
            warn_of_other_size(plan, length, stacklevel=4)
        self._course, self._first_plan = plan.course(), plan
        self._payments, self._taken = payments, 0
        self._run: str | None = None
        self._iterations = 0
        self._guard = Guard(model, optimizer, self._release)
        self._releases = Releases(self._ranks, payments, self._source, self._guard.trainable)
        self._watch = Watch(model, self._model_begins, self._model_ends)
        self._step: Step | None = None
        self._views = 1
        self._public = PublicTensors()
        self._sizes_vary = plan.sampling == "poisson"
        rank = self._ranks.rank
        self._purpose = f"sampling of rank {rank}" if rank else "sampling"
        self._loop = LoopWatch(sizes_vary=self._sizes_vary)
        self._drawn: dict[int, Indices] = {}
        self.noise_multiplier = self.stepsize = math.nan

    @property
    def step(self) -> int:
        """How many steps were released."""
        return self._course.steps

    def __repr__(self) -> str:
        return f"Private(step {self.step:,} of {self.plan.steps:,}, {self.spent()})"

    @property
    def run(self) -> str | None:
        """What the run is called in its ledger, from its first batch on."""
        return self._run

    def _registered(self) -> str | None:
        self._payments.register(self.plan)
        return self._payments.run

    def spent(self) -> PrivacyBound:
        """Return what the releases so far cost."""
        return self._course.bound()

    def batches(self) -> Iterator[Any]:
        """Yield the batch of every step that is left; may be left with ``break`` and called again.

        An empty draw comes as one record that counts for nothing: models need something to work on.
        """
        self._step = None
        self._iterations += 1
        iteration = self._iterations
        self._run = self._ranks.by_first(self._registered)
        sizes: list[int] = []
        fetched = self._records.batches(self._draws(sizes))
        self._guard.check()
        while self._course.noise_multiplier is not None:
            if self._step is not None:
                raise StepError(
                    f"step {self.step} was not taken: call private.backward(losses) and "
                    "private.optimizer.step() for every batch; for more records a step, plan a "
                    "larger batch_size and take it in private.pieces"
                )
            yield self._begin(next(fetched), sizes.pop(0))
            if iteration != self._iterations:
                raise StepError(
                    "private.batches() was called again: go on with what it returned last"
                )

    def pieces(self, batch: Any, size: int) -> Iterator[Any]:
        """Yield a batch in pieces, for `backward` after each; then the optimizer steps once.

        Args:
            batch: what `batches` gave, whole.
            size: the records in a piece, at most.
        """
        size, step = validate.count(size=size), self._step
        if step is None or step.received or not are_same(batch, step.batch):
            raise StepError(
                "pieces must be of the batch that private.batches() gave last, whole and unused"
            )
        whole = plain(batch)
        for start in range(0, step.records, size):
            stop = min(step.records, start + size)
            part = take(whole, slice(start * self._views, stop * self._views))
            yield self._open(step, part, start, stop - start)

    def backward(self, losses: Tensor) -> None:
        """Add the clipped gradients of a batch, or of a piece of one, to the step's sum.

        Args:
            losses: one a record, or one number if `make_private` was told its reduction.
        """
        step, piece = self._step, None if self._step is None else self._step.piece
        tape = losses.tape if isinstance(losses, Taped) else None
        if step is None or piece is None or tape is not piece.tape or piece.recording is None:
            raise StepError(misuse(step, tape))
        rows = {*range(piece.first, piece.first + piece.records)}
        if rows & step.seen:
            raise StepError(TWICE)
        self._guard.refuse_changed_model()
        step.piece = None
        tape.stop(losses)
        self._loop.look(tape)
        objective = TapedLoss(tape, self._reduction, self._views, self._sizes_vary)
        with telling_once(self.model) as tell:
            parts = self._clipped(piece.recording, objective, tell)
        tape.forget()
        for name, part in parts.items():
            step.sums[name] = step.sums[name].add_(part) if name in step.sums else part.double()
        step.seen |= rows

    def is_registered(self, run: str) -> bool:
        """Return whether the ledger has a run of that name."""
        return self._ranks.by_first(lambda: self._payments.knows(run))

    def state_dict(self) -> dict[str, Any]:
        """Return where the run is: no random state, no tensors, nothing of the records."""
        return {
            "format": _FORMAT,
            "plan": self._first_plan.fingerprint,
            "seed": self.seed,
            "run": self.run,
            "taken": self._taken,
            "course": self._course.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where another run of the same plan was; what was spent stays spent.

        With a ledger, steps that it has and the state has not are lost: the noise of the rest is
        planned anew, so that the total stays what was planned. If that cannot be done, the run is
        at its end, and a warning says so. Without a ledger, the state must be the run's last: what
        came after an earlier one would not be counted.
        """
        kept = json.dumps(dict(state), sort_keys=True, default=repr)
        if len({*self._ranks.gathered(kept)}) > 1:
            raise validate.InvalidValueError(
                "state must be the same on every rank, got different ones: what was spent after "
                "one of them would not be counted"
            )
        for name in ("format", "plan", "seed"):
            wanted, found = self.state_dict()[name], state.get(name, ...)
            if found != wanted:
                shown, yours = (str(each)[:16] for each in (found, wanted))
                raise validate.InvalidValueError(
                    f"state must be of the same {name}: the run began with {shown}, and this is "
                    f"{yours}; use the arguments that it began with, or begin a new run"
                )
        spent = [float(z) for z in state["course"]["paid"]]
        if len(spent) < self.step:
            raise validate.InvalidValueError(
                f"state must be of at least the {self.step} steps that this run has released, got "
                f"{len(spent)}: to go back because of results is not covered by the plan"
            )
        taken = validate.instance(int, taken=state["taken"])
        if taken > len(spent):
            raise validate.InvalidValueError(
                f"state must have paid for the {taken} steps that it has taken, got {len(spent)}"
            )
        plan, paid = self._ranks.by_first(
            lambda: self._payments.go_on(state.get("run"), self._first_plan, taken, spent)
        )
        self._run = state.get("run")
        course = plan.course()
        course.resume({**state["course"], "paid": paid})
        self.plan, self._course, self._taken = plan, course, taken
        self._guard.accept_model()
        self._drawn.clear()
        self._step = None

    @overload
    def public(self, value: Tensor) -> Tensor: ...

    @overload
    def public(self, value: float) -> float: ...

    def public(self, value: Tensor | float) -> Tensor | float:
        """Declare that a tensor or a number does not come from records, and return it.

        Losses may use the batch, the model's outputs, and what is declared: class weights, a weight
        that changes from step to step, a table.
        """
        if not isinstance(value, Tensor):
            return PublicNumber(validate.finite(value=value))
        if isinstance(value, Taped):
            raise StepError("what comes from the batch cannot be public, got a tensor that does")
        self._public.add(value)
        return value

    def accept_loop(self) -> None:
        """Declare that the next step computes its losses in another way, for public reasons.

        The number of the step is such a reason; the batch, and its size, are not.
        """
        self._loop.accept()

    def accept_model(self) -> None:
        """Declare that you have changed the model, and from nothing but public or released values.

        Between the steps of a run nobody but the optimizer may change parameters or buffers: what
        is put into them from records would be in the model without noise.
        """
        self._guard.accept_model()

    def close(self) -> None:
        """Let go of model and optimizer: they are then as free as before, and not private.

        In its ledger the run has then ended: what it did not spend is free for others.
        """
        self._guard.remove()
        self._watch.remove()
        self._payments.end()
        self._ranks.close()

    def _draws(self, sizes: list[int]) -> Iterator[Indices]:
        """Yield the draws of all steps to come, and note how many records each has."""
        step = self.step
        self._drawn = {key: draw for key, draw in self._drawn.items() if key >= step}
        while True:
            if step not in self._drawn:  # a batch that was refused by breaking comes again
                stream = self._source.stream(self._purpose, step)
                self._drawn[step] = self._sampler.draw(self._records.length, stream)
            draw = self._drawn[step]
            sizes.append(draw.size)
            yield draw if draw.size else np.zeros(1, np.int64)
            step += 1

    def _begin(self, batch: Any, drawn: int) -> Any:
        device = next(iter(self._guard.trainable.values())).device
        batch = mapped(batch, lambda tensor: tensor.to(device))
        self._payments.begin(self.step, self._course.noise_multiplier)
        step = self._step = Step(drawn, max(drawn, 1), self._ranks.sent())
        if self._augment is not None:
            with dice(self.seed, self.step):
                batch, self._views = self._augment.of(batch, step.records)
        step.batch = self._open(step, batch, 0, step.records)
        return step.batch

    def _open(self, step: Step, batch: Any, first: int, records: int) -> Any:
        tape = Tape(batch, records * self._views, self._public, step.reading)
        step.piece = Piece(tape, first, records)
        return tape.batch

    def _model_begins(self, args: Args, kwargs: Kwargs) -> tuple[Recording, Args, Kwargs] | None:
        piece = None if self._step is None else self._step.piece
        given = tensors((args, kwargs))
        taped = [tensor for tensor in given if isinstance(tensor, Taped)]
        if piece is None or not any(tensor.tape is piece.tape for tensor in taped):
            return None
        piece.tape.refuse_strange(self.model.forward, given)
        if any(tensor.shape[:1] != (piece.tape.rows,) for tensor in taped):
            sizes = ", ".join(str(tuple(tensor.shape)) for tensor in taped[:3])
            raise StepError(
                f"the model must be called with all {piece.tape.rows} rows that were drawn, got "
                f"shapes {sizes}: private.pieces(batch, size) makes smaller batches"
            )
        if piece.tape.rows > _MOST_ROWS:
            raise StepError(
                f"a batch must have at most {_MOST_ROWS} rows, got {piece.tape.rows}: take it in "
                "pieces, for piece in private.pieces(batch, size=1024)"
            )
        call = args, kwargs = plain(rows_alone(piece.tape, (args, kwargs), self._sizes_vary))
        if piece.recording is None:
            self._guard.refuse_changed_model()
            refuse_unsound_layers(self.model)
            refuse_kept_records(self.model, OutputsAlone(), (call, ()), piece.tape.rows)
            piece.recording = Recording(self.model, _pair(plain(piece.tape.batch)), piece.tape.rows)
        return piece.recording, args, kwargs

    def _model_ends(self, args: Args, kwargs: Kwargs, output: Any) -> Any:
        piece = None if self._step is None else self._step.piece
        if piece is None or piece.recording is None:
            return output
        self._guard.refuse_kept_records(piece.recording.recorder)
        self._guard.accept_model()
        return piece.tape.note_model(args, kwargs, output)

    def _clipped(
        self,
        recording: Recording,
        objective: TapedLoss,
        tell: Callable[[str], object],
    ) -> dict[str, Tensor]:
        sent_back = objective.sent_back()
        if self._step is not None and not self._step.drawn:
            return {
                name: torch.zeros_like(parameter, dtype=wide(parameter.dtype))
                for name, parameter in self._guard.trainable.items()
            }
        if self._engine == "oracle":
            return recording.by_oracle(objective, self.plan.clip_norm, self._views)[0]
        return recording.clipped(objective, sent_back, self.plan.clip_norm, tell, self._views)[0]

    def _release(self) -> float:
        """Release the step that is under way into the gradients; return its step size."""
        step, z = self._ready_step()
        if self._ranks.sent() != step.sent:
            raise StepError(
                "ranks must send nothing to each other between a batch and its step, but messages "
                "were sent: what comes from the records of another rank is not clipped with them, "
                "and no noise protects a loss that others see"
            )
        sums = {name: step.sums[name] for name in self._guard.trainable}
        ready = Ready(self.plan, self.step, z, sums, self._spend)
        gradients, told = self._releases.release(ready)
        self._taken += 1
        self._drawn.pop(self.step - 1, None)
        for parameter in self.model.parameters():
            parameter.grad = None
        for name, parameter in self._guard.trainable.items():
            parameter.grad = gradients[name]
        self.noise_multiplier = z
        self.stepsize = self._course.stepsize(told, lambda: told.raw_squared_norm)
        return self.stepsize

    def _spend(self) -> None:
        """Take the step under way as paid for: whatever comes now, it is not released again."""
        self._step = None
        self._course.spend()

    def _ready_step(self) -> tuple[Step, float]:
        step, z = self._step, self._course.noise_multiplier
        if z is None:
            raise StepError(
                f"all {self.step} steps of the plan were taken, and one more would cost more than "
                "it claims: plan a longer run"
            )
        if step is None or not step.received:
            raise StepError(
                "optimizer.step() came without private.backward(losses): there is nothing to "
                "release, and gradients of a plain loss.backward() have no noise; take a batch "
                "from private.batches(), and call private.backward(losses) for it"
            )
        if step.received != step.records:
            raise StepError(
                f"optimizer.step() came after {step.received} of the {step.records} records that "
                "were drawn: call private.backward(losses) for every piece first"
            )
        return step, z


def _own_records(dataset: Any, group: Ranks, workers: int) -> Records:
    """Return this rank's part of the whole, or the shard that is its own."""
    if isinstance(dataset, Shard):
        return records_of(dataset.dataset, workers=workers, may_be_empty=group.size > 1)
    return part_of(records_of(dataset, workers=workers), group.rank, group.size)


def _pair(batch: Any) -> tuple[Any, Any]:
    """Return the batch as inputs, which may be made larger, and the rest, which may not."""
    return (batch[0], batch[1:]) if isinstance(batch, tuple) else (batch, ())
