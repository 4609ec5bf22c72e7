"""What an accountant can prove of a number: it lies between two others."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bracket:
    """A certified upper and lower bound of the same quantity."""

    upper: float
    lower: float
