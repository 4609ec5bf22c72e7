"""Random numbers of the model (dropout, augmentation), apart from the noise.

With torch's global generator and a known seed, one record more would shift the dropout masks of all
others, and an attacker who knows the seed would know both. So every step has its own generator,
keyed by the operating system, or by the seed of a seeded run; the caller's are not touched.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dither.randomness import Source


class ModelRandomness:
    """The generators of torch as a model sees them during a step.

    Args:
        source: opens a stream for every step.
        rank: of this process.
    """

    def __init__(self, source: Source, rank: int) -> None:
        self._source, self._rank = source, rank
        self._states: list[torch.Tensor] = []

    def begin(self, purpose: str, step: int) -> None:
        """Start the generators for one purpose of a step: its data, or the model."""
        stream = self._source.stream(f"{purpose} on rank {self._rank}", step)
        seed = int(stream.words(1)[0])
        devices = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
        self._states = [torch.Generator(each).manual_seed(seed).get_state() for each in devices]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Draw from the step's generators inside the ``with``."""
        outside = _states()
        _set(self._states)
        try:
            yield
        finally:
            self._states = _states()
            _set(outside)


def _states() -> list[torch.Tensor]:
    return [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]


def _set(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    for device, state in enumerate(states[1:]):
        torch.cuda.set_rng_state(state, device)
