"""What goes wrong between a loop and its plan."""


class StepError(RuntimeError):
    """A step was refused, and nothing was released: the message says why and what to do."""
