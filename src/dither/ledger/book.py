"""What the entries of a ledger add up to."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from dither import accounting
from dither.accounting import BudgetExceededError, Filter, Odometer
from dither.ledger.entries import CapEntry, EndEntry, Entry, PlanEntry, RunEntry, StepEntry
from dither.ledger.errors import DamagedLedgerError
from dither.types import FloatArray, PrivacyBound

Composition = Literal["fixed", "adaptive"]


@dataclass
class Run:
    """One run, as far as the ledger knows it.

    Attributes:
        entry: how it was registered.
        noise: the least noise of its steps by its latest plan, those that were spent first.
        spent: the noise of the steps that were paid for.
        came_later: whether something had been spent when it was registered.
        is_open: whether it may still spend.
    """

    entry: RunEntry
    noise: tuple[float, ...]
    came_later: bool
    spent: list[float] = field(default_factory=list)
    is_open: bool = True

    def committed(self) -> Sequence[float]:
        """Return the noise of all steps that have been, or may still be, paid for."""
        return self.noise if self.is_open else self.spent


@dataclass
class Book:
    """The runs of a ledger, and their cap."""

    runs: dict[str, Run] = field(default_factory=dict)
    cap: CapEntry | None = None

    @property
    def has_spent(self) -> bool:
        """Whether any step was paid for."""
        return any(run.spent for run in self.runs.values())

    @property
    def composition(self) -> Composition:
        """How the runs compose: "fixed" if all were registered before anything was spent."""
        return "adaptive" if any(run.came_later for run in self.runs.values()) else "fixed"

    @property
    def sampling(self) -> str | None:
        """How the runs sample: all of them the same, as the claims differ otherwise."""
        return next((run.entry.sampling for run in self.runs.values()), None)

    def add(self, entry: Entry) -> None:
        """Take in the next entry."""
        if isinstance(entry, CapEntry):
            self.cap = entry
        elif isinstance(entry, RunEntry):
            if entry.run in self.runs:
                raise DamagedLedgerError(f"ledger has two runs called {entry.run!r}")
            self.runs[entry.run] = Run(entry, entry.noise, self.has_spent)
        else:
            self._of_run(entry)

    def _of_run(self, entry: PlanEntry | StepEntry | EndEntry) -> None:
        run = self.runs.get(entry.run)
        if run is None:
            raise DamagedLedgerError(f"ledger has no run called {entry.run!r}, but a cost of it")
        if isinstance(entry, StepEntry):
            run.spent.append(entry.noise)
        elif isinstance(entry, PlanEntry):
            run.noise, run.is_open = entry.noise, True
        else:
            run.is_open = False

    def total(self, delta: float, names: Sequence[str] | None = None) -> PrivacyBound:
        """Return what was spent by all runs together, or by some of them."""
        runs = [run for name, run in self.runs.items() if names is None or name in names]
        adaptive = any(run.came_later for run in runs) and len(runs) > 1
        steps = [(run.spent, run.entry.sample_rate) for run in runs]
        return self._bound(steps, delta, "adaptive" if adaptive else "fixed")

    def refuse_passing_cap(self, run: Run) -> None:
        """Raise if a run, with all that was spent or promised before it, would pass the cap."""
        others = [each for name, each in self.runs.items() if name != run.entry.run]
        for other in others[:1]:
            if other.entry.sampling != run.entry.sampling:
                raise BudgetExceededError(
                    f"run {run.entry.run!r} has {run.entry.sampling} sampling, but the ledger has "
                    f"{other.entry.sampling}: their claims are about other neighbours, and do not "
                    "add up; keep them in two ledgers"
                )
        if self.cap is None:
            return
        steps = [(each.committed(), each.entry.sample_rate) for each in (*others, run)]
        adaptive = self.composition == "adaptive" or run.came_later
        found = self._bound(steps, self.cap.delta, "adaptive" if adaptive else "fixed")
        if not found.epsilon <= self.cap.epsilon:
            how = (
                "as it is planned after others have spent, by a filter"
                if adaptive
                else "as all runs were registered before the first spent, by composition"
            )
            raise BudgetExceededError(
                f"run {run.entry.run!r} would bring the total to ε = {found.epsilon:.4g} at "
                f"δ = {self.cap.delta:g} ({how}), above the cap of ε = {self.cap.epsilon:g}"
            )

    def _bound(
        self,
        steps: Sequence[tuple[Sequence[float], float]],
        delta: float,
        composition: Composition,
    ) -> PrivacyBound:
        sampling = self.sampling or "poisson"
        z = np.concatenate([np.zeros(0), *(np.asarray(noise) for noise, _ in steps)])
        q = np.concatenate([np.zeros(0), *(np.full(len(noise), rate) for noise, rate in steps)])
        nothing = Odometer(delta, sampling=sampling).bound()
        if not z.size:
            return replace(nothing, accountant="none")
        if not z.all():
            return replace(nothing, epsilon=math.inf, accountant="none", is_upper_bound=False)
        if composition == "fixed":
            return accounting.epsilon(z, sample_rate=q, delta=delta, sampling=sampling)
        orders = None if self.cap is None else self.cap.orders
        return _odometer(z, q, delta, orders, sampling)


def _odometer(
    z: FloatArray, q: FloatArray, delta: float, orders: Sequence[float] | None, sampling: str
) -> PrivacyBound:
    odometer = Odometer(delta, orders=None if orders is None else [*orders], sampling=sampling)
    for noise, rate in zip(z.tolist(), q.tolist(), strict=True):
        odometer.charge(noise, rate)
    return odometer.bound()


def orders_for(epsilon: float, delta: float, sampling: str) -> tuple[float, ...]:
    """Return the orders of the filter that a cap needs if runs come after others have spent.

    The largest is the best for steps whose noise is large; with less noise, lower ones are better.
    """
    (largest,) = Filter(epsilon, delta, sampling=sampling).orders
    return tuple(1.0 + (largest - 1.0) / 2.0**k for k in range(6))
