"""One budget for many runs: every step is written down before its release can be seen."""

import json
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from dither import validate
from dither.accounting.odometer import ODOMETER_ORDERS
from dither.ledger.account import Account
from dither.ledger.entries import CapEntry, Entry, RunEntry, now, to_text
from dither.ledger.state import LedgerState, RunState, orders_for
from dither.ledger.store import Store
from dither.planning import Plan, ReactivePlan
from dither.planning.serialization import to_json_value
from dither.types import PrivacyBound

FILE = "ledger.sqlite"
"""What the ledger of a run's folder is called."""


class Ledger:
    """What all runs on the same data have spent, in one file that survives crashes.

    Guarantees:
        - A step's cost is on the disk before its release can be seen; what was written stays.
        - With a cap, all runs together never cost more: a run that would pass it is refused before
          its first step, also if several processes register at once.
        - Damage is found, and then nothing is counted: a total is never too small.

    Args:
        path: an SQLite file, or the folder of a run.
        create: whether a file that is not there is made.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> ledger = Ledger(folder)
        >>> ledger.cap(1.0, 1e-5)
        >>> print(ledger.total(1e-5).epsilon, ledger.composition)
        0.0 fixed
    """

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        place = Path(path)
        if place.is_dir() or (create and not place.exists() and not place.suffix):
            if create:
                place.mkdir(parents=True, exist_ok=True)
            place = place / FILE
        self._store, self._mutex = Store(place, is_new=create), Lock()

    def __reduce__(self) -> tuple[type["Ledger"], tuple[Path]]:
        """Copy and pickle as another connection to the same file."""
        return Ledger, (self.path,)

    @property
    def path(self) -> Path:
        """The file."""
        return self._store.path

    @property
    def entries(self) -> Sequence[Entry]:
        """Everything that was written down, the oldest first."""
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

        Runs that were all registered before the first of them spent anything compose like one run.
        A run that was registered later may have been planned by looking at results: then the total
        is an odometer's, by the orders that were fixed with the cap.

        Args:
            delta: δ of the claim.
        """
        return self._state().total(validate.probability(delta=delta))

    def total_of(self, *names: str, delta: float) -> PrivacyBound:
        """Return what some of the runs have spent together, as if there were no others."""
        return self._state().total(validate.probability(delta=delta), names)

    def cap(self, epsilon: float, delta: float) -> None:
        """Let all runs together cost (ε, δ) at most.

        Args:
            epsilon: ε; a cap below what is spent already lets no further run begin, and one below
                what open runs were promised is refused.
            delta: δ.
        """
        epsilon = validate.positive(epsilon=epsilon)
        delta = validate.probability(delta=delta)

        def entry(state: LedgerState) -> CapEntry:
            state.check_new_cap(epsilon, delta)
            if not state.has_spent:
                orders = orders_for(epsilon, delta, state.sampling or "poisson")
            else:  # orders that results could have a say in would prove nothing
                orders = ODOMETER_ORDERS if state.cap is None else state.cap.orders
            return CapEntry(epsilon, delta, orders, now())

        self.append(entry)

    def register(
        self, plan: Plan | ReactivePlan, *, name: str | None = None, is_seeded: bool = False
    ) -> Account:
        """Write down a run before its first step, and return where it pays.

        Args:
            plan: what the run may cost.
            name: what to call it; None makes a name.
            is_seeded: whether its noise can be repeated.

        Raises:
            BudgetExceededError: the run would pass the cap; nothing was written.
        """
        run = name or new_name()
        bound = plan.bound
        noise = tuple(plan.least_noise.tolist())

        def entry(state: LedgerState) -> RunEntry:
            if run in state.runs:
                raise validate.InvalidValueError(f"name must be new in the ledger, got {run!r}")
            made = RunEntry(
                run, plan.fingerprint, plan.sampling, plan.sample_rate, noise, bound.epsilon,
                bound.delta, is_seeded, now(),
            )  # fmt: skip
            state.check_cap(RunState(made, noise, state.has_spent))
            return made

        self.append(entry)
        return Account(self, run)

    def account(self, run: str) -> Account:
        """Return where a run pays that was registered before."""
        if run not in self.runs:
            raise validate.InvalidValueError(f"ledger {str(self.path)!r} has no run {run!r}")
        return Account(self, run)

    def export(self) -> str:
        """Return everything as JSON."""
        entries = [{"kind": to_text(entry)[0], **_plain(entry)} for entry in self.entries]
        return json.dumps({"format": "dither-ledger-1", "entries": entries}, allow_nan=False)

    def close(self) -> None:
        """Let the file go."""
        with self._mutex:
            self._store.close()

    def append(self, entry: Callable[[LedgerState], Entry]) -> None:
        """Add an entry that is made from the state; made again if the state changes meanwhile.

        Making it may take a while, and others may write in that time: costs of steps, which were
        promised before and change nothing, or something that has to be looked at again.
        """
        while True:
            state = self._state()
            made, seen = entry(state), _decisive(state)

            def check(state: LedgerState, seen: object = seen) -> None:
                if _decisive(state) != seen:
                    raise _ChangedError

            with suppress(_ChangedError), self._mutex:
                self._store.append(made, check)
                return

    def append_at_once(self, entry: Entry, check: Callable[[LedgerState], None]) -> None:
        """Add an entry if the check does not raise; for what is quick to check."""
        with self._mutex:
            self._store.append(entry, check)

    def _state(self) -> LedgerState:
        with self._mutex:
            return deepcopy(self._store.refresh())


def new_name() -> str:
    """Return a name for a run, from the time and some chance."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


class _ChangedError(Exception):
    """The state is not as it was."""


def _decisive(state: LedgerState) -> object:
    """Return all of a state but the number of steps, as far as they were promised before."""
    runs = [(name, run.noise, run.is_open) for name, run in state.runs.items()]
    closed = [tuple(run.spent) for run in state.runs.values() if not run.is_open]
    return state.cap, state.has_spent, runs, closed


def _plain(entry: Entry) -> dict[str, object]:
    return {key: to_json_value(value) for key, value in asdict(entry).items()}
