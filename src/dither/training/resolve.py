"""What `train` runs by: a plan as given, or a recipe and its plan, the same on all ranks."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn
from torch.optim import Optimizer

from dither import validate
from dither.planning import Plan, ReactivePlan
from dither.training.averaging import find_averaging
from dither.training.distributed import Ranks, Shard, check_same, held
from dither.training.evaluation import arguments_of
from dither.training.make_private import for_users
from dither.training.optimizers import UNIT_RATES, given_optimizer, named_optimizer
from dither.training.recipe import Recipe, given_text, new_recipe
from dither.training.records import Records, check_pair, records_of
from dither.training.rule import GIVEN
from dither.training.run_directory import RunDirectory
from dither.training.settings import for_momentum, frozen
from dither.training.users import Users

FROM_DATA = "counted in the data, taken as public"


@dataclass(frozen=True)
class Resolved:
    """The plan, optimizer and averaging of a run, and the recipe that they come from."""

    plan: Plan | ReactivePlan
    optimizer: Optimizer
    averaging: str | None
    recipe: Recipe | None = None


def resolve(
    model: nn.Module,
    data: Any,
    plan: Plan | ReactivePlan | Recipe | None,
    settings: Mapping[str, Any],
    *,
    users: Users | None,
    optimizer: Any,
    averaging: str | None,
    ranks: Ranks,
    directory: RunDirectory | None,
) -> Resolved:
    """Return what a run goes by; a resumed run goes by what it began with."""
    given = {name: value for name, value in settings.items() if value is not None}
    plain = {name: v if isinstance(v, int | float | str) else None for name, v in given.items()}
    check_same(ranks, {"plan": type(plan).__name__, "the settings": plain})
    if plan is not None and given:
        raise validate.InvalidTypeError(
            f"plan must be left out where settings are given, got a {type(plan).__name__} and "
            f"{', '.join(sorted(given))}: dither.recipe and dither.plan take settings"
        )
    if plan is None and "epsilon" not in given:
        raise validate.InvalidTypeError(
            "train needs a plan or the budget, got neither: epsilon=3.0 lets dither choose the rest"
        )
    find_averaging(None if averaging == "none" else averaging)
    if isinstance(plan, Plan | ReactivePlan):
        name = "sgd" if optimizer is None else optimizer
        built = (
            named_optimizer(name, model, UNIT_RATES.get(name, 1.0))
            if isinstance(name, str)
            else given_optimizer(name, model)
        )
        own = for_users(plan, users)
        known = ranks.on_rank_zero(lambda: _saved_plan(directory, own))
        return Resolved(known, built, None if averaging == "none" else averaging)
    named = optimizer if isinstance(optimizer, str) else None
    if plan is None:
        records = records_of(held(data), may_be_empty=ranks.size > 1)
        lengths = ranks.all_gather(records.length if users is None else users.count)
        length = sum(lengths) if isinstance(data, Shard) else lengths[0]
        given |= {"optimizer": named, "averaging": averaging}
        made = ranks.on_rank_zero(
            lambda: find_recipe(model, records, length, given, directory, users)
        )
    else:
        made = validate.instance(Recipe, plan=plan)
        if named is not None and named != made.optimizer:
            made = made.with_optimizer(named, model)
        if averaging is not None:
            kept = None if averaging == "none" else averaging
            made = replace(made, averaging=kept, reasons={**made.reasons, "averaging": GIVEN})
    if named is None and optimizer is not None:
        built = given_optimizer(optimizer, model)
        made = _with_given_optimizer(made, built)
    else:
        built = made.build_optimizer(model)
    made = ranks.on_rank_zero(made.settled)
    known = ranks.on_rank_zero(lambda: _saved_plan(directory, for_users(made.plan(), users)))
    return Resolved(known, built, made.averaging, made)


def find_recipe(
    model: nn.Module,
    records: Records,
    length: int,
    given: Mapping[str, Any],
    directory: RunDirectory | None,
    users: Users | None = None,
) -> Recipe:
    """Return the recipe that a run began with, or a new one; `Recipe.settled` is the caller's."""
    given = {name: value for name, value in given.items() if value is not None}
    saved = None if directory is None else directory.load_recipe()
    if saved is not None:
        return check_resumed(saved, given)
    # Its shapes and dtypes are used, never its values.
    batch = next(iter(records.batches([np.zeros(1, np.int64)])))
    inputs = arguments_of(check_pair(batch)[:-1])
    rows = 1 if users is None else users.rows_per_user
    sizes = {"dataset_size": length, "rows_per_user": rows}
    made = new_recipe(model, inputs=inputs, **{**sizes, **given})
    if "dataset_size" in given:
        return made
    reasons = {**made.reasons, "dataset_size": FROM_DATA}
    return replace(made, reasons=reasons, given=given_text(given))


def check_resumed(saved: Recipe, given: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a run, if the settings that are given are those that were given then."""
    objects = frozen(given)
    now = given_text(given)
    for name in sorted({*saved.given, *now}):
        began, got = saved.given.get(name), now.get(name)
        # Objects are compared by what they give: the plan. What was chosen may be given now.
        is_object = name in objects and not isinstance(objects[name], str)
        is_same = began == got or (is_object and name in saved.given)
        if not is_same and (began is not None or getattr(saved, name, None) != given[name]):
            raise validate.InvalidValueError(
                f"{name} must be what the run began with, {began or 'chosen by dither'}, got "
                f"{got or 'none'}"
            )
    return replace(saved, **objects)


def _with_given_optimizer(made: Recipe, optimizer: Optimizer) -> Recipe:
    rate = float(optimizer.param_groups[0]["lr"])
    reasons = {**made.reasons, "optimizer": GIVEN, "learning_rate": "of the given optimizer"}
    return replace(
        made,
        optimizer=type(optimizer).__name__,
        learning_rate=rate,
        layer_rates=False,
        noise=for_momentum(made.noise, _momentum_of(optimizer)),
        reasons={**reasons, "layer_rates": "of the given optimizer"},
    )


def _momentum_of(optimizer: Optimizer) -> float:
    """Return the momentum of SGD; Adam divides by the noise as well, and counts as none."""
    return float(optimizer.param_groups[0].get("momentum", 0.0))


def _saved_plan(directory: RunDirectory | None, plan: Plan | ReactivePlan) -> Plan | ReactivePlan:
    """Return the plan that a run began with, if it equals the given one up to rounding."""
    saved = None if directory is None or not isinstance(plan, Plan) else directory.load_plan()
    if not isinstance(plan, Plan) or saved is None:
        return plan
    sizes = (
        "steps",
        "dataset_size",
        "batch_size",
        "sampling",
        "clipping",
        "clip_norm",
        "search",
        "rows_per_user",
    )
    is_same = (
        all(getattr(saved, name) == getattr(plan, name) for name in sizes)
        and np.allclose(saved.noise_multipliers, plan.noise_multipliers, rtol=1e-5)
        and np.allclose(saved.stepsizes, plan.stepsizes, rtol=1e-9)
        and saved.bands == plan.bands
        and np.allclose(saved.correlation or (), plan.correlation or (), atol=1e-3)
        and saved.bound.delta == plan.bound.delta
    )
    return saved if is_same else plan
