"""What one run spends: a step's cost is on disk before its release."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import numpy as np

from dither import validate
from dither.accounting import BudgetExceededError
from dither.ledger.entries import EndEntry, PlanEntry, StepEntry, new_name, now
from dither.ledger.state import LedgerState, RunState
from dither.planning import Plan, ReactivePlan
from dither.planning.resuming import after_losses, as_registered, only_spent
from dither.types import FloatArray

if TYPE_CHECKING:
    from dither.ledger.ledger import Ledger

_ROUNDING = 1e-12


class Account:
    """The spending of one run; made by `Ledger.register`.

    A step is charged in two calls: `begin` when its batch is drawn, which returns at once, and
    `finish` before its release, which waits until the cost is on disk. Without a ledger nothing is
    written.

    Args:
        ledger: opens the ledger when it is first needed; None for a run without one.
        name: the name of the run; None makes one.
        is_seeded: whether the run's noise can be repeated.
        owns_ledger: whether `end` closes the ledger.

    Attributes:
        run: the name of the run.

    Example:
        >>> import tempfile, dither
        >>> plan = dither.Plan.from_noise_multipliers(
        ...     [2.0, 2.0], delta=1e-5, dataset_size=100, batch_size=10
        ... )
        >>> account = dither.ledger.Ledger(tempfile.mkdtemp()).register(plan)
        >>> account.begin(0, 2.0)
        >>> account.finish(0, 2.0)
        >>> account.spent
        (2.0,)
    """

    def __init__(
        self,
        ledger: Callable[[], "Ledger"] | None,
        *,
        name: str | None = None,
        is_seeded: bool = False,
        owns_ledger: bool = False,
    ) -> None:
        self.run = name or new_name()
        self._open_ledger, self._owns_ledger, self._is_seeded = ledger, owns_ledger, is_seeded
        self._ledger: Ledger | None = None
        self._is_registered = self._has_ended = False
        self._noise, self._spent = tuple[float, ...](), list[float]()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="dither-ledger")
        self._pending: tuple[StepEntry, Future[None]] | None = None

    @property
    def spent(self) -> Sequence[float]:
        """The noise multipliers of all steps that were charged."""
        return tuple(self._spent)

    @property
    def noise(self) -> Sequence[float]:
        """The least noise of all steps, by the latest plan."""
        return self._noise

    @property
    def is_open(self) -> bool:
        """Whether the run may still spend."""
        return self._state().is_open

    def register(self, plan: Plan | ReactivePlan) -> str | None:
        """Write the run to the ledger before its first step; return its name there."""
        ledger = self._opened()
        if ledger is None:
            return None
        if not self._is_registered:
            ledger.add_run(self.run, plan, is_seeded=self._is_seeded)
            self.attach(self.run)
        return self.run

    def has_run(self, run: str) -> bool:
        """Return whether the ledger has a run of that name."""
        ledger = self._opened()
        return ledger is not None and run in ledger.runs

    def attach(self, run: str) -> None:
        """Continue with a run that is in the ledger."""
        self._wait()
        ledger = self._opened()
        if ledger is None or run not in ledger.runs:
            path = None if ledger is None else str(ledger.path)
            raise validate.InvalidValueError(
                f"ledger {path!r} has no run {run!r}: a run continues with the ledger "
                "that it began with, given as ledger="
            )
        self.run, self._is_registered = run, True
        state = self._state()
        self._noise, self._spent = state.noise, [*state.spent]

    def begin(self, step: int, noise_multiplier: float) -> None:
        """Start to charge a step: its cost is written while the step is computed."""
        if not self._is_registered:
            return
        if self._has_ended:
            raise BudgetExceededError(f"run {self.run!r} has ended, and may not spend any more")
        if step < len(self._spent):  # charged already, and not released yet
            if noise_multiplier < self._spent[step]:
                raise BudgetExceededError(
                    f"step {step} of run {self.run!r} was charged with noise "
                    f"{self._spent[step]:g}, got {noise_multiplier:g}"
                )
            return
        entry = StepEntry(self.run, step, noise_multiplier)
        if self._pending is not None and self._pending[0] == entry:
            return
        self._pending = entry, self._worker.submit(self._charge, entry)

    def finish(self, step: int, noise_multiplier: float) -> None:
        """Wait until a step is charged; raise if it cannot be, and then nothing may be released.

        After an error the same call tries again.
        """
        self.begin(step, noise_multiplier)
        if self._pending is None:
            return
        _, future = self._pending
        self._pending = None
        future.result()

    def resume(
        self, run: object, plan: Plan | ReactivePlan, taken: int, spent: Sequence[float]
    ) -> tuple[Plan | ReactivePlan, Sequence[float]]:
        """Continue a run that was interrupted; steps that were spent and lost stay spent.

        Args:
            run: its name, or None if it had no ledger.
            plan: its first plan.
            taken: how many of the plan's steps the model has taken.
            spent: the noise multipliers that the run knows to be charged.

        Returns:
            The plan to continue with, and the noise multipliers of all steps that were charged.
        """
        if run is None:
            if _has_lost_steps(plan, taken, spent):  # in the middle of a cycle
                plan = _replan(plan, taken, spent, spent, register=lambda *_: None)
            return plan, spent
        self._wait()
        ledger = self._opened()
        if ledger is None:
            raise validate.InvalidValueError(
                f"state is of run {run!r} of a ledger: give it to make_private(..., ledger=...)"
            )
        account = Account(lambda: ledger, is_seeded=self._is_seeded)
        account.attach(validate.instance(str, run=run))
        if account._state().entry.is_seeded != self._is_seeded:
            raise validate.InvalidValueError(
                "seed must be as the run began: a run is seeded from its first step to its last, "
                "or not at all"
            )
        if account._state().entry.fingerprint != plan.fingerprint:
            raise validate.InvalidValueError(
                f"plan must be the one that run {run!r} began with: its steps are accounted with "
                "that plan's sample rate"
            )
        if list(account.spent[: len(spent)]) != list(spent):
            raise validate.InvalidValueError(
                f"state must be of the ledger's run {run!r}, got one with other steps than it has"
            )
        if _has_lost_steps(plan, taken, account.spent):
            plan = account._resumed(plan, taken)
        elif not account.is_open and len(account.spent) < len(account.noise):
            account.change(plan.fingerprint, np.asarray(account.noise))
        self.attach(account.run)
        return plan, self.spent

    def _resumed(self, plan: Plan | ReactivePlan, taken: int) -> Plan | ReactivePlan:
        """Return the plan of a run that has lost steps, which is or was registered."""
        spent, noise = self.spent, self.noise
        is_known = len(noise) == len(spent) - (taken - plan.steps) // plan.bands
        if is_known and (self.is_open or taken == plan.steps):
            return as_registered(plan, taken=taken, spent=spent, noise=noise)
        return _replan(plan, taken, spent, noise, register=self.change)

    def change(self, fingerprint: str, least_noise: FloatArray) -> None:
        """Continue with another plan, whose first steps are those that were charged."""
        noise = tuple(least_noise.tolist())

        def entry(state: LedgerState) -> PlanEntry:
            run = state.runs[self.run]
            charged = len(run.spent)
            if noise[:charged] != run.noise[:charged]:
                raise validate.InvalidValueError(
                    f"plan must begin with the {charged} steps that run {self.run!r} has spent"
                )
            state.check_cap(RunState(run.entry, noise, run.after, run.spent))
            return PlanEntry(self.run, fingerprint, noise, now())

        self._registered().append(entry)
        self._noise = noise

    def end(self) -> None:
        """Write that the run will spend no more; what it did not spend is free again."""
        if self._has_ended:
            return
        self._worker.shutdown(wait=True)
        self._has_ended = True
        if self._is_registered:
            self._registered().append(lambda _: EndEntry(self.run, len(self._spent), now()))
        if self._ledger is not None and self._owns_ledger:
            self._ledger.close()
            self._ledger = None

    def _opened(self) -> "Ledger | None":
        if self._ledger is None and self._open_ledger is not None:
            self._ledger = self._open_ledger()
        return self._ledger

    def _registered(self) -> "Ledger":
        if self._ledger is None or not self._is_registered:
            raise validate.InvalidValueError(f"run {self.run!r} is not registered in a ledger")
        return self._ledger

    def _state(self) -> RunState:
        return self._registered().runs[self.run]

    def _wait(self) -> None:
        """Wait until a step that was begun is charged or refused."""
        if self._pending is not None:
            wait([self._pending[1]])
            self._pending = None

    def _charge(self, entry: StepEntry) -> None:
        self._registered().append_at_once(entry, lambda state: self._check_step(state, entry))
        self._spent.append(entry.noise)

    def _check_step(self, state: LedgerState, entry: StepEntry) -> None:
        step, noise, run = entry.step, entry.noise, state.runs[self.run]
        charged = len(run.spent)
        if not run.is_open:
            raise BudgetExceededError(f"run {self.run!r} has ended, and may not spend any more")
        if charged != step:
            raise BudgetExceededError(
                f"run {self.run!r} has spent {charged} steps, but the next would be number {step}: "
                "another process continues the same run"
            )
        if step >= len(run.noise):
            raise BudgetExceededError(f"run {self.run!r} has registered {step} steps, and no more")
        if noise < run.noise[step] * (1.0 - _ROUNDING):
            raise BudgetExceededError(
                f"step {step} of run {self.run!r} has noise {noise:g}, less than the "
                f"{run.noise[step]:g} that was registered"
            )


def _has_lost_steps(plan: Plan | ReactivePlan, taken: int, spent: Sequence[float]) -> bool:
    """Return whether more was charged than the model has taken; the last cycle may be shorter."""
    is_finished = taken == plan.steps and len(spent) == len(plan.charges)
    return len(spent) * plan.bands > taken and not is_finished


def _replan(
    plan: Plan | ReactivePlan,
    taken: int,
    spent: Sequence[float],
    noise: Sequence[float],
    register: Callable[[str, FloatArray], None],
) -> Plan | ReactivePlan:
    """Return the plan of a run that has lost steps, and register it."""
    b = plan.bands
    new_plan, least, goes_on = after_losses(plan, taken=taken, spent=spent, noise=noise)
    why = "what is left of the budget is too little for the steps that are left"
    try:
        register(new_plan.fingerprint, least)
    except BudgetExceededError as refusal:
        new_plan, goes_on, why = only_spent(plan, spent), False, str(refusal)
    if not goes_on:
        validate.warn(f"the run ends early, after {taken} steps: {why}")
    else:
        planned = np.repeat(plan.charges, b)[taken : plan.steps]
        rest = np.repeat(least[len(spent) :], b)[: planned.size]
        factor = float(np.max(rest / planned, initial=0.0))
        lost = "were spent and lost" if b == 1 else "were charged in whole cycles and not taken"
        validate.warn(
            f"{len(spent) * b - taken:,} steps {lost}: they stay spent, and the noise of the "
            f"remaining steps is {factor:.4g} times the planned"
        )
    return new_plan
