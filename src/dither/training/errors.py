"""Errors of private training."""


class StepError(RuntimeError):
    """A step was refused before anything was released; the message explains why."""


class RankZeroError(StepError):
    """Rank 0 of a process group has raised an error, which the message repeats."""


class RankLostError(RuntimeError):
    """The other ranks of a process group cannot be reached; what was spent stays spent."""
