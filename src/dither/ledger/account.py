"""Where one run pays: its steps are committed while they are computed."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from dither import validate
from dither.accounting import BudgetExceededError
from dither.ledger.entries import EndEntry, PlanEntry, StepEntry, now
from dither.ledger.state import LedgerState, RunState
from dither.types import FloatArray

if TYPE_CHECKING:
    from dither.ledger.ledger import Ledger

_ROUNDING = 1e-12


class Account:
    """A run's account with a ledger; made by `Ledger.register`.

    A step is paid for in two calls: `begin` when its batch is drawn, which returns at once, and
    `finish` before its release, which waits until the cost is on the disk.

    Attributes:
        run: the run's name.
    """

    def __init__(self, ledger: "Ledger", run: str) -> None:
        self._ledger, self.run = ledger, run
        found = ledger.runs[run]
        self._noise, self._spent = found.noise, [*found.spent]
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="dither-ledger")
        self._pending: tuple[StepEntry, Future[None]] | None = None

    @property
    def spent(self) -> Sequence[float]:
        """The noise multipliers of all steps that were paid for."""
        return tuple(self._spent)

    @property
    def is_open(self) -> bool:
        """Whether the run may still spend."""
        return self._ledger.runs[self.run].is_open

    def begin(self, step: int, noise_multiplier: float) -> None:
        """Start to pay for a step: its cost is written while the step is computed."""
        if step < len(self._spent):  # paid for already, and not released yet
            if noise_multiplier < self._spent[step]:
                raise BudgetExceededError(
                    f"step {step} of run {self.run!r} was paid for with noise "
                    f"{self._spent[step]:g}, got {noise_multiplier:g}"
                )
            return
        entry = StepEntry(self.run, step, noise_multiplier)
        if self._pending is not None and self._pending[0] == entry:
            return
        self._pending = entry, self._worker.submit(self._pay, entry)

    def finish(self, step: int, noise_multiplier: float) -> None:
        """Wait until a step is paid for; raise if it cannot be, and then nothing may be released.

        After an error the same call tries again.
        """
        self.begin(step, noise_multiplier)
        if self._pending is None:
            return
        _, future = self._pending
        self._pending = None
        future.result()

    @property
    def noise(self) -> Sequence[float]:
        """The least noise of all steps, by the latest plan."""
        return self._noise

    def change(self, fingerprint: str, least_noise: FloatArray) -> None:
        """Go on with another plan, whose first steps are those that were paid for."""
        noise = tuple(least_noise.tolist())

        def entry(state: LedgerState) -> PlanEntry:
            run = state.runs[self.run]
            paid = len(run.spent)
            if noise[:paid] != run.noise[:paid]:
                raise validate.InvalidValueError(
                    f"plan must begin with the {paid} steps that run {self.run!r} has paid for"
                )
            state.check_cap(RunState(run.entry, noise, run.came_later, run.spent))
            return PlanEntry(self.run, fingerprint, noise, now())

        self._ledger.append(entry)
        self._noise = noise

    def end(self) -> None:
        """Write down that the run will spend no more; what it did not spend is free again."""
        self._worker.shutdown(wait=True)
        self._ledger.append(lambda _: EndEntry(self.run, len(self._spent), now()))

    def _pay(self, entry: StepEntry) -> None:
        self._ledger.append_at_once(entry, lambda state: self._check_step(state, entry))
        self._spent.append(entry.noise)

    def _check_step(self, state: LedgerState, entry: StepEntry) -> None:
        step, noise, run = entry.step, entry.noise, state.runs[self.run]
        paid = len(run.spent)
        if not run.is_open:
            raise BudgetExceededError(f"run {self.run!r} has ended, and may not spend any more")
        if paid != step:
            raise BudgetExceededError(
                f"run {self.run!r} has paid for {paid} steps, but the next would be number {step}: "
                "another process goes on with the same run"
            )
        if step >= len(run.noise):
            raise BudgetExceededError(f"run {self.run!r} has registered {step} steps, and no more")
        if noise < run.noise[step] * (1.0 - _ROUNDING):
            raise BudgetExceededError(
                f"step {step} of run {self.run!r} has noise {noise:g}, less than the "
                f"{run.noise[step]:g} that was registered"
            )
