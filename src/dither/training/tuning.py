"""The paid search of a plan: short trials, their noisy scores, and the choice of a learning rate.

`dither.planning.search` says what the steps of a search are and why one composition covers them.
Here they are taken, by the `Private` of the run: every step draws its records, is charged to the
ledger and gets its noise as any other step does.
"""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dither.clipping.batch import Loss, forward, slice_rows, tensors
from dither.clipping.engine import mean_over_rows
from dither.planning import Plan
from dither.planning.fixed_state import FixedPlanState
from dither.release import Ring
from dither.training.errors import StepError
from dither.training.evaluation import arguments_of, predicted
from dither.training.losses import binary_cross_entropy
from dither.training.private import Private
from dither.validate import InvalidValueError

# By how much a score must be better than that of factor 1, which the recipe expects to be best: in
# standard deviations of the noise, and by itself, since trials are not the run.
_MARGIN, _LEAST_GAIN = 2.0, 0.005


def choose_learning_rate(
    private: Private,
    take_step: Callable[[Any], None],
    loss: Loss,
    *,
    microbatch_size: int,
) -> bool:
    """Take the steps of the plan's search, if there is one that was not taken yet.

    Afterwards model and optimizer are as before, and the step sizes of the rest are multiplied by
    the factor that was chosen. A search that was interrupted begins again: what it has spent stays
    spent, and the plan has more noise in the rest.

    Args:
        private: the run, at its first step.
        take_step: takes one training step with a batch.
        loss: from outputs and targets to one value per record.
        microbatch_size: the most records to compute at once.

    Returns:
        Whether there was a search to do.
    """
    search = private.plan.search if isinstance(private.plan, Plan) else None
    state = private._state
    if search is None or not isinstance(state, FixedPlanState) or private._taken >= search.steps:
        return False
    if not private.steps_left:  # the run was interrupted, and has ended early
        return False
    start, private._ring = _snapshot(private), None  # the noise of trials is not correlated
    trained: list[dict[str, Tensor]] = []
    for _ in search.factors:
        _restore(private, start)
        for batch in private.batches(search.trial_steps):
            _check_targets(batch[-1], loss)
            take_step(batch)
        trained.append(copy.deepcopy(private.model.state_dict()))
    means, variance = torch.zeros(len(trained), dtype=torch.float64), 0.0
    for batch in private.batches(search.score_steps):
        scores = _score_all(private, trained, batch, loss, microbatch_size)
        released, noise = _release_scores(private, scores)
        means += released / search.score_steps
        variance += (noise / search.score_steps) ** 2
    _restore(private, start)
    private._ring = Ring.of(private.plan)
    state.choose(best_factor(search.factors, means.tolist(), math.sqrt(variance)))
    return True


def _check_targets(targets: Any, loss: Loss) -> None:
    """Raise for numbers: in short trials the lowest rate has the least noise, and wins."""
    is_number = isinstance(targets, Tensor) and targets.is_floating_point()
    if is_number and loss is not binary_cross_entropy:
        raise InvalidValueError(
            "tune must be left out where targets are numbers, got targets of "
            f"{targets.dtype}: short trials tell classes apart, but prefer low rates for numbers"
        )


def best_factor(factors: tuple[float, ...], scores: list[float], noise: float) -> float:
    """Return the factor with the best score; 1 unless another is clearly better.

    Args:
        factors: the candidates, 1 among them.
        scores: their mean scores, with noise.
        noise: its standard deviation in each.

    Example:
        >>> best_factor((0.25, 1.0, 4.0), [0.1, 0.80, 0.85], noise=0.001)
        4.0
        >>> best_factor((0.25, 1.0, 4.0), [0.1, 0.80, 0.85], noise=0.02)
        1.0
    """
    needed = scores[factors.index(1.0)] + _MARGIN * math.sqrt(2.0) * noise + _LEAST_GAIN
    better = [pair for pair in zip(scores, factors, strict=True) if pair[0] > needed]
    return max(better, key=lambda pair: (pair[0], -abs(math.log(pair[1]))))[1] if better else 1.0


def _snapshot(private: Private) -> tuple[dict[str, Any], dict[str, Any]]:
    return copy.deepcopy((private.model.state_dict(), private.optimizer.state_dict()))


def _restore(private: Private, start: tuple[dict[str, Any], dict[str, Any]]) -> None:
    model, optimizer = copy.deepcopy(start)
    private.model.load_state_dict(model)
    private.optimizer.load_state_dict(optimizer)


@torch.no_grad()
def _score_all(
    private: Private, trained: list[dict[str, Tensor]], batch: Any, loss: Loss, size: int
) -> Tensor:
    """Return the scores of a batch's rows, one column per trained model.

    The model is in the mode in which it trains: only in that one it was checked that every record
    is treated by itself.
    """
    private._stop_recording()
    model, columns, rows = private.model, [], len(tensors(batch)[-1])
    for state in trained:
        model.load_state_dict(state)
        parts = (slice_rows(batch, slice(i, i + size), rows) for i in range(0, rows, size))
        with private._randomness():
            columns.append(torch.cat([record_scores(model, part, loss) for part in parts]))
    return torch.stack(columns, 1)


def record_scores(model: nn.Module, batch: Any, loss: Loss) -> Tensor:
    """Return one score from 0 to 1 per record: whether its class is right, else exp(−loss)."""
    *inputs, targets = batch
    outputs = forward(model, arguments_of(inputs))
    logits = getattr(outputs, "logits", outputs)
    are_classes = isinstance(logits, Tensor) and logits.dim() == 2 and logits.shape[1] > 1
    is_class = (
        isinstance(targets, Tensor) and targets.dim() == 1 and not targets.is_floating_point()
    )
    if are_classes and is_class:
        right: Tensor = predicted(logits) == targets
        return right.double()
    return torch.exp(-loss(outputs, targets).double().clamp(min=0.0))


def _release_scores(private: Private, scores: Tensor) -> tuple[Tensor, float]:
    """Release the mean scores of the records that were drawn; return them and their noise.

    A record's vector of k scores, each from 0 to 1 and minus 1/2, has a norm of at most √k/2. In
    units of that and times the clip norm, it is released as a clipped gradient is.
    """
    step, z = private._step, private._state.noise_multiplier
    if step is None or z is None:
        raise StepError("scores need a batch from private.batches()")
    k = scores.shape[1]
    unit = 2.0 / math.sqrt(k) * private.plan.clip_norm
    per_record = mean_over_rows(scores, step.rows * step.multiplicity)
    centred = torch.nan_to_num(per_record, nan=0.0).clamp(0.0, 1.0) - 0.5
    total = unit * centred.sum(0) if not step.is_empty else centred.new_zeros(k)
    released = {"scores": torch.zeros_like(total)}
    facts = private._release_sums(z, {"scores": total}, released)
    return released["scores"] / unit + 0.5, facts.noise / unit
