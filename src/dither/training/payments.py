"""How a run pays: into its ledger, if it has one, and again when it goes on after losses."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dither import validate
from dither.accounting import BudgetExceededError
from dither.ledger import Account, Ledger
from dither.planning import Plan, ReactivePlan
from dither.planning.resuming import after_losses, as_registered, only_spent


class Payments:
    """The account of a run with a ledger that is opened when the first step needs it.

    Args:
        ledger: opens the ledger; None is for runs without one.
        name: what to call the run; None makes a name.
        owns_ledger: whether to close it in the end.
        is_seeded: whether the run's noise can be repeated.
    """

    def __init__(
        self,
        ledger: Callable[[], Ledger] | None,
        *,
        name: str | None,
        owns_ledger: bool,
        is_seeded: bool,
    ) -> None:
        self._open, self._owns_ledger = ledger, owns_ledger
        self._name, self._is_seeded = name, is_seeded
        self._ledger: Ledger | None = None
        self.account: Account | None = None

    @property
    def run(self) -> str | None:
        """What the run is called in its ledger."""
        return None if self.account is None else self.account.run

    def register(self, plan: Plan | ReactivePlan) -> None:
        """Write the run down before its first step."""
        ledger = self._opened()
        if ledger is not None and self.account is None:
            self.account = ledger.register(plan, name=self._name, is_seeded=self._is_seeded)

    def knows(self, run: str) -> bool:
        """Return whether the ledger has a run of that name."""
        ledger = self._opened()
        return ledger is not None and run in ledger.runs

    def begin(self, step: int, noise_multiplier: float | None) -> None:
        """Start to pay for a step, while it is computed."""
        if self.account is not None and noise_multiplier is not None:
            self.account.begin(step, noise_multiplier)

    def finish(self, step: int, noise_multiplier: float) -> None:
        """Wait until a step is paid for; raise if it cannot be."""
        if self.account is not None:
            self.account.finish(step, noise_multiplier)

    def go_on(
        self, run: object, plan: Plan | ReactivePlan, taken: int, spent: Sequence[float]
    ) -> tuple[Plan | ReactivePlan, Sequence[float]]:
        """Take up the account of a run that was interrupted.

        Args:
            run: its name, or None if it had no ledger.
            plan: its first plan.
            taken: how many of the plan's steps the model has taken.
            spent: the noise multipliers that the run knows to be paid for.

        Returns:
            The plan to go on with, and the noise multipliers of all steps that were paid for.
        """
        if run is None:
            return plan, spent
        ledger = self._opened()
        if ledger is None:
            raise validate.InvalidValueError(
                f"state is of run {run!r} of a ledger: give it to make_private(..., ledger=...)"
            )
        account = ledger.account(validate.instance(str, run=run))
        if ledger.runs[account.run].entry.is_seeded != self._is_seeded:
            raise validate.InvalidValueError(
                "seed must be as the run began: a run is seeded from its first step to its last, "
                "or not at all"
            )
        if list(account.spent[: len(spent)]) != list(spent):
            raise validate.InvalidValueError(
                f"state must be of the ledger's run {run!r}, got one with other steps than it has"
            )
        if len(account.spent) > taken:
            plan = _after_losses(plan, taken, account)
        elif not account.is_open and len(account.spent) < len(account.noise):
            account.change(plan.fingerprint, np.asarray(account.noise))
        self.account = account
        return plan, account.spent

    def end(self) -> None:
        """Write down that the run spends no more, and let the ledger go."""
        if self.account is not None:
            self.account.end()
        if self._ledger is not None and self._owns_ledger:
            self._ledger.close()
        self._ledger = self.account = None

    def _opened(self) -> Ledger | None:
        if self._ledger is None and self._open is not None:
            self._ledger = self._open()
        return self._ledger


def check_state(
    state: Mapping[str, Any], own: Mapping[str, Any], released: int
) -> tuple[int, list[float]]:
    """Return how many steps a run has taken, and the noise of those that it has paid for.

    Args:
        state: of the run that is to be resumed.
        own: of the run that resumes it.
        released: how many steps that one has released.
    """
    for name in ("format", "plan", "seed"):
        found = state.get(name, ...)
        if found != own[name]:
            shown, yours = (str(each)[:16] for each in (found, own[name]))
            raise validate.InvalidValueError(
                f"state must be of the same {name}: the run began with {shown}, and this is "
                f"{yours}; use the arguments that it began with, or begin a new run"
            )
    spent = [float(z) for z in state["plan_state"]["spent"]]
    taken = validate.instance(int, taken=state["taken"])
    if len(spent) < max(taken, released):
        raise validate.InvalidValueError(
            f"state must have paid for the {max(taken, released)} steps that were released, got "
            f"{len(spent)}: to go back because of results is not covered by the plan"
        )
    return taken, spent


def payments_into(
    ledger: Ledger | str | Path | Callable[[], Ledger] | None, *, name: str | None, is_seeded: bool
) -> Payments:
    """Return the payments of a new run into a ledger, its path, what opens it, or none."""
    opening: Callable[[], Ledger] | None
    if isinstance(ledger, Ledger):
        opening = partial(_same, ledger)
    elif isinstance(ledger, str | Path):
        opening = partial(Ledger, ledger)
    else:
        opening = ledger
    owns = not isinstance(ledger, Ledger)
    return Payments(opening, name=name, owns_ledger=owns, is_seeded=is_seeded)


def _same(ledger: Ledger) -> Ledger:
    return ledger


def _after_losses(plan: Plan | ReactivePlan, taken: int, account: Account) -> Plan | ReactivePlan:
    """Return the plan of a run that has lost steps, and register it."""
    spent, noise = account.spent, account.noise
    is_known = len(noise) == len(spent) + plan.steps - taken
    if is_known and (account.is_open or taken == plan.steps):
        return as_registered(plan, taken=taken, spent=spent, noise=noise)
    made, least, goes_on = after_losses(plan, taken=taken, spent=spent, noise=noise)
    why = "what is left of the budget is too little for the steps that are left"
    try:
        account.change(made.fingerprint, least)
    except BudgetExceededError as refusal:
        made, goes_on, why = only_spent(plan, spent), False, str(refusal)
    if not goes_on:
        warnings.warn(f"the run ends early, after {taken} steps: {why}", stacklevel=5)
    else:
        more = float(np.max(least[len(spent) :] / plan.least_noise[taken:], initial=0.0))
        warnings.warn(
            f"{len(spent) - taken:,} steps were paid for and lost: they stay spent, and the noise "
            f"of the rest is {more:.4g} times the planned",
            stacklevel=5,
        )
    return made
