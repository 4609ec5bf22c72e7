"""The privacy statement: what a run claims, and what the claim rests on."""

import math
from collections.abc import Sequence
from textwrap import fill

from dither.planning import Plan, ReactivePlan
from dither.schedules import UnsafeRawAdaGradNorm
from dither.training.loop import TrainResult
from dither.training.private import Private
from dither.types import SpentSoFar, rounded

_NEIGHBOURS = {
    "add-remove": "adding or removing one record",
    "replace-one": "replacing one record by another",
}


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
    parts = [_claim(result), _mechanism(result), _public(result), _randomness(result)]
    if leaks:
        parts.insert(0, _leaked(leaks))
    return "\n".join(fill(part, 80) for part in parts)


def _so_far(run: Private) -> TrainResult:
    return TrainResult(run.model, run.plan, run.spent(), run.step, (), run.seed)


def _leaked(leaks: Sequence[str]) -> str:
    read = "; ".join(f"{leak} read off the private data" for leak in leaks)
    return f"NOT PROVEN: {read}, which no noise protects. The rest of this would hold without that."


def _claim(result: TrainResult) -> str:
    bound, plan = result.bound, result.plan
    if math.isinf(bound.epsilon):
        why = "no noise was added"
        if isinstance(plan, ReactivePlan) and isinstance(plan.stepsizes, UnsafeRawAdaGradNorm):
            why = "its step sizes follow the raw gradients, which no noise protects"
        return f"This run claims NO privacy (ε = ∞): {why}."
    epsilon, delta = rounded(bound.epsilon, 4), rounded(bound.delta, 3)
    if isinstance(bound, SpentSoFar):
        return (
            f"The models so far are (ε = {epsilon}, δ = {delta})-differentially private with "
            f"respect to {_NEIGHBOURS[bound.relation]} of the training data ({bound.accountant} "
            "accounting), as if it had been fixed beforehand that the run stops here. To stop "
            "because of what the data shows needs the odometer; the whole plan's "
            f"ε = {rounded(plan.bound.epsilon, 4)} holds wherever the run stops."
        )
    return (
        f"The released model is (ε = {epsilon}, δ = {delta})-differentially private with respect "
        f"to {_NEIGHBOURS[bound.relation]} of the training data ({bound.accountant} accounting). "
        "This covers the final model and every model on the way."
    )


def _mechanism(result: TrainResult) -> str:
    plan = result.plan
    how = {
        "poisson": f"every record by its own coin with probability q = {plan.sample_rate:.6g}",
        "fixed": f"{plan.batch_size:,} distinct records at random",
    }[plan.sampling]
    if plan.sample_rate == 1.0:
        how = "all records"
    clips = f"clips every record's gradient to the norm {plan.clip_norm:g}, "
    clips = clips if math.isfinite(plan.clip_norm) else ""
    sums = "adds Gaussian noise to their sum" if _has_noise(result) else "sums the gradients"
    return (
        f"It was made by {result.steps:,} steps, each of which draws {how}, {clips}{sums} and "
        f"divides by {plan.batch_size:,}. The plan's fingerprint is {plan.fingerprint[:16]}."
    )


def _public(result: TrainResult) -> str:
    return (
        f"The claim takes as public: the number of records, n = {result.plan.dataset_size:,}, the "
        "shape of a record, the set of classes, bounds of features and targets, and all settings. "
        "It holds for this run alone: "
        "settings that were chosen by looking at other runs on the same data cost more."
    )


def _has_noise(result: TrainResult) -> bool:
    return not isinstance(result.plan, Plan) or bool(result.plan.noise_multipliers.any())


def _randomness(result: TrainResult) -> str:
    if not _has_noise(result):
        seeded = "" if result.seed is None else f" SEEDED with {result.seed}."
        return f"Only the batches are random.{seeded}"
    if result.seed is None:
        return (
            "Batches and noise come from a cryptographic generator keyed by the operating system; "
            "its keys were not kept. Noise is added in double precision and rounded to a grid."
        )
    return (
        f"SEEDED with {result.seed}: the noise can be computed and subtracted by whoever knows or "
        "guesses the seed. A seed is for tests and experiments; train without one to protect data."
    )
