"""One budget for many runs: every step is written before its release can be seen."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from dither import validate
from dither.accounting.odometer import ODOMETER_ORDERS
from dither.ledger.account import Account
from dither.ledger.entries import OF_USERS, CapEntry, Entry, RunEntry, now, to_text
from dither.ledger.state import LedgerState, RunState, orders_for
from dither.ledger.store import Store
from dither.planning import Plan, ReactivePlan
from dither.types import PrivacyBound

FILE = "ledger.sqlite"
"""The name of the ledger in a run directory."""


class Ledger:
    """What all runs on the same data have spent, in one file that survives crashes.

    Guarantees:
        - A step's cost is on the disk before its release can be seen; what was written stays.
        - With a cap, all runs together never cost more: a run that would pass it is refused before
          its first step, also if several processes register at once.
        - Runs on different parts of one random split do not add up (`part`).
        - Damage is found, and then nothing is counted: a total is never too small.

    Args:
        path: an SQLite file, or a run directory.
        create: whether a missing file is created.

    Example:
        >>> import tempfile
        >>> ledger = Ledger(tempfile.mkdtemp())
        >>> ledger.cap(1.0, 1e-5)
        >>> print(ledger.total(1e-5).epsilon, ledger.composition)
        0.0 fixed
    """

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        place = ledger_file(path) if create else _in_directory(Path(path))
        if create and place.name == FILE:
            place.parent.mkdir(parents=True, exist_ok=True)
        self._store, self._mutex = Store(place, is_new=create), Lock()
        self._part: tuple[str, str] | None = None
        self._is_conditional = self._is_preplanned = False

    def __reduce__(self) -> tuple[Callable[..., "Ledger"], tuple[Any, ...]]:
        """Copy and pickle as another connection to the same file."""
        shared = {"_store", "_mutex"}
        return _reopen, (self.path, {k: v for k, v in vars(self).items() if k not in shared})

    def part(self, split: str, part: str) -> "Ledger":
        """Return this ledger for runs that have only one part of a random split of the records.

        A record is in exactly one part of a split, drawn for each record independently of all else
        (`dither.evaluation.train_holdout_split`). So no record pays for two parts of one split: the
        total is the largest over the choices of one part per split, of the composition of the runs
        without a split and of those in the chosen parts. Parts of different splits add up, and so
        do runs on the same part. Where there are more than 64 choices, everything adds up.

        Proof: Let M be all releases, r a record, D the others, and c the parts that r is in. Given
        c and where the others are, a run on any other part is a random function of releases before
        it and of records other than r, hence post-processing: also a run that uses a model which
        was trained on r. The runs that are left are those of the choice c, and they compose to
        (ε_c, δ), as fixed or as adaptive runs, whichever they are *among themselves*: results of
        the other runs do not depend on r except through them. So P(M(D + r) ∈ S | c) ≤ e^ε·P(M(D)
        ∈ S) + δ for every c, with ε the largest ε_c. M(D) does not depend on c, as where the others
        are is drawn independently of r. The mean over c is the claim; its reverse is shown the same
        way. A cap is kept for every choice, and so is the filter behind it.

        Args:
            split: the name of the split, from `dither.evaluation.new_split`. A name stands for one
                draw: a record may be in another part of the next, and under the same name its costs
                would not be added.
            part: the name of the part that the runs have.

        Example:
            >>> import dither, tempfile
            >>> plan = dither.Plan.from_noise_multipliers(
            ...     [4.0], delta=1e-5, dataset_size=100, batch_size=100
            ... )
            >>> ledger = Ledger(tempfile.mkdtemp())
            >>> split = dither.evaluation.new_split()
            >>> for name in ("training", "holdout"):
            ...     ledger.part(split, name).register(plan).finish(0, 4.0)
            >>> ledger.total(1e-5).epsilon == plan.bound.epsilon
            True
        """
        return self._handle(_part=(_name(split=split), _name(part=part)))

    def conditional(self) -> "Ledger":
        """Return this ledger for runs with settings that were read off the records without noise.

        Their ε holds only if these settings are public, and so does any total with such a run.

        Example:
            >>> import dither, tempfile
            >>> plan = dither.Plan.from_noise_multipliers(
            ...     [4.0], delta=1e-5, dataset_size=100, batch_size=100
            ... )
            >>> ledger = Ledger(tempfile.mkdtemp())
            >>> ledger.conditional().register(plan).finish(0, 4.0)
            >>> ledger.total(1e-5).is_upper_bound
            False
        """
        return self._handle(_is_conditional=True)

    def preplanned(self) -> "Ledger":
        """Return this ledger for runs that were planned before any result on the records was seen.

        A run that is registered after others have spent counts as adaptive, since its plan may come
        from their results. This says that its number of steps, sampling rate and noise multipliers
        do not. Then it composes with them like one run, whatever else comes from their results, as
        ε depends on these alone. So `dither.evaluation.RowsPerUser` may choose how many rows of a
        user a run takes, if ε, batch size and steps were settled before: not where ``compute`` is a
        time, as the number of steps then follows from the rows.

        Example:
            >>> import dither, tempfile
            >>> plan = dither.Plan.from_noise_multipliers(
            ...     [4.0], delta=1e-5, dataset_size=100, batch_size=100
            ... )
            >>> ledger = Ledger(tempfile.mkdtemp())
            >>> for handle in (ledger, ledger.preplanned()):
            ...     handle.register(plan).finish(0, 4.0)
            >>> ledger.composition
            'fixed'
        """
        return self._handle(_is_preplanned=True)

    @property
    def path(self) -> Path:
        """The file."""
        return self._store.path

    @property
    def split_part(self) -> tuple[str, str] | None:
        """The split and the part that new runs are registered with; None for all records."""
        return self._part

    @property
    def entries(self) -> Sequence[Entry]:
        """All entries, the oldest first."""
        with self._mutex:
            return self._store.entries()

    @property
    def runs(self) -> dict[str, RunState]:
        """The runs by their names."""
        return self._state().runs

    @property
    def composition(self) -> str:
        """How the runs compose: "fixed" if all came before anything was spent, else "adaptive"."""
        return self._state().composition

    @property
    def limit(self) -> CapEntry | None:
        """The cap, if there is one."""
        return self._state().cap

    def total(self, delta: float) -> PrivacyBound:
        """Return what was spent by all runs together.

        Runs that were all registered before the first of them spent anything compose like one run,
        and so do runs that were planned before (`preplanned`).
        A run that was registered later may have been planned by looking at results: then the total
        is an odometer's, by the orders that were fixed with the cap. Of the parts of a random split
        the most expensive counts (`part`).

        Args:
            delta: δ of the claim.
        """
        return self._state().total(validate.probability(delta=delta))

    def total_of(self, *names: str, delta: float) -> PrivacyBound:
        """Return what some of the runs have spent together, as if there were no others."""
        return self._state().total(validate.probability(delta=delta), names)

    def cap(self, epsilon: float, delta: float) -> None:
        """Limit what all runs together may cost to (ε, δ).

        Args:
            epsilon: ε; a cap below what is spent already lets no further run begin, and one below
                what open runs have registered is refused.
            delta: δ.
        """
        epsilon = validate.positive(epsilon=epsilon)
        delta = validate.probability(delta=delta)

        def entry(state: LedgerState) -> CapEntry:
            state.check_new_cap(epsilon, delta)
            if not state.has_spent:
                orders = orders_for(epsilon, delta, state.sampling or "poisson")
            else:  # orders chosen from results would prove nothing
                orders = ODOMETER_ORDERS if state.cap is None else state.cap.orders
            return CapEntry(epsilon, delta, orders, now())

        self.append(entry)

    def register(
        self, plan: Plan | ReactivePlan, *, name: str | None = None, is_seeded: bool = False
    ) -> Account:
        """Write a run before its first step, and return its account.

        Args:
            plan: what the run may cost.
            name: its name in the ledger; None makes one.
            is_seeded: whether its noise can be repeated.

        Raises:
            BudgetExceededError: the run would pass the cap; nothing was written.
        """
        account = Account(lambda: self, name=name, is_seeded=is_seeded)
        account.register(plan)
        return account

    def add_run(self, run: str, plan: Plan | ReactivePlan, *, is_seeded: bool) -> None:
        """Write a run and its plan, or raise if it would pass the cap."""
        bound = plan.bound
        noise = tuple(plan.charges.tolist())

        split, part = self._part or (None, None)
        if plan.unit == "user" and split is not None and not split.endswith(OF_USERS):
            raise validate.InvalidValueError(
                "split must be one of users for a run that protects users, who can be in both parts"
                " of another: use train_holdout_split(..., users=ids) and new_split(users=True), "
                f"got {split!r}"
            )

        def entry(state: LedgerState) -> RunEntry:
            if run in state.runs:
                raise validate.InvalidValueError(f"name must be new in the ledger, got {run!r}")
            run_entry = RunEntry(
                run, plan.fingerprint, plan.charge_sampling, plan.charge_rate, noise, bound.epsilon,
                bound.delta, is_seeded, now(), split, part, self._is_conditional or None,
                plan.bands if plan.bands > 1 else None,
                plan.unit if plan.unit != "record" else None, self._is_preplanned or None,
            )  # fmt: skip
            state.check_cap(RunState(run_entry, noise, state.after(run_entry)))
            return run_entry

        self.append(entry)

    def default_delta(self) -> float:
        """Return δ of the cap, else that of the first run."""
        if self.limit is not None:
            return self.limit.delta
        for run in self.runs.values():
            if run.entry.delta > 0.0:
                return run.entry.delta
        raise validate.InvalidValueError("delta must be given for a ledger without a cap and runs")

    def summary(self, delta: float) -> dict[str, Any]:
        """Return the runs, the total at that δ and the cap, as JSON values.

        What is spent and planned are steps, or cycles of as many steps as there are bands.
        """
        total, cap = self.total(delta), self.limit
        runs = [
            {
                "run": name,
                "registered": run.entry.time,
                "plan": run.entry.fingerprint,
                "spent": len(run.spent),
                "planned": len(run.noise),
                "bands": run.entry.bands or 1,
                "least_noise": min(run.spent, default=None),
                "most_noise": max(run.spent, default=None),
                "epsilon": _finite(self.total_of(name, delta=delta).epsilon),
                "is_open": run.is_open,
                "is_seeded": run.entry.is_seeded,
                "is_conditional": bool(run.entry.is_conditional),
                "split": run.entry.split,
                "part": run.entry.part,
            }
            for name, run in self.runs.items()
        ]
        return {
            "epsilon": _finite(total.epsilon),
            "delta": delta,
            "accountant": total.accountant,
            "unit": total.unit,
            "is_upper_bound": total.is_upper_bound,
            "composition": self.composition,
            "cap": None if cap is None else {"epsilon": cap.epsilon, "delta": cap.delta},
            "runs": runs,
        }

    def export(self) -> str:
        """Return everything as JSON."""
        entries = [
            {"kind": kind, **json.loads(fields)} for kind, fields in map(to_text, self.entries)
        ]
        return json.dumps({"format": "dither-ledger-1", "entries": entries}, allow_nan=False)

    def close(self) -> None:
        """Close the file."""
        with self._mutex:
            self._store.close()

    def append(self, entry: Callable[[LedgerState], Entry]) -> None:
        """Add an entry that is made from the state; made again if the state changes meanwhile.

        Making it may take a while, and others may write in that time: costs of steps, which were
        registered before and change nothing, or entries that must be considered again.
        """
        while True:
            state = self._state()
            new, seen = entry(state), _decisive(state)

            def check(state: LedgerState, seen: object = seen) -> None:
                if _decisive(state) != seen:
                    raise _ChangedError

            with suppress(_ChangedError), self._mutex:
                self._store.append(new, check)
                return

    def append_at_once(self, entry: Entry, check: Callable[[LedgerState], None]) -> None:
        """Add an entry if the check does not raise; for what is quick to check."""
        with self._mutex:
            self._store.append(entry, check)

    def _handle(self, **facts: Any) -> "Ledger":
        """Return this ledger with other facts for new runs."""
        handle = object.__new__(Ledger)
        handle.__dict__.update({**vars(self), **facts})
        return handle

    def _state(self) -> LedgerState:
        with self._mutex:
            return deepcopy(self._store.refresh())


def spent_text(run: Mapping[str, Any]) -> str:
    """Return how many of its steps or cycles a run of `Ledger.summary` has spent.

    >>> spent_text({"spent": 12, "planned": 15, "bands": 4})
    '12 of 15 cycles of 4 steps'
    """
    cycles = "" if run["bands"] == 1 else f" cycles of {run['bands']} steps"
    return f"{run['spent']:,} of {run['planned']:,}{cycles}"


def account_for(
    ledger: Ledger | str | Path | Callable[[], Ledger] | None, *, name: str | None, is_seeded: bool
) -> Account:
    """Return the account of a new run; a ledger's path is opened when the first step begins."""
    if isinstance(ledger, Ledger):
        return Account(lambda: ledger, name=name, is_seeded=is_seeded)
    open_ledger = partial(Ledger, ledger) if isinstance(ledger, str | Path) else ledger
    return Account(open_ledger, name=name, is_seeded=is_seeded, owns_ledger=True)


def ledger_file(path: str | Path) -> Path:
    """Return the file of a ledger that is given as a file or as a directory, new or not."""
    place = Path(path)
    is_new_directory = not place.exists() and not place.suffix
    return place / FILE if is_new_directory else _in_directory(place)


def _in_directory(place: Path) -> Path:
    return place / FILE if place.is_dir() else place


def _reopen(path: Path, facts: Mapping[str, Any]) -> Ledger:
    return Ledger(path)._handle(**facts)


def _name(**argument: object) -> str:
    ((name, value),) = argument.items()
    text = validate.instance(str, **argument)
    if not text:
        raise validate.InvalidValueError(f"{name} must be a name, got {value!r}")
    return text


class _ChangedError(Exception):
    """The state is not as it was."""


def _decisive(state: LedgerState) -> object:
    """Return all of a state but the number of steps, as far as they were registered before."""
    runs = [(name, run.noise, run.is_open) for name, run in state.runs.items()]
    closed = [tuple(run.spent) for run in state.runs.values() if not run.is_open]
    return state.cap, state.spenders, runs, closed


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
