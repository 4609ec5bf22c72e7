"""The dice of a model and of its views, which are none of the noise: dropout, random crops."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def dice(seed: int | None, step: int) -> Iterator[None]:
    """Let a seeded run throw torch's dice the same way at the same step; others as they come."""
    if seed is None:
        yield
        return
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices=list(devices)):
        text = hashlib.sha256(f"{seed} {step}".encode()).digest()
        torch.manual_seed(int.from_bytes(text[:8], "little") % 2**63)
        yield
