"""The sampler that a plan was accounted for."""

from dither import validate
from dither.planning import Plan, ReactivePlan
from dither.sampling.fixed import Fixed
from dither.sampling.full_batch import FullBatch
from dither.sampling.poisson import Poisson
from dither.sampling.sampler import Sampler


def sampler_for(plan: Plan | ReactivePlan, *, length: int) -> Sampler:
    """Return the sampler whose batches the plan's accountant has counted.

    Args:
        plan: the plan.
        length: how many records there are. Under Poisson sampling it may be any number, since
            q = m/dataset_size is public; the other kinds are accounted for exactly
            ``plan.dataset_size`` records.

    Example:
        >>> plan = Plan.unsafe_without_noise(steps=1, dataset_size=100, batch_size=10)
        >>> sampler_for(plan, length=97)
        Poisson(sample_rate=0.1)
    """
    if validate.count(length=length) != plan.dataset_size and plan.sampling != "poisson":
        raise validate.InvalidValueError(
            f"dataset must have the plan's dataset_size, {plan.dataset_size} records, under "
            f"{plan.sampling} sampling, got {length}"
        )
    if plan.sample_rate == 1.0:
        return FullBatch()
    return Poisson(plan.sample_rate) if plan.sampling == "poisson" else Fixed(plan.batch_size)
