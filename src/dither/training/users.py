"""Users: whose each row is, and which of a drawn user's rows take part in a step.

Where people have several rows each, the unit of privacy is the user: users are sampled instead of
rows, at most ``rows_per_user`` rows of a drawn user take part, and the mean of their gradients is
clipped as one. Rows belong to one user each; whoever else a row is about is not protected.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dither import validate
from dither.randomness import Stream
from dither.sampling import Indices

ROWS_PER_USER = 8
"""How many rows of a user take part in a step unless it is given: the mean over eight has most of
what the mean over all would have, as the variance within a user falls like one over the rows."""

_NO_USER = {"", "na", "n/a", "<na>", "nan", "nat", "null", "none"}
"""Marks of a missing id, in lower case: rows of many people must not become one user by them."""

_INTEGRAL, _EXACT = re.compile(r"([+-]?\d+)\.0*"), 2.0**53
MISSING = ("drop", "own")
"""What becomes of rows without a user: they are left out, or each is a user of its own."""


@final
@dataclass(frozen=True, eq=False)
class Users:
    """The users of a dataset, and the rows that each has.

    Attributes:
        rows: the indices of the rows, those of a user next to each other.
        ends: where the rows of each user end.
        rows_per_user: the most rows of a user in a step.
        names: the users' ids as text, of those that have one.

    Example:
        >>> users = Users.of(["ann", "bob", "ann", None], rows_per_user=8)
        >>> users.count, users.rows.tolist(), users.ends.tolist()
        (2, [0, 2, 1], [2, 3])
    """

    rows: Indices
    ends: Indices
    rows_per_user: int
    names: NDArray[np.str_]

    @classmethod
    def of(cls, ids: Any, *, rows_per_user: int = ROWS_PER_USER, missing: str = "drop") -> Self:
        """Return the users that rows belong to, by one id per row.

        Ids are compared as text: 7, 7.0, "7" and "7.0" are one user. None, NaN, an empty text and
        usual marks of a missing value, such as "NA" and "null", are no user.

        Args:
            ids: a sequence, array, tensor or column.
            rows_per_user: the most rows of a user in a step.
            missing: "drop" leaves out rows without a user, "own" makes each a user of its own.
        """
        most = validate.count(rows_per_user=rows_per_user)
        validate.choice(MISSING, missing=missing)
        texts = _texts(ids)
        known = np.flatnonzero([text is not None for text in texts])
        names, owners = np.unique(np.array([texts[row] for row in known], str), return_inverse=True)
        if missing == "own":
            own = np.flatnonzero([text is None for text in texts])
            owners = np.concatenate([owners, names.size + np.arange(own.size)])
            known = np.concatenate([known, own])
        if texts and not known.size:
            raise validate.InvalidValueError("users must name the user of at least one row")
        order = np.argsort(owners, kind="stable")
        return cls(known[order], np.cumsum(np.bincount(owners)), most, names)

    @property
    def count(self) -> int:
        """How many users there are."""
        return int(self.ends.size)

    @property
    def takes_all(self) -> bool:
        """Whether all rows of every user that is drawn take part."""
        return bool(self._counts.max(initial=0) <= self.rows_per_user)

    def part(self, rank: int, size: int) -> Self:
        """Return every size-th user, with all of the user's rows."""
        starts = self.ends - self._counts
        kept = slice(rank, None, size)
        parts = [self.rows[i:j] for i, j in zip(starts[kept], self.ends[kept], strict=True)]
        ends = np.cumsum(self._counts[kept])
        rows = np.concatenate([np.zeros(0, np.int64), *parts])
        return type(self)(rows, ends, self.rows_per_user, self.names)

    def by_count(self) -> Self:
        """Return the users in the order of how many rows they have, those with few rows first.

        Example:
            >>> Users.of(["ann", "bob", "ann"]).by_count().rows.tolist()
            [1, 0, 2]
        """
        counts = self._counts
        order = np.argsort(counts, kind="stable")
        firsts, ends = (self.ends - counts)[order], np.cumsum(counts[order])
        places = np.repeat(firsts - (ends - counts[order]), counts[order])
        rows = self.rows[places + np.arange(self.rows.size)]
        return type(self)(rows, ends, self.rows_per_user, self.names)

    def draw(self, users: Indices, stream: Stream) -> tuple[Indices, Indices]:
        """Return the rows of users that take part in a step, and how many rows each has.

        Of a user with more than ``rows_per_user``, all subsets of so many are equally likely.
        Users with few rows come first, so that equal numbers are neighbours.
        """
        counts = self._counts[users]
        if (counts[1:] < counts[:-1]).any():
            users, counts = (each[np.argsort(counts, kind="stable")] for each in (users, counts))
        taken = np.minimum(counts, self.rows_per_user)
        firsts, ends = self.ends[users] - counts, np.cumsum(taken)
        places = np.repeat(firsts - ends + taken, taken)
        places += np.arange(places.size)
        full = int(np.searchsorted(counts, self.rows_per_user, side="right"))
        if full < counts.size:
            chosen = _subsets(counts[full:], self.rows_per_user, stream)
            places[taken[:full].sum() :] = (firsts[full:, None] + chosen).ravel()
        return self.rows[places], taken

    @cached_property
    def _counts(self) -> Indices:
        return np.diff(self.ends, prepend=0)


def users_of(
    users: Any,
    records: Any,
    *,
    rows_per_user: int | None = None,
    missing: str = "drop",
    planned: int | None = None,
) -> Users | None:
    """Return the users of records, from ids or a function of a record; None without users.

    ``planned`` is the plan's number of rows per user, if it has one; none other is taken.
    """
    if users is None or isinstance(users, Users):
        given = {"rows_per_user": rows_per_user, "missing": None if missing == "drop" else missing}
        for name, value in given.items():
            if value is not None:
                raise validate.InvalidValueError(
                    f"{name} must be left out where no users are given, got {value!r}"
                )
        return users
    ids = [users(records[i]) for i in range(records.length)] if callable(users) else users
    if None not in (rows_per_user, planned) and rows_per_user != planned:
        raise validate.InvalidValueError(
            f"rows_per_user must be left out or be the plan's, {planned}, got {rows_per_user!r}"
        )
    most = next(each for each in (rows_per_user, planned, ROWS_PER_USER) if each is not None)
    found = Users.of(ids, rows_per_user=most, missing=missing)
    if len(ids) != records.length:
        raise validate.InvalidValueError(
            f"users must have one id per record, {records.length} in all, got {len(ids)}"
        )
    return found


def _subsets(sizes: Indices, count: int, stream: Stream) -> Indices:
    """Return a random subset of ``count`` from 0 … size−1 for each size, by Floyd's method."""
    chosen = np.full((sizes.size, count), -1)
    for k in range(count):
        last = sizes - count + k
        drawn = (stream.words(sizes.size) % (last + 1).astype(np.uint64)).astype(np.int64)
        is_new = (chosen != drawn[:, None]).all(axis=1)
        chosen[:, k] = np.where(is_new, drawn, last)
    return np.sort(chosen, axis=1)


def _texts(ids: Any) -> list[str | None]:
    """Return ids as text, None where there is none."""
    if isinstance(ids, Tensor):
        ids = ids.detach().cpu().numpy()
    elif hasattr(ids, "to_list"):  # a series; as an array, integers with gaps would lose digits
        ids = ids.to_list()
    elif hasattr(ids, "to_numpy"):
        ids = ids.to_numpy()
    is_sequence = isinstance(ids, Sequence | np.ndarray) and not isinstance(ids, str | bytes)
    if not is_sequence:
        raise validate.InvalidTypeError(
            "users must be one id per row, such as table[column], or a function of a record, got "
            f"{type(ids).__name__}"
        )
    shape = ids.shape if isinstance(ids, np.ndarray) else (len(ids),)
    if len(shape) != 1 and shape[1:] != (1,):
        raise validate.InvalidValueError(
            f"users must be one id per row, got an array of {len(shape)} dimensions"
        )
    values = ids.reshape(-1).tolist() if isinstance(ids, np.ndarray) else ids
    return [_text(each) for each in values]


def _text(value: Any) -> str | None:
    if isinstance(value, Tensor | np.ndarray) and tuple(value.shape) not in ((), (1,)):
        raise validate.InvalidTypeError(
            "users must be one id per row, a number or a text, got an id of shape "
            f"{tuple(value.shape)}"
        )
    if isinstance(value, Tensor | np.ndarray | np.generic):
        value = value.item()
    if isinstance(value, float) and abs(value) >= _EXACT:
        raise validate.InvalidValueError(
            f"users must be exact, got {value!r}, a float that may stand for several ids: pass "
            "integers or texts"
        )
    text = str(value).strip()
    integral = _INTEGRAL.fullmatch(text)
    return None if text.lower() in _NO_USER else integral[1] if integral else text
