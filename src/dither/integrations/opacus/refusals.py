"""What would make a plan's claim untrue under Opacus, each with what to do about it."""

from typing import Any

from opacus.data_loader import DPDataLoader
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer
from opacus.utils.uniform_sampler import UniformWithReplacementSampler

from dither.planning import Plan, ReactivePlan
from dither.validate import InvalidTypeError, InvalidValueError, instance

_OWNS_RATE = (
    "the plan owns the learning rate: give the schedule to dither.plan(stepsizes=...), and leave "
    "lr alone"
)
_OTHER_OPTIMIZERS = {
    "AdaClipDPOptimizer": "it moves the clip norm by a count that it divides by the size of the "
    "drawn batch, which no noise protects",
    "DPPerLayerOptimizer": "it clips every layer by a norm of its own, and the plan has one",
    "DPOptimizerFastGradientClipping": "the model clips there, and the optimizer cannot see by "
    "which norm, nor how many batches went in; take grad_sample_mode='hooks'",
}


def check_plan(plan: Plan) -> None:
    """Raise unless Opacus can follow the plan."""
    if isinstance(plan, ReactivePlan):
        raise InvalidTypeError(
            "plan must be a Plan, got a ReactivePlan: it needs to see every release before the "
            "step, which Opacus does not show; use dither.make_private"
        )
    instance(Plan, plan=plan)
    if plan.sampling != "poisson":
        raise InvalidValueError(
            f"plan must have sampling 'poisson', got {plan.sampling!r}: Opacus draws each record "
            "independently"
        )
    if not plan.noise_multipliers.all():
        raise InvalidValueError("plan must have noise in every step, got one without")


def check_optimizer(optimizer: Any) -> None:
    """Raise unless the optimizer is Opacus' plain one, between batches, with no schedule yet."""
    if not isinstance(optimizer, DPOptimizer):
        raise InvalidTypeError(
            "optimizer must be the DPOptimizer that PrivacyEngine.make_private returned, got "
            f"{type(optimizer).__name__}"
        )
    if type(optimizer) is not DPOptimizer:
        name = type(optimizer).__name__
        reason = _OTHER_OPTIMIZERS.get(name, "what it computes has not been checked here")
        raise InvalidValueError(f"optimizer must be a plain DPOptimizer, got {name}: {reason}")
    if "pre_step" in vars(optimizer):
        raise InvalidValueError(
            "optimizer must not be driven by another schedule: call close() of that one first"
        )
    if _is_scheduled(optimizer):
        raise InvalidValueError(f"optimizer must have no scheduler, got one: {_OWNS_RATE}")
    if not optimizer.params:
        raise InvalidValueError(
            "optimizer must have trainable parameters, got none: Opacus would add no noise"
        )
    if optimizer._step_skip_queue or any(map(_is_waiting, optimizer.params)):
        raise InvalidValueError(
            "optimizer must be between two batches, got one with clipped gradients in it: call "
            "drive before the first batch"
        )


def sampler_of(data_loader: object) -> Any:
    """Return the Poisson sampler of a data loader, or raise if there is something else."""
    sampler = getattr(data_loader, "batch_sampler", None)
    poisson = type(sampler) is UniformWithReplacementSampler
    if not isinstance(data_loader, DPDataLoader) or not poisson:
        raise InvalidTypeError(
            "data_loader must be the DPDataLoader of make_private(poisson_sampling=True) in one "
            f"process, got {type(data_loader).__name__} with {type(sampler).__name__}"
        )
    if getattr(data_loader.collate_fn, "rand_on_empty", None) is not False:
        raise InvalidValueError(
            "data_loader must be made with rand_on_empty=False, got another: a made-up record "
            "in the place of an empty batch lets one record move the sum by twice the clip norm"
        )
    return sampler


def other_settings(plan: Plan, optimizer: Any) -> str | None:
    """Return which setting of the optimizer is not the plan's."""
    wanted = {
        "max_grad_norm": plan.clip_norm,
        "expected_batch_size": plan.batch_size,
        "loss_reduction": "mean",
    }
    for name, value in wanted.items():
        found = getattr(optimizer, name)
        if found != value:
            does = "make it with that" if name == "loss_reduction" else "set it"
            return f"optimizer.{name} must be {value!r} as planned, got {found!r}: {does}"
    return None


def other_rate(plan: Plan, sampler: Any) -> str | None:
    """Return what is wrong with the probability with which records are drawn.

    For ``batch_size=m`` Opacus draws with 1/ceil(n/m). That is at most q = m/n, and costs no more:
    to draw with q′ ≤ q is to draw with q, and then to leave the record out after all with
    probability 1 − q′/q; the divergences that make ε are convex in that mixture.
    """
    n, m = plan.dataset_size, plan.batch_size
    if sampler.sample_rate in (plan.sample_rate, 1 / -(-n // m)):
        return None
    return (
        f"data_loader must draw with the plan's probability {plan.sample_rate:.6g}, got "
        f"{sampler.sample_rate:.6g}: make it with batch_size={m} and drop_last=False of {n} "
        "records, or make a plan for it"
    )


def changed_rates(optimizer: Any, rates: list[float]) -> str | None:
    """Return what has happened to the learning rates, or to who decides them."""
    if _is_scheduled(optimizer):
        return f"a scheduler was attached to the optimizer, but {_OWNS_RATE}"
    now = [float(group["lr"]) for group in optimizer.param_groups]
    if now != rates:
        then, shown = (", ".join(f"{each:g}" for each in some) for some in (rates, now))
        return f"the learning rate was changed from {then} to {shown}, but {_OWNS_RATE}"
    return None


def changed_parameters(optimizer: Any, trained: list[int]) -> str | None:
    """Return what is wrong if other parameters are trained: Opacus adds noise to these alone."""
    if [*map(id, optimizer.params)] == trained:
        return None
    return (
        "the trainable parameters have changed since drive: freeze and unfreeze before it, or "
        "close() the schedule between two steps and drive again"
    )


def several_batches(optimizer: Any) -> str | None:
    """Return what is wrong if a step has the gradients of several batches: a record may recur."""
    accumulated = optimizer.accumulated_iterations
    if accumulated == 1:
        return None
    return (
        f"a step must have the gradients of one batch, got {accumulated}: call "
        "optimizer.zero_grad() after every step; take large batches in microbatches with Opacus' "
        "BatchMemoryManager"
    )


def adaptive_clipping(optimizer: Any) -> str | None:
    """Return why an optimizer's noise is not what its noise multiplier says, if it is not."""
    adjusted = hasattr(optimizer, "_adjusted_noise_multiplier")
    if not adjusted and not isinstance(optimizer, AdaClipDPOptimizer):
        return None
    return (
        "adaptive clipping is not covered by this accountant: the clip norm follows counts of the "
        "drawn batch; use clipping='flat'"
    )


def _is_waiting(parameter: Any) -> bool:
    """Return whether there are clipped gradients without noise."""
    clipped = parameter.summed_grad
    return clipped is not None and not hasattr(clipped, "_processed")


def _is_scheduled(optimizer: Any) -> bool:
    """Torch's schedulers mark the groups, and wrap the step of whom they were given."""
    return any("initial_lr" in group for group in optimizer.param_groups) or any(
        hasattr(each.step, "_wrapped_by_lr_sched")
        for each in (optimizer, optimizer.original_optimizer)
    )
