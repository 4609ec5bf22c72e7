"""Private training in one call."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Unpack

from torch import Tensor, nn
from torch.optim import Optimizer

from dither import validate
from dither.clipping.batch import Loss
from dither.clipping.memory import MOST_ROWS, check_size
from dither.ledger import save_checkpoint
from dither.planning import Plan, ReactivePlan
from dither.planning.serialization import to_json_value
from dither.progress import Progress
from dither.schedules import UnsafeRawAdaGradNorm
from dither.sinks import Sink, Sinks
from dither.training.augmentation import Augment
from dither.training.averaging import Average
from dither.training.distributed import Ranks, check_rank_zero_has, check_same, held
from dither.training.evaluation import Public, check_public, measure
from dither.training.history import History, Row, finite
from dither.training.losses import PerRecordLoss, RecordWeights, find_loss, weigh
from dither.training.make_private import join
from dither.training.private import Private
from dither.training.recipe import Recipe
from dither.training.records import records_of
from dither.training.resolve import resolve
from dither.training.run_directory import REACTIVE_PLAN, RESULT, Run, RunDirectory, restore
from dither.training.settings import Settings
from dither.training.tuning import choose_learning_rate
from dither.training.users import users_of
from dither.types import PrivacyBound, rounded


@dataclass(frozen=True)
class TrainResult:
    """A trained model, its cost and its history.

    Attributes:
        model: the module that was given, trained; with ``averaging`` its parameters are averaged.
        plan: the plan.
        bound: the privacy bound of the training.
        steps: the number of released steps; of correlated noise, without those that were lost.
        history: a `Row` every few steps.
        seed: None, or the seed of a run whose noise can be repeated.
        derived_from_private_data: what was computed from the private data and is treated as public.
        recipe: the settings that dither has chosen, with reasons; None if a plan was given.
        factor: of the learning rate, as the plan's search has chosen it; None without a search.
        weight_noise: of `train_linear`, about the standard deviation of the noise in each weight:
            what it would be without the loss, which draws weights back.
        run: the name of the run in its ledger; None without one.
        is_weighted: whether records had weights.
        metrics: the last metrics on public data.

    Example:
        >>> import dither, torch
        >>> plan = dither.Plan.unsafe_without_noise(steps=2, dataset_size=9, batch_size=3)
        >>> data = torch.zeros(9, 2), torch.zeros(9, dtype=torch.int64)
        >>> result = train(nn.Linear(2, 2), data, plan, progress=False)
        >>> result.steps, [row.step for row in result.history], result.bound.epsilon
        (2, [2], inf)
    """

    model: nn.Module
    plan: Plan | ReactivePlan
    bound: PrivacyBound
    steps: int
    history: tuple[Row, ...]
    seed: int | None
    derived_from_private_data: tuple[str, ...] = ()
    recipe: Recipe | None = None
    factor: float | None = None
    weight_noise: float | None = None
    run: str | None = None
    is_weighted: bool = False

    @property
    def metrics(self) -> dict[str, float]:
        """The last metrics on public data."""
        return self.history[-1].metrics if self.history else {}


def train(
    model: nn.Module,
    data: Any,
    plan: Plan | ReactivePlan | Recipe | None = None,
    *,
    loss: str | Loss = "cross_entropy",
    optimizer: str | Callable[[Iterable[Tensor]], Optimizer] | Optimizer | None = None,
    evaluate: Public | None = None,
    every: int = 20,
    run: Run | None = None,
    averaging: str | None = None,
    progress: bool = True,
    microbatch_size: int | Literal["auto"] = MOST_ROWS,
    seed: int | None = None,
    workers: int = 0,
    augment: Augment | None = None,
    record_weights: RecordWeights | None = None,
    users: Any = None,
    rows_per_user: int | None = None,
    missing: str = "drop",
    sinks: Sequence[Sink] = (),
    **settings: Unpack[Settings],
) -> TrainResult:
    """Train a model privately, from a budget or a plan, and data of (inputs, …, targets).

    Without a plan, ``epsilon=`` is the one number to give: `dither.recipe` chooses the other
    settings from public quantities.

    Guarantees: those of `make_private`, whose loop this is. Nothing about the private data is
    shown, logged or returned but what went through the noise; a model is measured on data that is
    declared public only.

    Args:
        model: any module that treats every record by itself; it is trained in place.
        data: tensors or arrays (inputs, …, targets), or a map-style dataset of such records. If
            the inputs are one dict, the model is called with its entries as keyword arguments.
        plan: from `dither.plan`, which owns the learning rate, or from `dither.recipe`; None if
            settings are given.
        loss: "cross_entropy", "binary_cross_entropy", "squared_error", or a function
            ``loss(outputs, targets)`` with one value per record.
        optimizer: "sgd", "momentum", "adam" or "adamw", with the recipe's learning rate, or with a
            plan lr 1 and 0.001 for the last two; a function from parameters to an optimizer; or an
            optimizer. Its lr is multiplied by the plan's step sizes. None is the recipe's, or with
            a plan "sgd".
        evaluate: `Public` data to measure on, or None.
        every: steps between two measurements; the last step is always measured.
        run: what to keep on disk, as `Run` describes; None keeps nothing.
        averaging: "ema" or "tail" for an average of the iterates, "none" for the last. None is the
            recipe's, or with a plan the last.
        progress: whether to show progress: a bar on a terminal, else a line now and then.
        microbatch_size: the most records to compute at once, which bounds the memory; "auto" is as
            many as fit into half of the memory that is available.
        seed: as `make_private` takes it.
        workers: as `make_private` takes it.
        augment: as `make_private` takes it.
        record_weights: a function from targets to one number per record, from 0 to 1, which
            multiplies its clipped gradient; None is 1 for all. A record's weight must depend on
            that record and public numbers alone.
        users: as `make_private` takes it: then sizes are numbers of users.
        rows_per_user: as `make_private` takes it.
        missing: as `make_private` takes it.
        sinks: what receives the rows of the history as they come, as `dither.sinks` describes;
            they are closed at the end.
        settings: instead of a plan, what `dither.recipe` takes: ``epsilon``, and any setting that
            it shall not choose. Without ``dataset_size`` the number of records in the data is
            taken as public, and the privacy statement says so.

    Returns:
        A `TrainResult`.

    Example:
        >>> import dither, torch
        >>> x, y = torch.randn(100, 4), torch.randint(2, (100,))
        >>> result = train(nn.Linear(4, 2), (x, y), epsilon=3.0, compute=500, progress=False)
        >>> result.steps, result.bound.epsilon <= 3.0, result.recipe.optimizer
        (8, True, 'adam')
        >>> plan = dither.plan(epsilon=3.0, delta=1e-3, dataset_size=100, batch_size=20, steps=5)
        >>> train(nn.Linear(4, 2), (x, y), plan, progress=False).steps
        5
    """
    validate.instance(nn.Module, model=model)
    criterion, public = find_loss(loss), check_public(evaluate, data)
    every = validate.count(every=every)
    check_size(microbatch_size=microbatch_size)
    run = Run() if run is None else validate.instance(Run, run=run)
    group = Ranks()
    outputs = Sinks(sinks, is_used=group.is_rank_zero)
    check_rank_zero_has(group, directory=run.directory)
    check_same(group, {"averaging": averaging, "loss": loss if isinstance(loss, str) else None})
    records = None if users is None else records_of(held(data), may_be_empty=group.size > 1)
    users = users_of(
        users, records, rows_per_user=rows_per_user, missing=missing,
        planned=plan.rows_per_user if isinstance(plan, Plan | ReactivePlan) else None,
    )  # fmt: skip
    directory = group.on_rank_zero(
        lambda: None if run.directory is None else RunDirectory(run, run.directory)
    )
    directory = directory if group.is_rank_zero else None  # its errors are raised on all ranks
    by = resolve(
        model, data, plan, settings, users=users,
        optimizer=optimizer, averaging=averaging, ranks=group, directory=directory,
    )  # fmt: skip
    begin = None if directory is None else partial(directory.begin, plan_text(by.plan), by.recipe)
    private = join(
        model, by.optimizer, by.plan, data, seed=seed, workers=workers, augment=augment,
        ledger=begin or run.ledger, run_name=None if directory is None else directory.run,
        users=users,
    )  # fmt: skip
    search = by.plan.search if isinstance(by.plan, Plan) else None
    search_steps = 0 if search is None else search.steps
    average = Average(model, by.averaging, by.plan.steps - search_steps)
    saved = group.on_rank_zero(lambda: None if directory is None else directory.load())
    restore(private, average, saved)
    bands = by.plan.bands
    interval = -(-run.checkpoint_every // bands) * bands  # a resumed run pays for whole cycles
    history = History(None if directory is None else directory.path, private.step)
    per_record = PerRecordLoss(criterion)

    def add_row() -> None:
        metrics = _measure(model, public, criterion, average)
        numbers = private.spent().epsilon, private.stepsize, private.noise_multiplier
        row = Row(private.step, *numbers, *metrics)
        history.add(row)
        outputs.log(row.step, row.numbers())

    def take_step(batch: Any) -> None:
        for part in private.microbatches(batch, microbatch_size):
            private.backward(per_record(private.model, part), weigh(record_weights, part))
        private.optimizer.step()
        private.optimizer.zero_grad()
        bar.update(private.step, lambda: _epsilon_text(private.spent().epsilon))

    cleanup = nullcontext() if directory is None else directory.cleanup(private)
    with (
        cleanup,
        closing(outputs),
        Progress("training", private.plan.steps, shown=progress and group.is_rank_zero) as bar,
    ):
        size = MOST_ROWS if isinstance(microbatch_size, str) else microbatch_size
        has_searched = choose_learning_rate(private, take_step, criterion, microbatch_size=size)
        if has_searched and directory is not None:
            directory.save(private, average)
        for batch in private.batches() if private.steps_left else ():
            take_step(batch)
            average.update(private.step - search_steps)
            if group.is_rank_zero and private.step % every == 0:
                add_row()
            if directory is not None and private.step % interval == 0:
                directory.save(private, average)
        if group.is_rank_zero and (not history.rows or history.rows[-1].step != private.step):
            add_row()
    if directory is not None and private.step:
        directory.save(private, average)
    average.apply()
    result = TrainResult(
        model, private.plan, private.spent(), steps_of(private), tuple(history.rows), private.seed,
        tuple((run if directory is None else directory).derived_from_private_data), by.recipe,
        private.factor, run=private.run, is_weighted=record_weights is not None,
    )  # fmt: skip
    private.close()
    if directory is not None:
        save_result(result, directory, model.state_dict(), averaging=by.averaging)
    return result


def steps_of(private: Private) -> int:
    """Return the number of released steps; of correlated noise, without those that were lost."""
    return private.step if private.plan.bands == 1 else private._taken


def _epsilon_text(epsilon: float) -> str:
    return f"ε = {rounded(epsilon, 3)}" if math.isfinite(epsilon) else "without privacy"


def _measure(
    model: nn.Module, public: Public | None, loss: Loss, average: Average
) -> tuple[dict[str, float], dict[str, float]]:
    """Return metrics of the average, and of the iterate if that is another model."""
    if public is None:
        return {}, {}
    of_iterate = measure(model, public, loss) if average.name is not None else {}
    with average.in_place():
        return measure(model, public, loss), of_iterate


def plan_text(plan: Plan | ReactivePlan) -> str:
    """Return plan.json of a run directory."""
    if isinstance(plan, Plan):
        return plan.to_json()
    names = (
        "steps",
        "dataset_size",
        "batch_size",
        "sampling",
        "clip_norm",
        "clipping",
        "fingerprint",
        "rows_per_user",
    )
    facts = {name: getattr(plan, name) for name in names}
    is_raw = isinstance(plan.stepsizes, UnsafeRawAdaGradNorm)
    return json.dumps(
        {"format": REACTIVE_PLAN, **facts, "uses_raw_gradients": is_raw, "text": str(plan)}
    )


def save_result(
    result: TrainResult,
    directory: RunDirectory,
    tensors: Mapping[str, Tensor],
    *,
    averaging: str | None = None,
    facts: Mapping[str, Any] = MappingProxyType({}),
    metrics: Mapping[str, float] | None = None,
) -> None:
    """Write model.safetensors, with facts that are JSON values, and result.json of a run."""
    save_checkpoint(directory.path / "model.safetensors", tensors, {**facts})
    summary = {
        "steps": result.steps,
        "seed": result.seed,
        "derived_from_private_data": directory.derived_from_private_data,
        "plan": result.plan.fingerprint,
        "bound": {key: to_json_value(value) for key, value in asdict(result.bound).items()},
        "averaging": averaging,
        "factor": result.factor,
        "is_weighted": result.is_weighted,
        "metrics": result.metrics if metrics is None else {**metrics},
    }
    directory.write(RESULT, json.dumps(finite(summary), indent=2, allow_nan=False))
