"""What goes wrong between a loop and its plan."""


class StepError(RuntimeError):
    """A step was refused, and nothing was released: the message says why and what to do."""


class RankZeroError(StepError):
    """Rank 0 of a process group has refused something, and says why."""


class RankLostError(RuntimeError):
    """The other ranks of a process group cannot be reached; what was spent stays spent."""
