"""Rounding towards privacy."""


def upward(value: float) -> float:
    """Return slightly more: 64 units in the last place cover the rounding of a short formula.

    Every ε, δ and σ of this room passes through here, so that floating point never makes a claim
    smaller, or a noise weaker, than the formula it stands for.
    """
    return value * (1.0 + 2.0**-46)
