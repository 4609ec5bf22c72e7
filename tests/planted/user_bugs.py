"""Mistakes planted into the protection of users: whose rows are drawn and clipped together."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.planted.bug import AUDIT, Bug
from torch import Tensor

from dither import Plan
from dither.clipping.engine import clip_recording
from dither.training.private import Private
from dither.training.users import Users

Patch = pytest.MonkeyPatch


def users() -> Plan:
    return Plan.from_noise_multipliers(
        [2.0] * 10, delta=1e-5, dataset_size=8_000, batch_size=2_000
    ).for_users(4)


def rows_clipped_one_by_one(patch: Patch) -> None:
    """The sum of the clipped gradients of rows."""

    def wrong(recording: Any, losses: Tensor, clip: Any, rows: object, weights: object) -> Any:
        return clip_recording(recording, losses, clip)

    patch.setattr("dither.training.private.clip_recording", wrong)


def rows_drawn_one_by_one(patch: Patch) -> None:
    """Every row is a user of its own."""
    right = Users.of

    def wrong(ids: Any, **settings: Any) -> Users:
        return right([None] * len(ids), **{**settings, "missing": "own"})

    patch.setattr(Users, "of", wrong)


def users_cut_by_microbatches(patch: Patch) -> None:
    """A user's rows are in two microbatches, and clipped apart."""
    right = Private._ready_step

    def wrong(rows: Tensor, size: int) -> Iterator[Tensor]:
        parts = torch.stack([rows // 2, rows - rows // 2], 1).flatten()
        yield from parts.split(2 * (size // 8) + 1)

    def counted(self: Private) -> Any:
        if self._step is not None and self._step.received:
            self._step.received = len(self._step.rows)
        return right(self)

    patch.setattr("dither.training.private.split_rows", wrong)
    patch.setattr(Private, "_ready_step", counted)


def users_listed_twice(patch: Patch) -> None:
    right = Users.of

    def wrong(ids: Any, **settings: Any) -> Users:
        found = right(ids, **settings)
        rows = np.concatenate([found.rows, found.rows])
        ends = np.concatenate([found.ends, found.ends + found.rows.size])
        return Users(rows, ends, found.rows_per_user, found.names)

    patch.setattr(Users, "of", wrong)


def microbatches_of_so_many_rows(patch: Patch) -> None:
    """The user at the end of a microbatch is cut in two."""
    right = Private._ready_step

    def wrong(rows: Tensor, size: int) -> Iterator[Tensor]:
        owners = torch.arange(len(rows)).repeat_interleave(rows)
        yield from (part.unique(return_counts=True)[1] for part in owners.split(size))

    def counted(self: Private) -> Any:
        if self._step is not None and self._step.received:
            self._step.received = len(self._step.rows)
        return right(self)

    patch.setattr("dither.training.private.split_rows", wrong)
    patch.setattr(Private, "_ready_step", counted)


def spaces_that_make_users(patch: Patch) -> None:
    """An id with a space is another user."""
    patch.setattr(
        "dither.training.users._text", lambda value: None if value is None else f"{value}"
    )


def rows_drawn_with_replacement(patch: Patch) -> None:
    def wrong(sizes: Any, count: int, stream: Any) -> Any:
        drawn = [stream.words(sizes.size) % sizes.astype(np.uint64) for _ in range(count)]
        return np.stack(drawn, axis=1).astype(np.int64)

    patch.setattr("dither.training.users._subsets", wrong)


def sums_of_rows(patch: Patch) -> None:
    """The sum of a user's gradients is clipped, so that users with many rows count for more."""

    def wrong(recording: Any, losses: Tensor, clip: Any, rows: Tensor, weights: Any) -> Any:
        counts = rows.repeat_interleave(rows).to(losses)
        with torch.enable_grad():
            losses = losses * counts
        return clip_recording(recording, losses, clip, rows, weights)

    patch.setattr("dither.training.private.clip_recording", wrong)


TESTS, SUMS = "tests/training/test_users.py::", "tests/training/test_user_sums.py::"
AUDITED = (
    Bug("a user's rows that are clipped one by one", rows_clipped_one_by_one, AUDIT, users),
    Bug("a user's rows that are drawn one by one", rows_drawn_one_by_one, AUDIT, users),
    Bug("a user's rows that are clipped in two parts", users_cut_by_microbatches, AUDIT, users),
    Bug("users that are listed twice", users_listed_twice, AUDIT, users),
)
USER_BUGS = (
    *AUDITED,
    Bug(
        "microbatches that cut a user in two",
        microbatches_of_so_many_rows,
        f"{SUMS}test_microbatches_keep_the_rows_of_a_user_together",
    ),
    Bug(
        "ids that differ by a space",
        spaces_that_make_users,
        f"{TESTS}test_ids_are_compared_as_text",
    ),
    Bug(
        "a user's rows that are drawn with replacement",
        rows_drawn_with_replacement,
        f"{TESTS}test_rows_of_a_draw_are_different_and_few_enough",
    ),
    Bug(
        "users that count by their rows",
        sums_of_rows,
        f"{SUMS}test_the_sum_is_that_of_a_loop_over_users[linear]",
    ),
)
