"""Private training of linear models without autograd: a step is about two matrix products.

The first steps of a plan may release means instead of gradients: of the records, of their squared
norms and of their targets. A step is a clipped sum with noise, whatever is summed, so they cost
what was planned. Training then subtracts the mean from every record, divides by the typical norm,
and begins with the intercept of the mean target. What all records have in common no longer fills
the norms of their gradients, bounds that are wider than the data do no harm, and a rare class is
rare from the first step on.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from dither import validate
from dither.clipping.batch import Loss, check_weights
from dither.clipping.clip import Clip, bounded_weights
from dither.clipping.engine import mean_over_rows
from dither.clipping.linear import LogitGradients, linear_clipped_sum
from dither.clipping.linear_rows import DenseRows, Rows, SparseRows, row_norms
from dither.ledger import Ledger
from dither.ledger.ledger import account_for
from dither.noise.correlated import inverse
from dither.planning import Plan, ReactivePlan
from dither.planning.search import check_no_search
from dither.progress import Progress
from dither.randomness import Source
from dither.release import Ring, release
from dither.sampling import Indices, sampler_for
from dither.training.averaging import Weighting, find_averaging
from dither.training.distributed import check_single_process
from dither.training.evaluation import Public, check_public, measure
from dither.training.history import Row
from dither.training.linear_losses import LinearLoss
from dither.training.loop import TrainResult
from dither.training.losses import find_loss
from dither.training.make_private import for_users
from dither.training.records import InMemory, warn_of_dataset_size
from dither.training.users import Users, users_of
from dither.types import rounded

_SPREAD, _LEAST_SPREAD = 0.3, 1e-3
"""Mean squared distances from the mean, in units in which records are at most 2 long."""

_SHARES = {"records": 0.33, "norms": 0.07, "targets": 0.6}
"""Of the squared norm of what a record adds to the means."""


def train_linear(
    features: Tensor | Any,
    linear_loss: LinearLoss,
    plan: Plan | ReactivePlan,
    *,
    outputs: int,
    constant: float = 0.5,
    standardizing: int = 0,
    momentum: float = 0.9,
    averaging: str | None = "tail",
    evaluate: Public | None = None,
    every: int = 20,
    loss: str | Loss = "cross_entropy",
    seed: int | None = None,
    ledger: Ledger | str | Path | None = None,
    progress: bool = False,
    record_weights: Tensor | None = None,
    users: Any = None,
    rows_per_user: int | None = None,
    missing: str = "drop",
) -> TrainResult:
    """Train a linear model from zero.

    Guarantees: those of `make_private`, if the loss treats every row by itself. Every
    step draws its own records, is charged before its release, and releases nothing but a clipped
    sum with the plan's noise.

    Args:
        features: records × columns, a tensor or a SciPy CSR matrix, float32 or float64; for
            ``standardizing``, in units in which records are at most 2 long.
        linear_loss: what is minimised; `softmax_loss` and others make it.
        plan: from `dither.plan`.
        outputs: the number of scores per record.
        constant: the value of one more column, whose weight gives the intercept.
        standardizing: how many of the first steps release means, for a fixed plan. Sparse records
            stay sparse: they are only divided by their typical norm.
        momentum: the weight of the previous update in the next.
        averaging: "tail" for the mean of the iterates of the second half, "ema" for an exponential
            average, None for the last iterate.
        evaluate: `Public` data to measure on, features as they are given here, or None.
        every: steps between two measurements; the last step is always measured.
        loss: the loss to measure, as `train` takes it.
        seed: as `make_private` takes it.
        ledger: as `make_private` takes it.
        progress: whether to show a progress bar.
        record_weights: one per record, from 0 to 1, which multiplies its clipped gradient and
            depends on that record and public numbers alone; None is 1 for all.
        users: whose each record is, as `make_private` takes it, or `Users`. Users are then drawn
            instead of records, the mean gradient of a user's records is clipped as one, the plan's
            sizes are numbers of users, and the weight of a user is the mean of its records'.
        rows_per_user: as `make_private` takes it.
        missing: as `make_private` takes it.

    Returns:
        A `TrainResult` whose model is a `torch.nn.Linear` for the features as they were given.

    Example:
        >>> import dither
        >>> x = torch.randn(100, 3)
        >>> plan = dither.plan(epsilon=3.0, delta=1e-3, dataset_size=100, batch_size=20, steps=5)
        >>> from dither.training import LinearLoss
        >>> loss = LinearLoss(lambda scores, i: scores - x[i][:, :1])
        >>> result = train_linear(x, loss, plan, outputs=1)
        >>> result.steps, result.bound.epsilon <= 3.0, result.model.weight.shape
        (5, True, torch.Size([1, 3]))
    """
    if not isinstance(plan, Plan | ReactivePlan):
        raise validate.InvalidTypeError(
            f"plan must be what dither.plan returns, got {type(plan).__name__}"
        )
    check_no_search(plan)
    check_single_process("train_linear")
    outputs, every = validate.count(outputs=outputs), validate.count(every=every)
    weighting = find_averaging(averaging)
    measured, criterion = check_public(evaluate, features), find_loss(loss)
    if record_weights is not None:
        check_weights(record_weights, features.shape[0])
    own = users_of(
        users, InMemory(features, features.shape[0]), rows_per_user=rows_per_user, missing=missing,
        planned=plan.rows_per_user,
    )  # fmt: skip
    plan, length = for_users(plan, own), features.shape[0]
    if own is not None:
        # Users with equal numbers of records become neighbours, and so do the records of each.
        own, length = own.by_count(), own.count
        features, linear_loss = features[own.rows], linear_loss.select(torch.from_numpy(own.rows))
        if record_weights is not None:
            counts = torch.from_numpy(np.diff(own.ends, prepend=0))
            weights = bounded_weights(record_weights)[own.rows]
            record_weights = mean_over_rows(weights, counts).repeat_interleave(counts)
        own = replace(own, rows=np.arange(own.rows.size))
    warn_of_dataset_size(plan, length, stacklevel=3)
    dtype = torch.float32 if str(features.dtype).endswith("float32") else torch.float64
    model, history = nn.Linear(features.shape[1], outputs, dtype=dtype), list[Row]()
    if measured is not None:
        _check_public(model, measured, criterion)
    with Progress("training", plan.steps, shown=progress) as bar:
        run = _Steps(plan, length, seed, ledger, bar, own)
        try:
            mean, scale, intercept = _moments(
                features, linear_loss, record_weights, run, standardizing
            )
            clip = Clip(plan.clip_norm, plan.clipping)
            ends = None if own is None else own.ends
            rows = _rows(features, mean, scale, constant, clip, record_weights, ends)
            start = torch.zeros(rows.columns, outputs, dtype=dtype)
            start[-1] = intercept / constant
            for weight in _descent(rows, start, linear_loss.gradients, run, momentum, weighting):
                is_last = run.state.noise_multiplier is None
                if not is_last and (measured is None or run.state.steps % every):
                    continue
                _set_weights(weight, model, mean, scale, constant)
                metrics = {} if measured is None else measure(model, measured, criterion)
                cost = run.state.bound().epsilon
                row = Row(run.state.steps, cost, run.stepsize, run.noise_multiplier, metrics)
                history.append(row)
        finally:
            run.account.end()
    bound = run.state.bound()
    noise = None
    if isinstance(plan, Plan):
        noise = _weight_noise(plan, standardizing, momentum, weighting) / scale
    return TrainResult(
        model, plan, bound, run.state.steps, tuple(history), seed, weight_noise=noise,
        run=run.name, is_weighted=record_weights is not None,
    )  # fmt: skip


def _check_public(model: nn.Linear, public: Public, loss: Loss) -> None:
    """Measure once before anything is spent, to find data that do not fit."""
    try:
        measure(model, public, loss)
    except (RuntimeError, IndexError) as problem:
        raise validate.InvalidValueError(
            f"evaluate must have rows of {model.in_features} columns like the records and targets "
            f"that the loss takes, got {public!r}: {str(problem).splitlines()[0]}"
        ) from problem


@torch.no_grad()
def _set_weights(
    weight: Tensor, model: nn.Linear, mean: Tensor, scale: float, constant: float
) -> None:
    """Set a model's weights, for records that are not standardized."""
    model.weight.copy_(weight[:-1].T / scale)
    model.bias.copy_(constant * weight[-1] - model.weight @ mean.to(weight.dtype))


class _Steps:
    """The steps of a plan: draws, charges, sums and releases each."""

    def __init__(
        self,
        plan: Plan | ReactivePlan,
        length: int,
        seed: int | None,
        ledger: Ledger | str | Path | None,
        bar: Progress,
        users: Users | None = None,
    ) -> None:
        self.plan, self.state, self._bar = plan, plan.new_state(), bar
        self._length, self._users = length, users
        self._source = Source(seed)
        self._ring: Ring | None = None  # means of records have independent noise
        self._sampler = sampler_for(plan, length=length, subsets=self._source.stream("subsets", 0))
        self._every: tuple[Indices, Indices] | None = None
        if users is not None and users.takes_all and plan.sample_rate == 1.0:
            self._every = users.draw(np.arange(length), self._source.stream("rows", 0))
        self.account = account_for(ledger, name=None, is_seeded=seed is not None)
        self.name = self.account.register(plan)
        self.noise_multiplier = self.stepsize = float("nan")

    def correlate_noise(self) -> None:
        """Let the noise of the steps to come be correlated, if the plan's is."""
        self._ring = Ring.of(self.plan)

    def release(self, rows: Rows, weight: Tensor, logit_gradients: LogitGradients) -> Tensor:
        """Return what the next step releases; `stepsize` is then the step's."""
        t, z = self.state.steps, self.state.noise_multiplier
        if z is None:
            raise validate.InvalidValueError(f"plan must have more than {t} steps, got {t}")
        self.account.begin(*self.plan.charge_of(t, z))
        clipped = linear_clipped_sum(rows, weight, logit_gradients, *self._draw(t))
        self.account.finish(*self.plan.charge_of(t, z))
        self.state.spend()
        m = self.plan.batch_size
        released = release(
            clipped,
            clip_norm=rows.clip.norm,
            noise_multiplier=z,
            batch_size=m,
            stream=self._source.stream("noise", t),
            ring=self._ring,
            step=t,
        )

        def raw_squared_norm() -> float:
            return float((clipped.gradients["weight"] / m).square().sum())

        self.noise_multiplier, self.stepsize = z, self.state.stepsize(released, raw_squared_norm)
        self._bar.update(self.state.steps, lambda: f"ε = {rounded(self.state.bound().epsilon, 3)}")
        return released.gradients["weight"]

    def _draw(self, step: int) -> tuple[Indices, Indices | None]:
        """Return the records of a step, and how many of them each user has if there are users."""
        if self._every is not None:
            return self._every
        drawn = self._sampler.draw(self._length, self._source.stream("sampling", step), step)
        if self._users is None:
            return drawn, None
        return self._users.draw(drawn, self._source.stream("rows", step))


def _moments(
    features: Any, loss: LinearLoss, record_weights: Tensor | None, run: _Steps, steps: int
) -> tuple[Tensor, float, Tensor | float]:
    """Return the mean of the records, their root mean square distance from it, and an intercept.

    All are released by the first steps: of a record x with targets y the vector of x/2, ‖x‖²/4 and
    y, each of norm at most 1 and times the root of its share, so that its norm is at most 1. Of
    sparse records x itself is left out.
    """
    is_dense, d = isinstance(features, Tensor), features.shape[1]
    mean = torch.zeros(d, dtype=torch.float64)
    if steps == 0:
        return mean, 1.0, 0.0
    if not isinstance(run.plan, Plan) or steps >= run.plan.steps:
        raise validate.InvalidValueError(
            "standardizing must be fewer steps than those of a plan that is fixed in advance, got "
            f"{steps} of {run.plan.steps}"
        )
    blocks = {"norms": (row_norms(features)[0].square() / 4.0).float()[:, None]}
    if is_dense:
        blocks["records"] = features / 2.0
    if loss.targets is not None:
        weights = 1.0 if record_weights is None else bounded_weights(record_weights)[:, None]
        blocks["targets"] = (loss.targets * weights).float()
    means, noise = _means_of(blocks, run, steps)
    found = 4.0 * float(means["norms"])
    if is_dense:
        # Shrunk by what is likely to be noise in it (James and Stein).
        released, spread = 2.0 * means["records"], 2.0 * noise["records"]
        energy = float(released.square().sum())
        kept = max(0.0, 1.0 - d * spread**2 / energy) if energy > 0.0 else 0.0
        mean = kept * released
        # E‖x − k·r‖² for the mean r: the part of ‖r‖² that is not noise is subtracted.
        found -= (2.0 * kept - kept**2) * max(0.0, energy - d * spread**2)
    # Drawn to a usual one where noise is large.
    trust = _SPREAD**2 / (_SPREAD**2 + (4.0 * noise["norms"]) ** 2)
    square = min(max(trust * found + (1.0 - trust) * _SPREAD, _LEAST_SPREAD), 4.0)
    intercept: Tensor | float = 0.0
    if loss.targets is not None:
        intercept = loss.intercept(means["targets"], noise["targets"])
    return mean, math.sqrt(square), intercept


def _means_of(
    blocks: dict[str, Tensor], run: _Steps, steps: int
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the means of blocks of columns as some steps release them, and their noise."""
    total = sum(_SHARES[name] for name in blocks)
    factors = {name: math.sqrt(_SHARES[name] / total) for name in blocks}
    columns = torch.cat([factors[name] * each for name, each in blocks.items()], dim=1)
    rows = DenseRows(columns, Clip(1.0))
    mean, weights = torch.zeros(rows.columns, dtype=torch.float64), 0.0
    start = torch.zeros(rows.columns, 1, dtype=columns.dtype)
    for _ in range(steps):
        released = run.release(rows, start, lambda scores, _: torch.ones_like(scores))
        z = run.noise_multiplier
        weight = z**-2 if z > 0.0 else 1.0
        weights += weight
        mean += (released[:, 0] - mean) * (weight / weights)
    noise = run.noise_multiplier and 1.0 / run.plan.batch_size / math.sqrt(weights)
    parts = mean.split([each.shape[1] for each in blocks.values()])
    means = {name: part / factors[name] for name, part in zip(blocks, parts, strict=True)}
    return means, {name: noise / factors[name] for name in blocks}


def _rows(
    features: Any,
    mean: Tensor,
    scale: float,
    constant: float,
    clip: Clip,
    record_weights: Tensor | None,
    ends: Indices | None,
) -> Rows:
    """Return the standardized records with a constant column."""
    if not isinstance(features, Tensor):
        column = sparse.csr_array(np.full((features.shape[0], 1), constant, features.dtype))
        scaled = sparse.csr_array(features) * features.dtype.type(1.0 / scale)
        return SparseRows(sparse.hstack([scaled, column], format="csr"), clip, record_weights, ends)
    values = torch.full((len(features), features.shape[1] + 1), constant, dtype=features.dtype)
    torch.sub(features, mean.to(features.dtype), out=values[:, :-1]).div_(scale)
    return DenseRows(values, clip, record_weights, ends)


def _descent(
    rows: Rows,
    start: Tensor,
    logit_gradients: LogitGradients,
    run: _Steps,
    momentum: float,
    weighting: Weighting,
) -> Iterator[Tensor]:
    """Take the steps that are left, and yield the average after each."""
    weight = start.clone()
    velocity, average = torch.zeros_like(weight), weight.clone()
    run.correlate_noise()
    while run.state.noise_multiplier is not None:
        released = run.release(rows, weight, logit_gradients)
        velocity.mul_(momentum).add_(released, alpha=1.0 - momentum)
        weight -= run.stepsize * velocity
        average.lerp_(weight, weighting(run.state.steps, run.plan.steps))
        yield average


def _weight_noise(plan: Plan, first: int, momentum: float, weighting: Weighting) -> float:
    """Return the noise in the average of the steps from the first on, if nothing draws it back."""
    z, steps = plan.noise_multipliers[first:], range(first, plan.steps)
    if not z.any():
        return 0.0
    # An average that moves by w_t to iterate t keeps w_t·Π_{s > t} (1 − w_s) of it.
    w = np.array([weighting(t + 1, plan.steps) for t in steps])
    kept = w * np.append(np.cumprod((1.0 - w)[::-1])[::-1][1:], 1.0)
    # Noise of a step moves each later iterate by its step size, as momentum spreads it.
    moves = plan.stepsizes[first:] * np.cumsum(kept[::-1])[::-1] * (1.0 - momentum)
    powers = momentum ** np.arange(len(steps))
    effects = np.array([moves[s:] @ powers[: len(steps) - s] for s in range(len(steps))])
    weights = effects * z
    if plan.correlation is not None:
        scaled = (weights * plan.column_norms[first:])[::-1]
        weights = np.convolve(scaled, inverse(plan.correlation, z.size))[: z.size]
    return plan.clip_norm / plan.batch_size * float(np.linalg.norm(weights))
