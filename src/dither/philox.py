"""Standard normals drawn on an accelerator: Philox-4x64-10 of Salmon et al. (2011).

A cipher of the processor would have to send every number to the accelerator. Philox is a function
of a key of 128 bits and a counter of 256, made of products of integers, and passes every
statistical test that was tried on it. It is **not** a cryptographic generator: nobody is known to
have predicted it, and nothing proves that nobody can.

A release has a key of its own, from the operating system, and counts its blocks of four words from
0 on: no pair of key and counter is used twice. Words become normals by the method of Box and
Muller: a radius from a 63-bit uniform, which reaches 9.3 standard deviations, and an angle from a
64-bit one.
"""

import math
from typing import final

import torch
from torch import Tensor

from dither.randomness import Stream

_ROUNDS = 10
_MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_LOW = 2**32 - 1
_Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: _Words, key: tuple[int, int]) -> _Words:
    """Return four words for each counter, all of them 64 bits in int64.

    Args:
        counter: its four words, the lowest first.
        key: its two words, the lowest first, from 0 to 2^64 − 1.

    Example:
        >>> zero = torch.zeros(1, dtype=torch.int64)
        >>> [f"{int(word) % 2**64:016x}" for word in philox((zero, zero, zero, zero), (0, 0))]
        ['16554d9eca36314c', 'db20fe9d672d0fdc', 'd7e772cee186176b', '7e68b68aec7ba23b']
    """
    a, b, c, d = counter
    for turn in range(_ROUNDS):
        first, second = (_signed(word + turn * each) for word, each in zip(key, _WEYL, strict=True))
        one, two = (_signed(each) for each in _MULTIPLIERS)
        a, b, c, d = _high(c, two) ^ b ^ first, c * two, _high(a, one) ^ d ^ second, a * one
    return a, b, c, d


def _signed(word: int) -> int:
    """Return the int64 with the same lowest 64 bits."""
    return (word + 2**63) % 2**64 - 2**63


def _high(words: Tensor, factor: int) -> Tensor:
    """Return the upper 64 bits of products of unsigned words with a constant."""
    low, high = words & _LOW, (words >> 32) & _LOW
    by_low, by_high = factor & _LOW, (factor >> 32) & _LOW
    one, two = high * by_low, low * by_high
    carry = (((low * by_low) >> 32) & _LOW) + (one & _LOW) + (two & _LOW)
    return high * by_high + ((one >> 32) & _LOW) + ((two >> 32) & _LOW) + (carry >> 32)


@final
class DeviceNormals:
    """Standard normals of one release, drawn where they are needed.

    Args:
        stream: gives the key.

    Example:
        >>> from dither.randomness import Source
        >>> DeviceNormals(Source().stream("noise", 0)).draw(5, torch.device("cpu")).shape
        torch.Size([5])
    """

    def __init__(self, stream: Stream) -> None:
        low, high = stream.words(2)
        self._key, self._blocks = (int(low), int(high)), 0

    def draw(self, count: int, device: torch.device) -> Tensor:
        """Return the next normals, in float64."""
        blocks = -(-count // 4)
        counter = torch.arange(self._blocks, self._blocks + blocks, device=device)
        self._blocks += blocks
        zero = torch.zeros_like(counter)
        return _box_muller(philox((counter, zero, zero, zero), self._key))[:count]


def _box_muller(words: _Words) -> Tensor:
    """Return four normals for every four words."""
    sizes, angles = torch.cat(words[:2]).double(), torch.cat(words[2:]).double()
    # |word| + 1/2 is uniform on (0, 2^63), and its logarithm finite.
    radius = sizes.abs_().add_(0.5).mul_(2.0**-63).log_().mul_(-2.0).sqrt_()
    angles.mul_(math.pi * 2.0**-63)
    return torch.cat([angles.cos().mul_(radius), angles.sin_().mul_(radius)])
