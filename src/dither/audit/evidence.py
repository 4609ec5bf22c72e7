"""What an attacker has learnt: one score a canary, for the question whether it was in the data."""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

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
        is_independent: whether the scores of different canaries are.
    """

    included: Coins
    white_box: FloatArray
    final: FloatArray
    is_independent: bool


def fair_coins(count: int, seed: int | None) -> Coins:
    """Return that many fair coins."""
    return Source(seed).stream("coins", 0).bytes(count) < 128


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
