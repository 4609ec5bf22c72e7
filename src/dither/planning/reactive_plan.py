"""Plans for step sizes that react: the budget and the rules are frozen, the numbers follow."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np

from dither import validate
from dither.accounting.filter import BudgetExceededError, Filter, order_for
from dither.accounting.pld import least_noise
from dither.planning.fixed_plan import Plan
from dither.planning.serialization import fingerprint_of, sizes_text, to_json_value
from dither.schedules.reactive import Growth, Reactive, UnsafeRawAdaGradNorm
from dither.types import (
    Budget,
    FloatArray,
    PrivacyBound,
    Released,
    SpentSoFar,
    adjacency_of,
    unit_of,
)

_GROUPS = 24


@dataclass(frozen=True)
class ReactivePlan:
    """A budget, a rule for the step sizes and a rule for the noise, fixed before the first step.

    Made by `plan` for step sizes such as ``AdaGradNorm``. The noise is either fixed in advance from
    a bound on how b can grow, or follows b_t during the run, z_t = scale·√b_t, and is charged to a
    filter until the budget or the number of steps is spent.

    Attributes:
        stepsizes: the rule for b_t; the step sizes are 1/b_{t+1}.
        noises: the plan of the noise that was fixed in advance, or None if it follows b_t.
        steps: T, the largest number of steps.
        clip_norm: C_G.
        dataset_size: n, public.
        batch_size: m, public, expected.
        sampling: "poisson" or "fixed".
        bound: the certified (ε, δ) of the run, wherever it ends.
        scale: z_t/√b_t of noise that follows b_t.
        order: the Rényi order of its filter.
        clipping: "flat" or "automatic"; see `dither.plan`.
        rows_per_user: None where records are protected; else as in a `Plan`.

    Example:
        >>> from dither.planning import plan
        >>> from dither.schedules import AdaGradNorm
        >>> made = plan(epsilon=2.0, delta=1e-5, dataset_size=60_000, batch_size=256, steps=100,
        ...             stepsizes=AdaGradNorm(b0_squared=20.0, nu=0.001), noise="filter")
        >>> made.steps, made.bound.epsilon
        (100, 2.0)
    """

    stepsizes: Reactive
    noises: Plan | None
    steps: int
    clip_norm: float
    dataset_size: int
    batch_size: int
    sampling: str
    bound: PrivacyBound
    scale: float = 0.0
    order: float = 0.0
    clipping: str = "flat"
    rows_per_user: int | None = None

    def __post_init__(self) -> None:
        """Check that the bound belongs to this plan, also after ``dataclasses.replace``."""
        validate.clipping(clip_norm=self.clip_norm, clipping=self.clipping)
        if self.rows_per_user is not None:
            validate.count(rows_per_user=self.rows_per_user)
        object.__setattr__(self, "bound", replace(self.bound, unit=self.unit))
        is_unsafe = isinstance(self.stepsizes, UnsafeRawAdaGradNorm)
        same_adjacency = self.bound.adjacency == adjacency_of(self.sampling)
        if not same_adjacency or (is_unsafe and math.isfinite(self.bound.epsilon)):
            raise validate.InvalidValueError(
                "bound must be of the plan's own step sizes and sampling: make a new plan with "
                "dither.plan"
            )
        if self.noises is None:
            return
        sizes, fixed = (self.dataset_size, self.batch_size, self.sampling), self.noises
        same_sizes = sizes == (fixed.dataset_size, fixed.batch_size, fixed.sampling)
        noise_bound = replace(fixed.bound, unit=self.unit)
        if not same_sizes or (self.bound.is_upper_bound and self.bound != noise_bound):
            raise validate.InvalidValueError(
                "noises must be accounted with the plan's own sizes, sampling and bound: make a "
                "new plan with dither.plan"
            )

    @property
    def sample_rate(self) -> float:
        """The sampling rate, q = m/n."""
        return self.batch_size / self.dataset_size

    @property
    def unit(self) -> str:
        """What is sampled, clipped and protected: "record" or "user"."""
        return unit_of(self.rows_per_user)

    def for_users(self, rows_per_user: int) -> "ReactivePlan":
        """Return the plan for users instead of records, as `Plan.for_users` does."""
        return replace(self, rows_per_user=rows_per_user)

    @property
    def bands(self) -> int:
        """The number of steps in a cycle: 1, as noise that reacts is not correlated."""
        return 1

    def charge_of(self, step: int, noise_multiplier: float) -> tuple[int, float]:
        """Return the number and the noise of a step's charge: its own."""
        return step, noise_multiplier

    @property
    def charge_rate(self) -> float:
        """The sampling rate at which steps are accounted, q."""
        return self.sample_rate

    @property
    def charge_sampling(self) -> str:
        """The sampling as which steps are accounted: the plan's."""
        return self.sampling

    @property
    def charges(self) -> FloatArray:
        """The smallest noise multiplier that each step may have, known before the first.

        b_t² is at least b_0² + ν·t. More noise than this, chosen during the run, reveals no more:
        it is this noise, and some more that does not depend on the data. Raw rules have none that
        counts.
        """
        if isinstance(self.stepsizes, UnsafeRawAdaGradNorm):
            return np.zeros(self.steps)
        if self.noises is not None:
            return self.noises.noise_multipliers
        rule, t = self.stepsizes, np.arange(self.steps)
        return np.asarray(self.scale * np.sqrt(np.sqrt(rule.b0_squared + rule.nu * t)))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that matters; the same for equal plans on every machine."""
        fields = {key: to_json_value(value) for key, value in asdict(self.bound).items()}
        rest = (self.steps, self.dataset_size, self.batch_size, self.sampling, self.order)
        fixed = None if self.noises is None else self.noises.fingerprint
        numbers = [to_json_value(self.clip_norm), self.scale, *rest]
        if self.clipping != "flat":
            numbers.append(self.clipping)
        if self.rows_per_user is not None:
            numbers.append(self.rows_per_user)
        return fingerprint_of(
            {"rule": repr(self.stepsizes), "noise": fixed, "of": numbers, **fields}
        )

    def new_state(self) -> "ReactivePlanState":
        """Return the state of a new run along this plan."""
        return ReactivePlanState(self)

    def new_filter(self) -> Filter | None:
        """Return a filter with the full budget, for noise that follows b_t."""
        if self.noises is not None:
            return None
        epsilon, delta = self.bound.epsilon, self.bound.delta
        return Filter(epsilon, delta, orders=[self.order], sampling=self.sampling)

    def __str__(self) -> str:
        noise = "follows b_t" if self.noises is None else "fixed in advance"
        privacy = str(self.bound)
        if isinstance(self.stepsizes, UnsafeRawAdaGradNorm):
            privacy = (
                "UNSAFE: the step sizes follow the raw gradients' norms, which no noise protects; "
                "nothing is claimed, ε = ∞"
            )
        return (
            f"up to {self.steps:,} steps, {sizes_text(self)}\n"
            f"step size   1/b_t, {self.stepsizes}\n"
            f"noise z     {noise}\n"
            f"privacy     {privacy}\n"
            f"fingerprint {self.fingerprint[:16]}"
        )


@final
class ReactivePlanState:
    """The state of a run along a `ReactivePlan`.

    The step sizes follow the releases, and the noise may too: then every step is charged to a
    filter.
    """

    def __init__(self, plan: ReactivePlan) -> None:
        self._plan, self._rule = plan, plan.stepsizes
        self._filter = plan.new_filter()
        self._growth: Growth = self._rule.start()
        self._spent: list[float] = []

    @property
    def steps(self) -> int:
        """How many steps were spent."""
        return len(self._spent)

    @property
    def noise_multiplier(self) -> float | None:
        """z_t from b_t, while the filter admits it; or as it was fixed."""
        plan = self._plan
        if self.steps >= plan.steps:
            return None
        if plan.noises is not None:
            return float(plan.noises.noise_multipliers[self.steps])
        z = plan.scale * self._growth.b**0.5
        admitted = self._filter is not None and self._filter.admits(z, plan.sample_rate)
        return z if admitted else None

    def spend(self) -> None:
        """Charge the step, to the filter if there is one."""
        z = self.noise_multiplier
        if z is None:
            raise BudgetExceededError("there is no next step: the budget or the plan is at its end")
        if self._filter is not None:
            self._filter.charge(z, self._plan.sample_rate)
        self._spent.append(z)

    def stepsize(self, released: Released, raw_squared_norm: Callable[[], float]) -> float:
        """Let b grow by the release, and return 1/b_{t+1}."""
        if isinstance(self._rule, UnsafeRawAdaGradNorm):
            self._growth = self._rule.after(self._growth, raw_squared_norm(), 0.0)
        else:
            noise = released.dimension * released.noise**2
            self._growth = self._rule.after(self._growth, released.squared_norm(), noise)
        return 1.0 / self._growth.b

    def bound(self) -> PrivacyBound:
        """Return the claim of the full run; where noise was fixed, what it has cost so far."""
        bound, noises = self._plan.bound, self._plan.noises
        if noises is None or not bound.is_upper_bound or self.steps == noises.steps:
            return bound
        return SpentSoFar.of(bound, noises.spent(self.steps))

    def state_dict(self) -> dict[str, Any]:
        """Return how far b has grown, and the noise multipliers of the steps that were spent."""
        grown = [self._growth.steps, self._growth.b_squared, self._growth.total]
        return {"growth": grown, "spent": list(self._spent)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state: a new filter is charged for every step before anything changes."""
        steps, b_squared, total = state["growth"]
        spent, plan = [float(z) for z in state["spent"]], self._plan
        planned = None if plan.noises is None else plan.noises.noise_multipliers[: len(spent)]
        if (
            not steps <= len(spent) <= plan.steps
            or spent[: self.steps] != self._spent
            or (planned is not None and spent != planned.tolist())
        ):
            raise validate.InvalidValueError(
                f"state must be a later one of the same run, got one of {len(spent)} steps"
            )
        budget = plan.new_filter()
        for z in spent:
            if budget is not None:
                budget.charge(z, plan.sample_rate)
        self._filter, self._spent = budget, spent
        self._growth = Growth(int(steps), float(b_squared), float(total))


def with_fixed_noise(rule: Reactive, noises: Plan) -> ReactivePlan:
    """Return the plan whose noise is that of another, and whose step sizes react."""
    bound = noises.bound
    if isinstance(rule, UnsafeRawAdaGradNorm):
        # The step sizes reveal the raw gradients' norms, which no noise protects.
        bound = replace(bound, epsilon=math.inf, lower=None, is_upper_bound=False)
    return ReactivePlan(
        rule,
        noises,
        noises.steps,
        noises.clip_norm,
        noises.dataset_size,
        noises.batch_size,
        noises.sampling,
        bound,
        clipping=noises.clipping,
    )


def with_filter(rule: Reactive, shape: Plan, budget: Budget) -> ReactivePlan:
    """Return the plan whose noise follows b_t: it fits T steps if b_t grows as slowly as it can."""
    if isinstance(rule, UnsafeRawAdaGradNorm):
        raise validate.InvalidValueError(
            "noise must be fixed in advance for UnsafeRawAdaGradNorm, got 'filter': noise that "
            "follows raw gradients is not covered by any filter"
        )
    if budget.accountant is not None:
        raise validate.InvalidValueError(
            f"accountant must be None with noise='filter', got {budget.accountant!r}"
        )
    T, q = shape.steps, shape.sample_rate
    given, sampling = (budget.epsilon, budget.delta), budget.sampling
    order = order_for(*given, steps=T, sample_rate=q, sampling=sampling)
    full = Filter(*given, orders=[order], sampling=sampling)
    return ReactivePlan(
        rule,
        None,
        T,
        shape.clip_norm,
        shape.dataset_size,
        shape.batch_size,
        sampling,
        full.bound,
        scale=_scale(full, np.sqrt(np.sqrt(rule.b0_squared + rule.nu * np.arange(T))), q),
        order=order,
        clipping=shape.clipping,
    )


def _scale(full: Filter, alphas: FloatArray, q: float) -> float:
    """Return the factor with which noise of this shape spends the filter's budget, or just less.

    Neighbouring steps are taken for equal here, as the one of them that costs most; the filter
    itself decides in the end.
    """
    from scipy.optimize import brentq

    groups = [group for group in np.array_split(alphas, _GROUPS) if group.size]

    def excess(log_scale: float) -> float:
        costs = [full.cost(math.exp(log_scale) * group.min(), q)[0] for group in groups]
        spent = sum(cost * group.size for cost, group in zip(costs, groups, strict=True))
        return math.log(spent / full.budgets[0])

    uniform = full.affordable(q, steps=alphas.size)
    least = math.log(least_noise(full.sampling) * (1.0 + 1e-12) / alphas.min())
    low, high = math.log(uniform / alphas.max()), math.log(uniform / alphas.min()) + 1e-6
    if least > low and excess(least) <= 0.0:
        raise validate.InvalidValueError(
            f"epsilon must be smaller for noise that can be accounted, got {full.epsilon!r}"
        )
    low = max(low, least)
    if excess(low) > 0.0:
        low = brentq(excess, low, high, xtol=1e-9) if excess(high) < 0.0 else high
    return math.exp(low + 1e-7)
