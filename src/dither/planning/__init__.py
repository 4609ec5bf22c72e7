"""Everything that decides a run's privacy, in one frozen plan; calibration ends here.

`plan` makes a `Plan`: step sizes and noise of every step, fixed before the first. For step sizes
that react to what is released it makes a `ReactivePlan`. The `PlanState` of either records where a
run is.
"""

from dither.planning.fixed_plan import Plan
from dither.planning.planner import plan
from dither.planning.reactive_plan import ReactivePlan
from dither.types import PlanState

__all__ = ["Plan", "PlanState", "ReactivePlan", "plan"]
