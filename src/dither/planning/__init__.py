"""Everything that decides a run's privacy, in one frozen plan; calibration ends here.

`plan` makes a `Plan`: step sizes and noise of every step, fixed before the first. For step sizes
that react to what is released it makes a `ReactivePlan`. Either gives a `Course`, along which one
run walks.
"""

from dither.planning.course import Course
from dither.planning.fixed_plan import Plan
from dither.planning.planner import plan
from dither.planning.reactive_plan import ReactivePlan

__all__ = ["Course", "Plan", "ReactivePlan", "plan"]
