"""Where a run is on a plan whose noise was decided beforehand."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np

from dither import validate
from dither.accounting.calibration import quick_epsilon
from dither.types import PrivacyBound, Released, SpentSoFar

if TYPE_CHECKING:
    from dither.planning.fixed_plan import Plan


@final
class FixedPlanState:
    """The state of a run along a `Plan`: all but the factor of a search was decided beforehand."""

    def __init__(self, plan: "Plan") -> None:
        self._plan = plan
        self.steps = 0
        self.factor: float | None = None

    def choose(self, factor: float) -> None:
        """Multiply the step sizes of the rest by a factor, which the plan's search has chosen."""
        known = () if self._plan.search is None else self._plan.search.factors
        if factor not in known:
            raise validate.InvalidValueError(f"factor must be one of {known}, got {factor!r}")
        self.factor = factor

    @property
    def noise_multiplier(self) -> float | None:
        """z_t of the plan."""
        z = self._plan.noise_multipliers
        return float(z[self.steps]) if self.steps < z.size else None

    def spend(self) -> None:
        """Count the step."""
        self.steps += 1

    def stepsize(self, released: Released, raw_squared_norm: Callable[[], float]) -> float:
        """Return η_t of the plan, times the factor that its search has chosen."""
        return float(self._plan.stepsizes[self.steps - 1]) * (self.factor or 1.0)

    def bound(self) -> PrivacyBound:
        """Return ε of the steps so far, as if their number had been fixed beforehand."""
        if self.steps == self._plan.steps:
            return self._plan.bound
        return SpentSoFar.of(self._plan.bound, self._plan.spent(self.steps))

    def state_dict(self) -> dict[str, Any]:
        """Return the plan's charges for the steps that were spent, and the factor if any."""
        chosen = {} if self.factor is None else {"factor": self.factor}
        charged = -(-self.steps // self._plan.bands)
        return {"spent": self._plan.charges[:charged].tolist(), **chosen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume after the steps that were spent, in whole cycles, which are the plan's own."""
        spent = state["spent"]
        if list(spent) != self._plan.charges[: len(spent)].tolist():
            raise validate.InvalidValueError(
                f"state must be a later one of the same run, got one of {len(spent)} other steps"
            )
        if "factor" in state:
            self.choose(state["factor"])
        self.steps = min(len(spent) * self._plan.bands, self._plan.steps)


def prefix_costs(plan: "Plan") -> dict[int, float]:
    """Return ε after some thirty numbers of steps, 0 and all steps among them."""
    T = plan.steps
    linear, early = np.linspace(1, T, 21), np.geomspace(1, T, 9)
    knots = np.unique(np.concatenate([linear, early]).round().astype(int))
    curve, least = {0: 0.0, T: plan.bound.epsilon}, plan.bound.epsilon
    for knot in knots[-2::-1]:
        prefix = quick_epsilon(
            plan.charges[: -(-knot // plan.bands)],
            sample_rate=plan.charge_rate,
            delta=plan.delta,
            sampling=plan.charge_sampling,
            accountant=plan.accountant,
            rough=True,
        )
        # A prefix costs no more than what it is a prefix of.
        least = min(least, prefix)
        curve[int(knot)] = least
    return dict(sorted(curve.items()))
