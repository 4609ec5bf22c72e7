"""Random numbers of model and data (dropout, augmentation), apart from the noise.

With the global generators and a known seed, one record more would shift the dropout masks and the
augmentation of all others, and an attacker who knows the seed would know both. So every step has
its own generators, keyed by the operating system, or by the seed of a seeded run; the caller's are
not touched.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.random import mtrand

from dither.randomness import Source


class ModelRandomness:
    """The generators of torch, NumPy and Python as model and data see them during a step.

    Args:
        source: opens a stream for every step.
        rank: of this process.
    """

    def __init__(self, source: Source, rank: int) -> None:
        self._source, self._rank = source, rank
        self._states: list[torch.Tensor] = []
        self._python = random.Random().getstate()  # noqa: S311 (no noise is drawn from it)
        self._numpy: np.random.BitGenerator = np.random.MT19937()

    def begin(self, purpose: str, step: int) -> None:
        """Start the generators for one purpose of a step: its data, or the model."""
        words = self._source.stream(f"{purpose} on rank {self._rank}", step).words(9)
        seed, keys = int(words[0]), words[1:]
        devices = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
        self._states = [torch.Generator(each).manual_seed(seed).get_state() for each in devices]
        self._python = random.Random(keys[:4].tobytes()).getstate()  # noqa: S311
        with self._numpy_generator():
            np.random.seed(keys[4:].view(np.uint32))  # noqa: NPY002 (models draw from it)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Draw from the step's generators inside the ``with``."""
        outside = _states(), random.getstate()
        _set(self._states)
        random.setstate(self._python)
        try:
            with self._numpy_generator():
                yield
        finally:
            self._states, self._python = _states(), random.getstate()
            _set(outside[0])
            random.setstate(outside[1])

    @contextmanager
    def _numpy_generator(self) -> Iterator[None]:
        """Put a generator of our own in the place of NumPy's global one, which is quick."""
        outside = mtrand.get_bit_generator()
        mtrand.set_bit_generator(self._numpy)
        try:
            yield
        finally:
            mtrand.set_bit_generator(outside)


def _states() -> list[torch.Tensor]:
    return [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]


def _set(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    for device, state in enumerate(states[1:]):
        torch.cuda.set_rng_state(state, device)
