"""Attacks on a plan: canaries go through real private training, and attackers score them.

Every canary has a direction of its own in which it alone has a gradient, longer than the clip norm.
Canaries go through the same code as any training: the plan's sampler draws them, the engine clips
them, the release adds noise. With one coordinate per canary their draws and their noise are
independent, and so are the trials. What is known of other records moves other coordinates, so that
for each canary this is a pair of adjacent datasets whose difference nothing hides: the worst pair
that the accountant considers. Where users are protected, a canary is a user with several equal
rows, whose gradients add up.

In plans whose noise reacts, a release moves b, and b moves the noise of later steps. Trials that
shared one run would not be independent, and a single canary among thousands would move nothing.
There each trial has its own state, budget and one coordinate. Draws come from the library's sampler
and noise from its release, for all trials of a step together, in units of each trial's noise. The
training loop and its clipping are not part of this; the attack "one-run" covers them there.
"""

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn.utils import skip_init

from dither import validate
from dither.audit.likelihood import LikelihoodRatio, log_likelihood_ratio
from dither.clipping.clip import STABILIZER, ClippedSum
from dither.planning import Plan, ReactivePlan
from dither.progress import Progress
from dither.randomness import Source
from dither.release import release
from dither.sampling import Poisson
from dither.training import Private
from dither.training.make_private import join
from dither.types import FloatArray

Included = NDArray[np.bool_]
"""Whether each canary is in the data."""

_LONGER = 10.0
"""A canary's gradient before flat clipping, in clip norms."""

_LONG = 1e6 * STABILIZER
"""Its norm before automatic clipping, which scales it to all but a millionth of the clip norm."""

_ROWS = 4096


@final
@dataclass(frozen=True)
class Scores:
    """Two attackers' scores; the higher, the more it looks as if the canary was in the data.

    Attributes:
        included: which canaries were in the data.
        white_box: the log likelihood ratio of all releases along the canary.
        final: how far the final model has moved along the canary; a step of size 1 in which the
            canary took part moves it by 1.
        independent: which attackers' scores of different canaries are independent.
    """

    included: Included
    white_box: FloatArray
    final: FloatArray
    independent: tuple[str, ...]

    def of(self, attack: str) -> FloatArray:
        """Return the scores of one attacker."""
        return self.final if attack == "final-model" else self.white_box


def numbers(**argument: object) -> FloatArray:
    """Return an argument as floats without NaN; it may be a tensor."""
    ((name, value),) = argument.items()
    if isinstance(value, Tensor):
        value = value.detach().cpu().double().numpy()
    return validate.numbers(**{name: value})


def check_included(included: ArrayLike) -> Included:
    """Return an argument ``included`` of booleans, or of ones and zeros."""
    values = numbers(included=included)
    if not np.isin(values, (0.0, 1.0)).all():
        raise validate.InvalidValueError(
            "included must be true or false for every canary, got other numbers"
        )
    return values.astype(np.bool_)


def draw_included(count: int, seed: int | None) -> Included:
    """Return which canaries are in the data, each independently with probability 1/2."""
    return Source(seed).stream("coins", 0).bytes(count) < 128


def signal_signs(included: Included, *, replaced: bool) -> FloatArray:
    """Return by how much a drawn canary moves a release: 1, 0, or −1 if it is replaced."""
    return np.where(included, 1.0, -1.0 if replaced else 0.0)


@final
class Directions:
    """Directions of canaries: each a coordinate of its own, or a vector of a matrix.

    Args:
        count: how many there are.
        vectors: their directions, of length 1, or None.
    """

    def __init__(self, count: int, vectors: FloatArray | None = None) -> None:
        self._count = count
        self._vectors = None if vectors is None else torch.tensor(vectors, dtype=torch.float32)

    def model(self) -> nn.Module:
        """Return a model whose output for a canary's number is the component along it."""
        vectors = self._vectors
        layer: nn.Linear | nn.Embedding
        # skip_init leaves the state of torch's generator unchanged.
        if vectors is None:
            layer = skip_init(nn.Embedding, self._count, 1)
        else:
            layer = skip_init(nn.Linear, vectors.shape[1], 1, bias=False)
        nn.init.zeros_(layer.weight)
        if vectors is None:
            return layer
        return nn.Sequential(nn.Embedding.from_pretrained(vectors), layer)  # which is frozen

    def along(self, parameters: Tensor) -> FloatArray:
        """Return a vector's component along every canary."""
        flat = parameters.detach().reshape(-1)
        return (flat if self._vectors is None else self._vectors @ flat).double().numpy()


def attack_plan(
    plan: Plan | ReactivePlan,
    included: Included,
    *,
    rows: int = 1,
    directions: Directions | None = None,
    seed: int | None = None,
    progress: bool = False,
) -> Scores:
    """Train on canaries with a plan and return two attackers' scores.

    A canary that is not included is left out. Under fixed sampling it is replaced by its opposite,
    and there are as many canaries in a run as the plan has records; if more are asked for, there
    are several runs.

    Args:
        plan: the plan.
        included: which canaries are in the data.
        rows: how many each of them has, if the plan protects users.
        directions: their directions; None gives each a coordinate of its own.
        seed: makes it reproducible.
        progress: whether progress is shown on standard error.
    """
    runs = [np.arange(included.size)]
    if plan.sampling == "fixed":
        runs = np.array_split(runs[0], -(-included.size // plan.dataset_size))
    white_box, final_model = np.zeros(included.size), np.zeros(included.size)
    with Progress("attacking", plan.steps * len(runs), shown=progress) as bar:
        for number, part in enumerate(runs):
            own = Directions(part.size) if directions is None else directions
            key = None if seed is None else seed + 1_000_003 * number
            found = _run(plan, included[part], rows, own, key, bar)
            white_box[part], final_model[part] = found
    return Scores(included, white_box, final_model, _independent(plan, directions))


def _independent(plan: Plan | ReactivePlan, directions: Directions | None) -> tuple[str, ...]:
    """Return the attackers whose scores are independent between canaries.

    Draws of a fixed number of records depend on each other, and so do canaries that are not
    orthogonal. Step sizes that react depend on all canaries together.
    """
    if directions is not None or (plan.sampling == "fixed" and plan.sample_rate < 1.0):
        return ()
    if isinstance(plan, Plan):
        return ("white-box", "final-model")
    return ("white-box",) if plan.noises is not None else ()


def _run(
    plan: Plan | ReactivePlan,
    included: Included,
    rows: int,
    directions: Directions,
    seed: int | None,
    bar: Progress,
) -> tuple[FloatArray, FloatArray]:
    """Return both attackers' scores after one training run."""
    C, m = plan.clip_norm, plan.batch_size
    length = _LONG if plan.clipping == "automatic" else _LONGER * C
    model = directions.model()
    (weight,) = (each for each in model.parameters() if each.requires_grad)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    private = _private(plan, model, optimizer, _records(plan, included), rows, seed)
    ratio = LikelihoodRatio(plan, included.size)
    for batch in private.batches():
        for records, signs in private.microbatches(batch, _ROWS):
            private.backward(private.model(records).squeeze(1) * signs * -length)
        optimizer.step()
        assert weight.grad is not None  # noqa: S101 - it was just released
        ratio.add(directions.along(weight.grad) * (-m / C), private.noise_multiplier)
        optimizer.zero_grad()
        bar.update()
    final_model = directions.along(weight) * (m / C)
    private.close()
    return ratio.finish(), final_model


def _records(plan: Plan | ReactivePlan, included: Included) -> tuple[Tensor, Tensor]:
    """Return the canaries in the data with their signs, and records with zero gradient."""
    kept = torch.from_numpy(included)
    if plan.sampling == "fixed":
        here, signs = torch.arange(kept.numel()), torch.where(kept, 1.0, -1.0)
        idle = plan.dataset_size - included.size
    else:
        here = torch.nonzero(kept)[:, 0]
        signs, idle = torch.ones(len(here)), 1
    return torch.cat([here, here.new_zeros(idle)]), torch.cat([signs, torch.zeros(idle)])


def _private(
    plan: Plan | ReactivePlan,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    records: tuple[Tensor, Tensor],
    rows: int,
    seed: int | None,
) -> Private:
    users: dict[str, Any] = {}
    if plan.rows_per_user is not None:
        owners = torch.arange(len(records[0])).repeat(rows)  # a user's rows are not neighbours
        records = records[0][owners], records[1][owners]
        users = {"users": owners, "rows_per_user": plan.rows_per_user}
    with warnings.catch_warnings():
        # Canaries need not be as many as the plan's records: each is drawn independently.
        warnings.filterwarnings("ignore", message="the dataset has another number of")
        return join(model, optimizer, plan, records, seed=seed, **users)


@dataclass(frozen=True)
class _Coordinate:
    """A release of one coordinate, as a state sees it."""

    value: float
    noise: float
    dimension: int = 1

    def squared_norm(self) -> float:
        """Return ‖g‖²."""
        return self.value**2


def attack_reactive_plan(
    plan: ReactivePlan, included: Included, *, seed: int | None = None, progress: bool = False
) -> Scores:
    """Run one plan state per canary and return two attackers' scores.

    Under fixed sampling a canary takes part with its marginal probability, m/n; one that is out is
    replaced by its opposite.
    """
    q, source, trials = plan.sample_rate, Source(seed), included.size
    replaced = plan.sampling == "fixed"
    signs = signal_signs(included, replaced=replaced)
    states = [plan.new_state() for _ in range(trials)]
    scale = plan.clip_norm / plan.batch_size
    ratio, final_model = np.zeros(trials), np.zeros(trials)
    with Progress("attacking", plan.steps, shown=progress) as bar:
        for t in range(plan.steps):
            bar.update()
            z = np.array([state.noise_multiplier or np.nan for state in states])
            runs = np.flatnonzero(np.isfinite(z))
            if runs.size == 0:
                break
            drawn = np.zeros(trials)
            drawn[Poisson(q).draw(trials, source.stream("sampling", t))] = 1.0
            signal = (drawn * signs)[runs]
            x = _release(signal / z[runs], source, t) * z[runs]
            ratio[runs] += log_likelihood_ratio(x, z[runs], q, replaced=replaced)
            for run, value, raw in zip(runs, x * scale, signal * scale, strict=True):
                states[run].spend()
                seen = _Coordinate(float(value), float(z[run]) * scale)
                stepsize = states[run].stepsize(seen, partial(pow, float(raw), 2.0))
                final_model[run] += stepsize * value / scale
    return Scores(included, ratio, final_model, ("white-box", "final-model"))


def _release(signal: FloatArray, source: Source, step: int) -> FloatArray:
    """Return the noisy sum, in units of its noise."""
    total = ClippedSum({"along": torch.from_numpy(signal)}, torch.ones(0))
    noisy = release(
        total,
        clip_norm=1.0,
        noise_multiplier=1.0,
        batch_size=1,
        stream=source.stream("noise", step),
    )
    return noisy.gradients["along"].numpy()
