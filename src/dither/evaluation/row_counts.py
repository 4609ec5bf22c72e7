"""How many rows users have, and how many of them a step should take.

The numbers of rows are public knowledge, or a noisy histogram of private ones. More rows of a user
make the mean of their gradients less noisy, and a step slower.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np

from dither import validate
from dither.evaluation.evaluating import add_noise
from dither.evaluation.split import source_of
from dither.ledger import Ledger
from dither.planning import plan
from dither.training.users import Users
from dither.types import FloatArray, PrivacyBound

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS = 64
"""K, if it is not given: users with more rows are counted as if they had so many."""

SPREAD = 8.0
"""r: the variance of gradients within a user, in units of that between users; not estimated."""

ENOUGH = 0.95
"""Which part of the signal that all rows would have is enough."""

_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#888888"


@final
@dataclass(frozen=True)
class RowsPerUser:
    """The shares of users by their number of rows, and what follows for ``rows_per_user``.

    Where the variance of gradients within a user is r times that between users, the part
    1/(1 + r/k) of the variance of the mean over k rows is the user's own: the signal. The rest
    differs from draw to draw. A step takes min(rows, k) rows of a user. `chosen` is the smallest k
    with 95 % of the mean signal at K, the largest number that is looked at, for r = 8.

    Make one with `from_public` or `measure`.

    Attributes:
        shares: the share of users with 1, 2, … K rows; the last is of those with K or more.
        privacy: what the histogram costs; None if the shares are public.
        noise: standard deviation of the noise in each number of users; 0 if they are public.
        is_seeded: whether the noise can be repeated by those who know the seed.
        run: the name of the release in its ledger; None without one.

    Example:
        >>> RowsPerUser.from_public(10).chosen
        9
        >>> found = RowsPerUser.from_public([1, 1, 1, 2, 30])
        >>> found.chosen, round(found.signal(1), 3), round(found.signal(30), 3)
        (21, 0.111, 0.265)
    """

    shares: tuple[float, ...]
    privacy: PrivacyBound | None = None
    noise: float = 0.0
    is_seeded: bool = False
    run: str | None = None

    @classmethod
    def from_public(cls, rows: int | Sequence[int], *, most: int = MOST_ROWS) -> Self:
        """Return the shares that are known without looking at the private rows.

        Args:
            rows: how many rows a user typically has, or the number of rows of each user of a public
                dataset.
            most: K.
        """
        given = rows if isinstance(rows, Sequence | np.ndarray) else [rows]
        counts = np.array([validate.count(rows=each) for each in given], np.int64)
        if not counts.size:
            raise validate.InvalidValueError("rows must be of at least one user, got none")
        found = _histogram(counts, min(validate.count(most=most), int(counts.max())))
        return cls(tuple((found / counts.size).tolist()))

    @classmethod
    def measure(
        cls,
        users: Any,
        *,
        epsilon: float,
        delta: float | None = None,
        dataset_size: int | None = None,
        most: int = MOST_ROWS,
        missing: str = "drop",
        ledger: Ledger | str | Path | None = None,
        random_state: int | None = None,
    ) -> Self:
        """Return the shares from a noisy histogram of private numbers of rows.

        Guarantees: the result is a function of one Gaussian release, which is (ε, δ)-differentially
        private for adding or removing one user with all of the user's rows. A user adds 1 to the
        cell of min(rows, K) and 0 to all others, whatever number of rows that is, so that the
        release has sensitivity 1. The cost is in the ledger before the noise is drawn.

        A training that takes `chosen` rows of each user composes with this like one run: the number
        of rows changes neither the sampling rate nor the noise multipliers nor the clip norm, and
        the cost of each step depends on no more than these. The ledger counts that for a run with
        ``ledger.preplanned()``, if these and the number of steps were settled before.

        Args:
            users: one id per row, as `dither.train` takes them.
            epsilon: ε; a small one is enough, since there are few cells and many users.
            delta: δ; None is 1/(10·n).
            dataset_size: n, the public number of users; None takes the number of these as public.
            most: K.
            missing: "drop" leaves out rows without a user, "own" makes each a user of its own.
            ledger: a `dither.ledger.Ledger` or its path, where the cost is recorded.
            random_state: a seed, for tests only: whoever knows it can subtract the noise.

        Example:
            >>> ids = [k for k in range(2000) for _ in range(1 + k % 4)]
            >>> found = RowsPerUser.measure(ids, epsilon=0.5, most=8, random_state=1)
            >>> [round(share, 2) for share in found.shares]
            [0.25, 0.25, 0.25, 0.25, 0.0, 0.0, 0.0, 0.0]
            >>> found.chosen, found.privacy.unit
            (4, 'user')
        """
        K, source = validate.count(most=most), source_of(random_state)
        known = Users.of(users, missing=missing)
        n = known.count if dataset_size is None else validate.count(dataset_size=dataset_size)
        n = max(n, 1)
        made = plan(
            epsilon=epsilon, delta=0.1 / n if delta is None else delta, dataset_size=n,
            batch_size=n, steps=1, clip_norm=1.0, noise="uniform",
        ).for_users(K)  # fmt: skip
        counts = _histogram(np.diff(known.ends, prepend=0), K)
        released, noise, run = add_noise(counts, made, source, ledger)
        shares = tuple(_nearest_shares(released / n).tolist())
        return cls(shares, made.bound, noise, source.seed is not None, run)

    @property
    def chosen(self) -> int:
        """The rule's ``rows_per_user``."""
        signals = np.array([self.signal(k) for k in range(1, len(self.shares) + 1)])
        return 1 + int(np.argmax(signals >= ENOUGH * signals[-1]))

    def signal(self, rows_per_user: int) -> float:
        """Return the mean signal of a user's gradient: 1/(1 + r/min(rows, rows_per_user))."""
        rows = np.minimum(np.arange(1, len(self.shares) + 1), rows_per_user)
        return float(np.array(self.shares) @ (1.0 / (1.0 + SPREAD / rows)))

    def rows(self, rows_per_user: int) -> float:
        """Return the mean number of rows of a drawn user in a step, to which time is proportional.

        Example:
            >>> RowsPerUser.from_public([1, 30]).rows(5)
            3.0
        """
        rows = np.minimum(np.arange(1, len(self.shares) + 1), rows_per_user)
        return float(np.array(self.shares) @ rows)

    def __str__(self) -> str:
        k, K = self.chosen, len(self.shares)
        cost = "public" if self.privacy is None else str(self.privacy)
        seeded = " SEEDED: not private." if self.is_seeded else ""
        return (
            f"rows_per_user = {k}: {self.signal(k) / self.signal(K):.0%} of the signal and "
            f"{self.rows(k) / self.rows(K):.0%} of the time of {K}\n{cost}{seeded}"
        )

    def plot(self) -> "Figure":
        """Draw the users by their rows, and what a larger ``rows_per_user`` gains and costs.

        `dither.reports.save_figure` writes the figure to a file.
        """
        from matplotlib.figure import Figure

        K = len(self.shares)
        rows = np.arange(1, K + 1)
        figure = Figure(figsize=(10.4, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.bar(rows, self.shares, color=_BLUE)
        last = f" ({K} or more: the last)" if K > 1 else ""
        left.set(title="users by their rows", xlabel=f"rows{last}", ylabel="share of users")
        for name, function, color in (
            ("signal", self.signal, _BLUE),
            ("time of a step", self.rows, _ORANGE),
        ):
            values = np.array([function(k) for k in rows.tolist()])
            right.plot(rows, values / values[-1], color=color, label=name)
        right.axvline(self.chosen, color=_GREY, linewidth=0.8, label=f"chosen: {self.chosen}")
        right.set(
            title=f"gain and cost, as a share of those at {K}",
            xlabel="rows_per_user",
            ylim=(0.0, 1.05),
        )
        right.legend(loc="lower right")
        return figure


def _histogram(counts: Any, most: int) -> FloatArray:
    """Return how many users have 1, 2, … most or more rows.

    >>> _histogram(np.array([1, 3, 1_000_000]), 3).tolist()
    [1.0, 0.0, 2.0]
    """
    found = np.bincount(np.minimum(counts, most), minlength=most + 1)[1:]
    return np.asarray(found, np.float64)


def _nearest_shares(values: FloatArray) -> FloatArray:
    """Return the shares, at least 0 and with sum 1, that are nearest to noisy ones.

    One number is subtracted from all, and what is then negative is 0: to set negative ones to 0
    alone would add up noise.

    >>> _nearest_shares(np.array([0.7, 0.5, -0.1])).round(3).tolist()
    [0.6, 0.4, 0.0]
    """
    descending = np.sort(values)[::-1]
    excess = (np.cumsum(descending) - 1.0) / np.arange(1, values.size + 1)
    kept = np.flatnonzero(descending > excess)[-1]
    return np.asarray(np.maximum(values - excess[kept], 0.0))
