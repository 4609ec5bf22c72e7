"""A random split of the records into a part to train on and a part to evaluate on."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dither import validate
from dither.ledger.entries import OF_USERS, new_name
from dither.randomness import Source
from dither.sampling import Poisson
from dither.training.users import Users


def train_holdout_split(
    *arrays: Any, holdout: float = 0.1, users: Any = None, random_state: int | None = None
) -> list[Any]:
    """Split records at random, so that the costs of both parts need not be added.

    Every record is in the holdout with probability ``holdout``, independently of all others, by
    random bits of the operating system. A record is then in one part only, and of training on the
    one and evaluating on the other only the larger cost counts: see `dither.ledger.Ledger.part`,
    with a name from `new_split` for this draw. A split with parts of fixed sizes, as
    scikit-learn's, does not give this: there one record's part depends on the others'.

    Args:
        *arrays: arrays, tensors, data frames, Series or lists with one entry per record.
        holdout: the probability, in (0, 1).
        users: one id per record, as `dither.train` takes them: users are then drawn instead of
            records, each with all of their rows, and the larger cost counts for users. A row
            without an id is drawn by itself. Pass the ids among the arrays to split them, too.
        random_state: a seed, for tests only.

    Returns:
        The training part and the holdout of each, as scikit-learn's ``train_test_split`` does.

    Example:
        >>> X_train, X_holdout, y_train, y_holdout = train_holdout_split(
        ...     np.zeros((1000, 3)), [0] * 1000, holdout=0.2, random_state=1
        ... )
        >>> len(X_train) == len(y_train), len(X_train) + len(X_holdout)
        (True, 1000)
        >>> ids = ["ann", "bob", "ann", "eve"] * 50
        >>> train, holdout = train_holdout_split(ids, users=ids, holdout=0.5, random_state=1)
        >>> {*train} & {*holdout}
        set()
    """
    probability = validate.probability(holdout=holdout)
    if not arrays:
        raise validate.InvalidValueError("arrays must be at least one, got none")
    sizes = [_size(each) for each in arrays]
    if len(set(sizes)) > 1:
        raise validate.InvalidValueError(
            f"arrays must have the same number of records, got {', '.join(map(str, sizes))}"
        )
    stream = source_of(random_state).stream("split", 0)
    if users is None:
        held_out = Poisson(probability).draw(sizes[0], stream)
    else:
        owners, count = owners_of(users, sizes[0], missing="own")
        held_out = np.flatnonzero(np.isin(owners, Poisson(probability).draw(count, stream)))
    kept = np.setdiff1d(np.arange(sizes[0]), held_out, assume_unique=True)
    return [_take(each, records) for each in arrays for records in (kept, held_out)]


def owners_of(users: Any, rows: int, *, missing: str) -> tuple[NDArray[np.int64], int]:
    """Return the number of each row's user, −1 without one, and the number of users.

    >>> owners_of(["bob", None, "ann", "bob"], 4, missing="drop")
    (array([ 1, -1,  0,  1]), 2)
    """
    found = Users.of(users, missing=missing)
    if _size(users) != rows:
        raise validate.InvalidValueError(
            f"users must have one id per record, {rows} in all, got {_size(users)}"
        )
    owners = np.full(rows, -1)
    owners[found.rows] = np.repeat(np.arange(found.count), np.diff(found.ends, prepend=0))
    return owners, found.count


def new_split(*, users: bool = False) -> str:
    """Return a name for one draw of `train_holdout_split`, for `dither.ledger.Ledger.part`.

    A name must not be used again when the records are split again: a record may then be in another
    part, and the ledger would count too little. Keep it as long as the parts, to evaluate later.

    Args:
        users: whether users were split, with all of their rows. Runs that protect users need such a
            split: of another, a user can be in both parts, and pays for both.

    Example:
        >>> new_split() == new_split()
        False
    """
    return new_name() + (OF_USERS if users else "")


def source_of(random_state: object) -> Source:
    """Return the source of random bits for a seed or None."""
    if random_state is None:
        return Source()
    if isinstance(random_state, bool) or not isinstance(random_state, Integral):
        raise validate.InvalidTypeError(
            f"random_state must be an integer or None, got {random_state!r}"
        )
    return Source(int(random_state))


def _size(records: Any) -> int:
    return int(records.shape[0] if hasattr(records, "shape") else len(records))


def _take(records: Any, indices: NDArray[np.int64]) -> Any:
    if hasattr(records, "iloc"):
        return records.iloc[indices]
    if hasattr(records, "shape"):  # arrays, tensors, sparse matrices, polars
        return records[indices]
    if isinstance(records, Sequence) and not isinstance(records, str):
        return type(records)(records[k] for k in indices)  # type: ignore[call-arg]
    raise validate.InvalidTypeError(
        f"arrays must be arrays, data frames or lists, got {type(records).__name__}"
    )
