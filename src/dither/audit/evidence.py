"""What an attacker has learnt: one score a canary, for the question whether it was in the data."""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dither import validate
from dither.randomness import Source
from dither.types import FloatArray

Coins = NDArray[np.bool_]
_LARGEST = 700.0  # whose exponential is a float


@final
@dataclass(frozen=True)
class Scores:
    """Two attackers' scores; the higher, the more it looks as if the canary was in the data.

    Attributes:
        included: the coins.
        white_box: the log likelihood ratio of all releases along the canary.
        final: how far the final model has moved along the canary; a step of size 1 in which the
            canary took part moves it by 1.
        independent: which attackers' scores of different canaries are independent.
    """

    included: Coins
    white_box: FloatArray
    final: FloatArray
    independent: tuple[str, ...]

    def of(self, attack: str) -> FloatArray:
        """Return the scores of one attacker."""
        return self.final if attack == "final-model" else self.white_box


def numbers(**argument: object) -> FloatArray:
    """Return an argument as floats, none of them NaN; tensors are taken too."""
    ((name, value),) = argument.items()
    if isinstance(value, Tensor):
        value = value.detach().cpu().double().numpy()
    return validate.numbers(**{name: value})


def coins_of(included: ArrayLike) -> Coins:
    """Return coins that were given as true and false, or as ones and zeros."""
    found = numbers(included=included)
    if not np.isin(found, (0.0, 1.0)).all():
        raise validate.InvalidValueError(
            "included must be true or false for every canary, got other numbers too"
        )
    return found.astype(np.bool_)


def fair_coins(count: int, seed: int | None) -> Coins:
    """Return that many fair coins."""
    return Source(seed).stream("coins", 0).bytes(count) < 128


def signs_of(included: Coins, *, replaced: bool) -> FloatArray:
    """Return where each canary moves a release that it is drawn for: by 1, by 0, or by −1."""
    return np.where(included, 1.0, -1.0 if replaced else 0.0)


def log_likelihood_ratio(
    x: FloatArray, z: float | FloatArray, sample_rate: float, *, replaced: bool
) -> FloatArray:
    """Return log(p_in/p_out) of one step's release along a canary's direction, in clip norms.

    A canary that is in is drawn with probability q, and then moves the release by 1. One that is
    out does nothing, or, if it is *replaced* by its opposite, moves it by −1.
    """
    here = _log_mixture(x, z, sample_rate)
    return here - _log_mixture(-x, z, sample_rate) if replaced else here


def _log_mixture(x: FloatArray, z: float | FloatArray, q: float) -> FloatArray:
    """Return log(1 − q + q·e^((2x−1)/2z²)), the density of a drawn canary over that of noise."""
    drawn = (x - 0.5) / np.square(z)
    if q == 1.0:
        return np.asarray(drawn)
    return np.asarray(np.log((1.0 - q) + q * np.exp(np.minimum(drawn, _LARGEST))))
