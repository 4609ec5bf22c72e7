"""A run whose step sizes follow the releases, and whose noise may too."""

from collections.abc import Callable, Mapping
from typing import Any, final

from dither import validate
from dither.accounting.filter import BudgetExceededError, Filter
from dither.planning.fixed_plan import Plan, so_far
from dither.planning.state import Released
from dither.schedules.reactive import Growth, Reactive, UnsafeRawAdaGradNorm
from dither.types import PrivacyBound


@final
class ReactivePlanState:
    """Along a `ReactivePlan`: the step sizes follow the releases, and the noise may too.

    Args:
        rule: how b grows.
        claim: what is claimed of the run when it has ended, wherever it ends.
        noises: z_0 … z_{T−1} if they were fixed beforehand, and `spent` their cost so far; or
        new_budget: makes a filter that nothing was charged to, with
        scale: z_t = scale·√b_t, and at most
        steps: T of them.
    """

    def __init__(
        self,
        rule: Reactive,
        claim: PrivacyBound,
        *,
        noises: Plan | None = None,
        new_budget: Callable[[], Filter | None] = lambda: None,
        scale: float = 0.0,
        steps: int = 0,
        sample_rate: float = 1.0,
    ) -> None:
        self._rule, self._claim, self._noises = rule, claim, noises
        self._new_budget, self._budget = new_budget, new_budget()
        self._scale, self._limit, self._rate = scale, steps, sample_rate
        self._growth: Growth = rule.start()
        self._paid: list[float] = []

    @property
    def steps(self) -> int:
        """How many steps were paid for."""
        return len(self._paid)

    @property
    def noise_multiplier(self) -> float | None:
        """z_t from b_t, while the filter has room for it; or as it was fixed."""
        if self.steps >= self._limit:
            return None
        if self._noises is not None:
            return float(self._noises.noise_multipliers[self.steps])
        z = self._scale * self._growth.b**0.5
        return z if self._budget is not None and self._budget.admits(z, self._rate) else None

    def spend(self) -> None:
        """Pay for the step, from the filter if there is one."""
        z = self.noise_multiplier
        if z is None:
            raise BudgetExceededError("there is no next step: the budget or the plan is at its end")
        if self._budget is not None:
            self._budget.charge(z, self._rate)
        self._paid.append(z)

    def stepsize(self, released: Released, raw_squared_norm: Callable[[], float]) -> float:
        """Let b grow by the release, and return 1/b_{t+1}."""
        if isinstance(self._rule, UnsafeRawAdaGradNorm):
            self._growth = self._rule.after(self._growth, raw_squared_norm(), 0.0)
        else:
            noise = released.dimension * released.noise**2
            self._growth = self._rule.after(self._growth, released.squared_norm(), noise)
        return 1.0 / self._growth.b

    def bound(self) -> PrivacyBound:
        """Return the claim of the whole run; where noise was fixed, what it has cost so far."""
        if self._noises is None or not self._claim.is_upper_bound:
            return self._claim
        if self.steps == self._noises.steps:
            return self._claim
        return so_far(self._claim, self._noises.spent(self.steps))

    def state_dict(self) -> dict[str, Any]:
        """Return how far b has grown, and the noise that was paid for."""
        grown = [self._growth.steps, self._growth.b_squared, self._growth.total]
        return {"growth": grown, "spent": list(self._paid)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; a new filter is charged for every step, and nothing is half done."""
        steps, b_squared, total = state["growth"]
        paid = [float(z) for z in state["spent"]]
        planned = None if self._noises is None else self._noises.noise_multipliers[: len(paid)]
        if (
            not steps <= len(paid) <= self._limit
            or paid[: self.steps] != self._paid
            or (planned is not None and paid != planned.tolist())
        ):
            raise validate.InvalidValueError(
                f"state must be a later one of the same run, got one of {len(paid)} steps"
            )
        budget = self._new_budget()
        for z in paid:
            if budget is not None:
                budget.charge(z, self._rate)
        self._budget, self._paid = budget, paid
        self._growth = Growth(int(steps), float(b_squared), float(total))
