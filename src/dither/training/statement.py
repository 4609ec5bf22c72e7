"""The privacy statement: what a run claims, and what the claim rests on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill

from dither.planning import Plan, ReactivePlan
from dither.schedules import UnsafeRawAdaGradNorm
from dither.training.loop import TrainResult
from dither.training.private import Private
from dither.types import PrivacyBound, SpentSoFar, rounded

_NEIGHBOURS = {
    "add-remove": "adding or removing one record",
    "replace-one": "replacing one record by another",
}


@dataclass(frozen=True)
class Stated:
    """What a statement speaks of.

    Attributes:
        bound: what the run costs.
        plan_epsilon: ε of the whole plan.
        steps: how many steps made the model.
        dataset_size: n.
        batch_size: m.
        sampling: "poisson" or "fixed".
        clip_norm: C_G.
        fingerprint: of the plan.
        has_noise: whether noise was added.
        is_raw: whether its step sizes follow raw gradients.
        is_seeded: whether its noise can be repeated.
        seed: the seed, if it is known.
    """

    bound: PrivacyBound
    plan_epsilon: float
    steps: int
    dataset_size: int
    batch_size: int
    sampling: str
    clip_norm: float
    fingerprint: str
    has_noise: bool
    is_raw: bool
    is_seeded: bool
    seed: int | None


def statement(run: TrainResult | Private, *, leaks: Sequence[str] = ()) -> str:
    """Return the statement of a training run, in paragraphs for people.

    Args:
        run: what `train` returned, or the `Private` of a loop of one's own.
        leaks: what was read off the private data besides, each as "… was" or "… were".

    Example:
        >>> import dither, torch
        >>> plan = dither.Plan.unsafe_without_noise(steps=2, dataset_size=10, batch_size=5)
        >>> data = torch.zeros(10, 3), torch.zeros(10, dtype=torch.int64)
        >>> trained = dither.train(torch.nn.Linear(3, 2), data, plan, progress=False)
        >>> print(statement(trained).splitlines()[0])
        This run claims NO privacy (ε = ∞): no noise was added.
    """
    result = run if isinstance(run, TrainResult) else _so_far(run)
    known = [f"{what} was" for what in result.derived_from_private_data]
    parts = paragraphs(_stated(result), leaks=[*leaks, *known])
    return "\n".join(fill(part, 80) for part in parts)


def paragraphs(stated: Stated, *, leaks: Sequence[str] = ()) -> list[str]:
    """Return the statement's paragraphs."""
    parts = [claim(stated), _mechanism(stated), _public(stated), _randomness(stated)]
    return [*([_leaked(leaks)] if leaks else []), *parts]


def _so_far(run: Private) -> TrainResult:
    return TrainResult(run.model, run.plan, run.spent(), run.step, (), run.seed)


def _stated(result: TrainResult) -> Stated:
    plan = result.plan
    return Stated(
        bound=result.bound,
        plan_epsilon=plan.bound.epsilon,
        steps=result.steps,
        dataset_size=plan.dataset_size,
        batch_size=plan.batch_size,
        sampling=plan.sampling,
        clip_norm=plan.clip_norm,
        fingerprint=plan.fingerprint,
        has_noise=not isinstance(plan, Plan) or bool(plan.noise_multipliers.any()),
        is_raw=isinstance(plan, ReactivePlan) and isinstance(plan.stepsizes, UnsafeRawAdaGradNorm),
        is_seeded=result.seed is not None,
        seed=result.seed,
    )


def _leaked(leaks: Sequence[str]) -> str:
    read = "; ".join(f"{leak} read off the private data" for leak in leaks)
    return f"NOT PROVEN: {read}, which no noise protects. The rest of this would hold without that."


def claim(stated: Stated) -> str:
    """Return the paragraph that says what is claimed."""
    bound = stated.bound
    if math.isinf(bound.epsilon):
        why = "no noise was added"
        if stated.is_raw:
            why = "its step sizes follow the raw gradients, which no noise protects"
        return f"This run claims NO privacy (ε = ∞): {why}."
    if not bound.is_upper_bound:
        return f"NOT PROVEN: {bound}."
    epsilon, delta = rounded(bound.epsilon, 4), rounded(bound.delta, 3)
    if isinstance(bound, SpentSoFar):
        return (
            f"The models so far are (ε = {epsilon}, δ = {delta})-differentially private with "
            f"respect to {_NEIGHBOURS[bound.adjacency]} of the training data ({bound.accountant} "
            "accounting), as if it had been fixed beforehand that the run stops here. To stop "
            "because of what the data shows needs the odometer; the whole plan's "
            f"ε = {rounded(stated.plan_epsilon, 4)} holds wherever the run stops."
        )
    return (
        f"The released model is (ε = {epsilon}, δ = {delta})-differentially private with respect "
        f"to {_NEIGHBOURS[bound.adjacency]} of the training data ({bound.accountant} accounting). "
        "This covers the final model and every model on the way."
    )


def _mechanism(stated: Stated) -> str:
    q = stated.batch_size / stated.dataset_size
    how = {
        "poisson": f"every record by its own coin with probability q = {q:.6g}",
        "fixed": f"{stated.batch_size:,} distinct records at random",
    }[stated.sampling]
    if q == 1.0:
        how = "all records"
    clips = f"clips every record's gradient to the norm {stated.clip_norm:g}, "
    clips = clips if math.isfinite(stated.clip_norm) else ""
    sums = "adds Gaussian noise to their sum" if stated.has_noise else "sums the gradients"
    return (
        f"It was made by {stated.steps:,} steps, each of which draws {how}, {clips}{sums} and "
        f"divides by {stated.batch_size:,}. The plan's fingerprint is {stated.fingerprint[:16]}."
    )


def _public(stated: Stated) -> str:
    return (
        f"The claim takes as public: the number of records, n = {stated.dataset_size:,}, the "
        "shape of a record, the set of classes, bounds of features and targets, and all settings. "
        "It holds for this run alone: "
        "settings that were chosen by looking at other runs on the same data cost more."
    )


def _randomness(stated: Stated) -> str:
    with_seed = " with an unknown seed" if stated.seed is None else f" with {stated.seed}"
    if not stated.has_noise:
        seeded = f" SEEDED{with_seed}." if stated.is_seeded else ""
        return f"Only the batches are random.{seeded}"
    if not stated.is_seeded:
        return (
            "Batches and noise come from a cryptographic generator keyed by the operating system; "
            "its keys were not kept. Noise is added in double precision and rounded to a grid."
        )
    return (
        f"SEEDED{with_seed}: the noise can be computed and subtracted by whoever knows or "
        "guesses the seed. A seed is for tests and experiments; train without one to protect data."
    )
