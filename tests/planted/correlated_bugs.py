"""Mistakes planted into correlated noise and its sampling."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.planted.bug import AUDIT, Bug
from torch import Tensor

from dither import Plan
from dither.noise.correlated import column_norms
from dither.randomness import Stream
from dither.release import Ring, add_noise
from dither.sampling import Cyclic

Patch = pytest.MonkeyPatch


def correlated() -> Plan:
    return Plan.from_noise_multipliers(
        [2.0] * 8, delta=1e-5, dataset_size=8_000, batch_size=4_000, correlation=[1.0, 0.9]
    )


def half_of_the_noise(patch: Patch) -> None:
    def wrong(
        sums: list[Tensor], scale: float, divisor: int, stream: Stream, ring: Ring | None
    ) -> list[Tensor]:
        return add_noise(sums, scale if ring is None else 0.5 * scale, divisor, stream, ring)

    patch.setattr("dither.release.add_noise", wrong)


def noise_without_the_column_norms(patch: Patch) -> None:
    right = Ring.begin_step

    def wrong(self: Ring, step: int, layout: Sequence[tuple[str, int]]) -> float:
        right(self, step, layout)
        return 1.0

    patch.setattr(Ring, "begin_step", wrong)


def subsets_by_index(patch: Patch) -> None:
    def wrong(self: Stream, limit: int, count: int) -> NDArray[np.int64]:
        return np.arange(count) % limit

    patch.setattr(Stream, "below", wrong)


def new_subsets_in_every_cycle(patch: Patch) -> None:
    right: Any = Cyclic.draw

    def wrong(self: Any, length: int, stream: Stream, step: int = 0) -> NDArray[np.int64]:
        bands = len(self._subsets)
        if step % bands == 0:
            Cyclic.__init__(self, self._poisson.sample_rate / bands, bands, length, stream)
        return np.asarray(right(self, length, stream, step))

    patch.setattr(Cyclic, "draw", wrong)


def a_band_too_many(patch: Patch) -> None:
    def wrong(cls: type[Ring], plan: Plan) -> Ring | None:
        if plan.correlation is None:
            return None
        longer = (*plan.correlation, plan.correlation[-1])
        return cls(longer, column_norms(longer, plan.steps))

    patch.setattr(Ring, "of", classmethod(wrong))


def a_ring_that_pauses(patch: Patch) -> None:
    """In every third step the ring is read but not advanced."""
    right, kept = Ring.begin_step, list[Tensor]()

    def wrong(self: Ring, step: int, layout: Sequence[tuple[str, int]]) -> float:
        if kept and len(kept) % 3 == 0:
            self._past = kept[-1].roll(1, 0)  # the place of a vector follows from its step
        norm = right(self, step, layout)
        kept.append(self._past.clone())
        return norm

    patch.setattr(Ring, "begin_step", wrong)


def a_vector_used_twice(patch: Patch) -> None:
    """The latest vector stands in all places of the ring."""
    right = Ring.correlate

    def wrong(self: Ring, normals: Tensor) -> Tensor:
        start = self._start
        u = right(self, normals)
        self._past[:, start : self._start] = u
        return u

    patch.setattr(Ring, "correlate", wrong)


KNOWN = (
    "tests/audit/test_correlated.py::"
    "test_an_attacker_who_knows_the_subsets_gains_no_more_than_is_claimed"
)
CORRELATED_BUGS = (
    Bug("half of the noise, where it is correlated", half_of_the_noise, AUDIT, correlated),
    Bug(
        "correlated noise without the norms of its columns",
        noise_without_the_column_norms,
        KNOWN,
    ),
    Bug(
        "subsets that follow from the index",
        subsets_by_index,
        "tests/audit/test_correlated.py::"
        "test_one_record_tells_nothing_about_the_subsets_of_the_others",
    ),
    Bug("new subsets in every cycle", new_subsets_in_every_cycle, KNOWN),
    Bug("a band more than there are subsets", a_band_too_many, KNOWN),
    Bug("a ring that pauses", a_ring_that_pauses, KNOWN),
    Bug("a vector of the ring that is used twice", a_vector_used_twice, KNOWN),
)
