"""Plans for step sizes that react: the budget and the rules are frozen, the numbers follow."""

import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import numpy as np
from scipy.optimize import brentq

from dither import validate
from dither.accounting.filter import Filter, order_for
from dither.accounting.pld import least_noise
from dither.planning.fixed_plan import Plan
from dither.planning.reactive_state import ReactivePlanState
from dither.planning.written import hashed, written
from dither.schedules.reactive import Reactive, UnsafeRawAdaGradNorm
from dither.types import Budget, FloatArray, PrivacyBound

_GROUPS = 24


@dataclass(frozen=True)
class ReactivePlan:
    """A budget, a rule for the step sizes and a rule for the noise, fixed before the first step.

    Made by `plan` for step sizes such as ``AdaGradNorm``. The noise is either fixed in advance from
    a bound on how b can grow, or follows b_t on the way, z_t = scale·√b_t, and is paid from a
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

    @property
    def sample_rate(self) -> float:
        """The sampling rate, q = m/n."""
        return self.batch_size / self.dataset_size

    @property
    def least_noise(self) -> FloatArray:
        """The smallest noise multiplier that each step may have, known before the first.

        b_t² is at least b_0² + ν·t. More noise than this, chosen on the way, tells no more: it is
        this noise, and some more that does not look at the data. Raw rules have none that counts.
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
        fields = {key: written(value) for key, value in asdict(self.bound).items()}
        rest = (self.steps, self.dataset_size, self.batch_size, self.sampling, self.order)
        fixed = None if self.noises is None else self.noises.fingerprint
        numbers = [written(self.clip_norm), self.scale, *rest]
        return hashed({"rule": repr(self.stepsizes), "noise": fixed, "of": numbers, **fields})

    def new_state(self) -> ReactivePlanState:
        """Return a new run along this plan."""

        def new_budget() -> Filter | None:
            if self.noises is not None:
                return None
            given = self.bound.epsilon, self.bound.delta
            return Filter(*given, orders=[self.order], sampling=self.sampling)

        return ReactivePlanState(
            self.stepsizes,
            self.bound,
            noises=self.noises,
            new_budget=new_budget,
            scale=self.scale,
            steps=self.steps,
            sample_rate=self.sample_rate,
        )

    def __str__(self) -> str:
        noise = "follows b_t" if self.noises is None else "fixed in advance"
        privacy = str(self.bound)
        if isinstance(self.stepsizes, UnsafeRawAdaGradNorm):
            privacy = (
                "UNSAFE: the step sizes follow the raw gradients' norms, which no noise protects; "
                "nothing is claimed, ε = ∞"
            )
        return (
            f"up to {self.steps:,} steps, {self.sampling} sampling of m = {self.batch_size:,} out "
            f"of n = {self.dataset_size:,} (q = {self.sample_rate:.6g}), "
            f"clip norm {self.clip_norm:g}\n"
            f"step size   1/b_t, {self.stepsizes}\n"
            f"noise z     {noise}\n"
            f"privacy     {privacy}\n"
            f"fingerprint {self.fingerprint[:16]}"
        )


def with_fixed_noise(rule: Reactive, noises: Plan) -> ReactivePlan:
    """Return the plan whose noise is that of another, and whose step sizes react."""
    bound = noises.bound
    if isinstance(rule, UnsafeRawAdaGradNorm):
        # The step sizes tell the raw gradients' norms, which no noise protects.
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
    paying = Filter(*given, orders=[order], sampling=sampling)
    return ReactivePlan(
        rule,
        None,
        T,
        shape.clip_norm,
        shape.dataset_size,
        shape.batch_size,
        sampling,
        paying.bound,
        scale=_scale(paying, np.sqrt(np.sqrt(rule.b0_squared + rule.nu * np.arange(T))), q),
        order=order,
    )


def _scale(paying: Filter, alphas: FloatArray, q: float) -> float:
    """Return the factor with which noise of this shape spends the filter's budget, or just less.

    Neighbouring steps are taken for equal here, as the one of them that costs most; the filter
    itself decides in the end.
    """
    groups = [group for group in np.array_split(alphas, _GROUPS) if group.size]

    def excess(log_scale: float) -> float:
        costs = [paying.cost(math.exp(log_scale) * group.min(), q)[0] for group in groups]
        spent = sum(cost * group.size for cost, group in zip(costs, groups, strict=True))
        return math.log(spent / paying.budgets[0])

    uniform = paying.affordable(q, steps=alphas.size)
    least = math.log(least_noise(paying.sampling) * (1.0 + 1e-12) / alphas.min())
    low, high = math.log(uniform / alphas.max()), math.log(uniform / alphas.min()) + 1e-6
    if least > low and excess(least) <= 0.0:
        raise validate.InvalidValueError(
            f"epsilon must be less for noise that can be counted, got {paying.epsilon!r}"
        )
    low = max(low, least)
    if excess(low) > 0.0:
        low = brentq(excess, low, high, xtol=1e-9) if excess(high) < 0.0 else high
    return math.exp(low + 1e-7)
