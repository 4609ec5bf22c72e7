"""Tens of thousands of trials at once: canaries that do not meet, in real private training.

Every canary has a direction of its own in which it alone has a gradient, longer than the clip norm.
They go through the training that everybody uses: the plan's sampler draws them, the engine clips
them, the release adds its noise. With one coordinate a canary their coins and their noises are
independent, and so are the trials; what is known of other records is known to move other
coordinates, so that for each canary this is a pair of neighbouring datasets whose difference
nothing hides: the worst pair that the accountant counts with.
"""

import warnings
from typing import final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from dither.audit.evidence import Coins, Scores, log_likelihood_ratio
from dither.planning import Plan, ReactivePlan
from dither.progress import Progress
from dither.training import Private, make_private
from dither.types import FloatArray

_LONGER = 10.0
"""A canary's gradient before clipping, in clip norms."""

_ROWS = 4096


@final
class Directions:
    """Where canaries point: each to a coordinate of its own, or as the rows of a matrix say.

    Args:
        count: how many there are.
        rows: their directions, of length 1, or None.
    """

    def __init__(self, count: int, rows: FloatArray | None = None) -> None:
        self._rows = None if rows is None else torch.tensor(rows, dtype=torch.float32)
        self.records = torch.arange(count) if self._rows is None else self._rows

    def model(self) -> nn.Module:
        """Return a model whose output for a canary is the parameters' part along it."""
        rows = self._rows
        layer: nn.Linear | nn.Embedding
        # skip_init, so that nobody's random numbers are used up.
        if rows is None:
            layer = skip_init(nn.Embedding, len(self.records), 1)
        else:
            layer = skip_init(nn.Linear, rows.shape[1], 1, bias=False)
        nn.init.zeros_(layer.weight)
        return layer

    def along(self, parameters: Tensor) -> FloatArray:
        """Return a vector's part along every canary."""
        flat = parameters.detach().reshape(-1)
        return (flat if self._rows is None else self._rows @ flat).double().numpy()


def attacked(
    plan: Plan | ReactivePlan,
    included: Coins,
    *,
    directions: Directions | None = None,
    seed: int | None = None,
    progress: bool = False,
) -> Scores:
    """Train on canaries along a plan and return what two attackers see of each.

    Under Poisson sampling a canary whose coin is tails is left out. Under fixed sampling it is
    replaced by its opposite, and there are as many canaries in a run as the plan has records; if
    more are asked for, there are several runs.

    Args:
        plan: the plan.
        included: one coin a canary.
        directions: where they point; None gives each a coordinate of its own.
        seed: makes it repeatable.
        progress: whether a terminal shows a bar.
    """
    runs = [np.arange(included.size)]
    if plan.sampling == "fixed":
        runs = np.array_split(runs[0], -(-included.size // plan.dataset_size))
    white_box, final_model = np.zeros(included.size), np.zeros(included.size)
    with Progress("attacking", plan.steps * len(runs), shown=progress) as bar:
        for number, part in enumerate(runs):
            own = Directions(part.size) if directions is None else directions
            key = None if seed is None else seed + 1_000_003 * number
            found = _run(plan, included[part], own, key, bar)
            white_box[part], final_model[part] = found
    return Scores(included, white_box, final_model, _independent(plan, directions))


def _independent(plan: Plan | ReactivePlan, directions: Directions | None) -> tuple[str, ...]:
    """Return whose scores are independent of each other, canary by canary.

    Draws of a fixed number of records depend on each other, and so do canaries that are not at
    right angles. Step sizes that react follow all canaries together.
    """
    if directions is not None or (plan.sampling == "fixed" and plan.sample_rate < 1.0):
        return ()
    if isinstance(plan, Plan):
        return ("white-box", "final-model")
    return ("white-box",) if plan.noises is not None else ()


def _run(
    plan: Plan | ReactivePlan,
    included: Coins,
    directions: Directions,
    seed: int | None,
    bar: Progress,
) -> tuple[FloatArray, FloatArray]:
    """Return both attackers' scores after one training run."""
    C, q, m = plan.clip_norm, plan.sample_rate, plan.batch_size
    replaced = plan.sampling == "fixed"
    model = directions.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    (weight,) = model.parameters()
    private = _private(plan, model, optimizer, _records(plan, included, directions), seed)
    ratio = np.zeros(included.size)
    for batch in private.batches():
        for records, signs in private.microbatches(batch, _ROWS):
            private.backward(private.model(records).squeeze(1) * signs * (-_LONGER * C))
        optimizer.step()
        assert weight.grad is not None  # noqa: S101 - it was just released
        x = directions.along(weight.grad) * (-m / C)
        ratio += log_likelihood_ratio(x, private.noise_multiplier, q, replaced=replaced)
        optimizer.zero_grad()
        bar.update()
    final_model = directions.along(weight) * (m / C)
    private.close()
    return ratio, final_model


def _records(
    plan: Plan | ReactivePlan, included: Coins, directions: Directions
) -> tuple[Tensor, Tensor]:
    """Return the canaries that are in the data, with their signs, and records that do nothing."""
    kept = torch.from_numpy(included)
    if plan.sampling == "fixed":
        here, signs = directions.records, torch.where(kept, 1.0, -1.0)
        idle = plan.dataset_size - included.size
    else:
        here = directions.records[kept]
        signs, idle = torch.ones(len(here)), 1
    rest = directions.records[:1].expand(idle, *directions.records.shape[1:])
    return torch.cat([here, rest]), torch.cat([signs, torch.zeros(idle)])


def _private(
    plan: Plan | ReactivePlan,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    records: tuple[Tensor, Tensor],
    seed: int | None,
) -> Private:
    with warnings.catch_warnings():
        # Canaries need not be as many as the plan's records: each is drawn by its own coin.
        warnings.filterwarnings("ignore", message="the dataset has another number of records")
        return make_private(model, optimizer, plan, records, seed=seed)
