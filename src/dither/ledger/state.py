"""What the entries of a ledger add up to."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Literal

import numpy as np

from dither import accounting
from dither.accounting import BudgetExceededError, Filter, Odometer
from dither.ledger.entries import CapEntry, Entry, PlanEntry, RunEntry, StepEntry
from dither.types import PrivacyBound, SpentSoFar

_MOST_CHOICES = 64
Composition = Literal["fixed", "adaptive"]
COMPOSITION_TEXT = {
    "fixed": (
        "Runs on the same records were planned before any of them had spent: they compose like one "
        "run."
    ),
    "adaptive": (
        "A run was registered after others had spent, and may have been planned from their "
        "results: the total is an odometer's."
    ),
}


@dataclass
class RunState:
    """One run, as far as the ledger knows it.

    Attributes:
        entry: how it was registered.
        noise: the least noise of its steps by its latest plan, those that were spent first.
        spent: the noise of the steps that were charged.
        after: names of the runs that had spent something when it was registered; none if it was
            planned before any of them had.
        is_open: whether it may still spend.
    """

    entry: RunEntry
    noise: tuple[float, ...]
    after: frozenset[str]
    spent: list[float] = field(default_factory=list)
    is_open: bool = True

    @property
    def sampling(self) -> str:
        """How it draws records: "poisson", "fixed" or "cyclic"."""
        return self.entry.sampling if self.entry.bands is None else "cyclic"

    @property
    def is_incomplete(self) -> bool:
        """Whether not all of its steps were charged."""
        return len(self.spent) < len(self.noise)

    def planned_noise(self) -> Sequence[float]:
        """Return the least noise of all its steps, charged or not; 0 if it claims no privacy."""
        return self.noise if math.isfinite(self.entry.epsilon) else (0.0,) * len(self.noise)

    def spent_noise(self) -> Sequence[float]:
        """Return the least noise of the steps that were charged.

        Noise that was chosen during the run is more than that; but how much more depends on the
        releases, and must not be composed as if it had been fixed.
        """
        return self.planned_noise()[: len(self.spent)]

    def committed_noise(self) -> Sequence[float]:
        """Return the least noise of the steps that were or may still be charged."""
        return self.planned_noise() if self.is_open else self.spent_noise()

    def came_later(self, runs: "Sequence[RunState]") -> bool:
        """Return whether any of these runs had spent something when it was registered."""
        return any(run.entry.run in self.after for run in runs)


@dataclass
class LedgerState:
    """The runs of a ledger, and their cap."""

    runs: dict[str, RunState] = field(default_factory=dict)
    cap: CapEntry | None = None

    @property
    def has_spent(self) -> bool:
        """Whether any step was charged."""
        return any(run.spent for run in self.runs.values())

    @property
    def spenders(self) -> frozenset[str]:
        """The names of the runs that have spent something."""
        return frozenset(name for name, run in self.runs.items() if run.spent)

    @property
    def composition(self) -> Composition:
        """How the runs compose: "fixed" if all were planned before anything was spent.

        Runs on other parts of a split do not count: they do not compose.
        """
        is_adaptive = any(map(_are_adaptive, choices([*self.runs.values()])))
        return "adaptive" if is_adaptive else "fixed"

    @property
    def sampling(self) -> str | None:
        """How the runs sample: all of them the same, as the claims differ otherwise."""
        return next((run.entry.sampling for run in self.runs.values()), None)

    @property
    def unit(self) -> str:
        """What the runs protect, all of them the same: "record" or "user"."""
        return next((run.entry.unit or "record" for run in self.runs.values()), "record")

    def after(self, entry: RunEntry) -> frozenset[str]:
        """The names of the runs from whose results a run may have been planned."""
        return frozenset() if entry.is_preplanned else self.spenders

    def add(self, entry: Entry) -> None:
        """Take in the next entry."""
        if isinstance(entry, CapEntry):
            self.cap = entry
        elif isinstance(entry, RunEntry):
            self.runs[entry.run] = RunState(entry, entry.noise, self.after(entry))
        elif isinstance(entry, StepEntry):
            self.runs[entry.run].spent.append(entry.noise)
        elif isinstance(entry, PlanEntry):
            run = self.runs[entry.run]
            run.noise, run.is_open = entry.noise, True
        else:
            self.runs[entry.run].is_open = False

    def total(self, delta: float, names: Sequence[str] | None = None) -> PrivacyBound:
        """Return what was spent by all runs together, or by some of them."""
        runs = [run for name, run in self.runs.items() if names is None or name in names]
        totals = [self._total(choice, delta) for choice in choices(runs)]
        found = replace(max(totals, key=lambda bound: bound.epsilon), unit=self.unit)
        if any(run.entry.is_conditional and run.spent for run in runs):
            found = replace(found, is_upper_bound=False, lower=None)
        is_incomplete = any(isinstance(bound, SpentSoFar) for bound in totals)
        return SpentSoFar(**asdict(found)) if is_incomplete else found

    def _total(self, runs: Sequence[RunState], delta: float) -> PrivacyBound:
        if _are_adaptive(runs):
            return self._bound([(run, run.spent_noise()) for run in runs], delta, "adaptive")
        # A run that was ended before its plan may have been ended by its results: only the full
        # plan's cost holds wherever it ends.
        steps = [
            (run, run.spent_noise() if run.is_open else run.planned_noise())
            for run in runs
            if run.spent
        ]
        found = self._bound(steps, delta, "fixed")
        is_incomplete = any(run.is_open and run.is_incomplete and run.spent for run in runs)
        return SpentSoFar(**asdict(found)) if is_incomplete else found

    def check_cap(self, run: RunState) -> None:
        """Raise if a run, with all that was spent or registered before it, would pass the cap."""
        others = [each for name, each in self.runs.items() if name != run.entry.run]
        for other in others[:1]:
            if other.entry.sampling != run.entry.sampling:
                raise BudgetExceededError(
                    f"run {run.entry.run!r} has {run.entry.sampling} sampling, but the ledger has "
                    f"{other.entry.sampling}: their claims have different adjacencies, and do not "
                    "add up; keep them in two ledgers"
                )
            if other.entry.unit != run.entry.unit:
                raise BudgetExceededError(
                    f"run {run.entry.run!r} protects {run.entry.unit or 'record'}s, but the ledger "
                    f"has runs that protect {self.unit}s: their claims do not add up; give users= "
                    "to all runs on the data, or to none"
                )
        if self.cap is None:
            return
        found, adaptive = self._planned_epsilon((*others, run), self.cap.delta)
        if not found <= self.cap.epsilon:
            how = (
                "as it is planned after others have spent, by a filter"
                if adaptive
                else "as all runs were registered before the first spent, by composition"
            )
            raise BudgetExceededError(
                f"run {run.entry.run!r} would bring the total to ε = {found:.4g} at "
                f"δ = {self.cap.delta:g} ({how}), above the cap of ε = {self.cap.epsilon:g}"
            )

    def check_new_cap(self, epsilon: float, delta: float) -> None:
        """Raise if runs that are open have registered more than a new cap would allow."""
        if not any(run.is_open and run.is_incomplete for run in self.runs.values()):
            return
        found, _ = self._planned_epsilon([*self.runs.values()], delta)
        if not found <= epsilon:
            raise BudgetExceededError(
                f"the cap must not be below what open runs have registered, ε = {found:.4g} at "
                f"δ = {delta:g}, got ε = {epsilon:g}: let them end first"
            )

    def _planned_epsilon(self, runs: Sequence[RunState], delta: float) -> tuple[float, bool]:
        """Return ε of all that runs have spent or may still spend, and if a filter bounds it."""
        found = [(self._planned(choice, delta), _are_adaptive(choice)) for choice in choices(runs)]
        return max(found)

    def _planned(self, runs: Sequence[RunState], delta: float) -> float:
        if not _are_adaptive(runs):
            return self._bound([(run, run.planned_noise()) for run in runs], delta, "fixed").epsilon
        # The filter must have held for the first runs whatever came of them.
        first = [(run, run.planned_noise()) for run in runs if not run.came_later(runs)]
        every = [(run, run.committed_noise()) for run in runs]
        return max(self._bound(each, delta, "adaptive").epsilon for each in (first, every))

    def _bound(
        self,
        steps: Sequence[tuple[RunState, Sequence[float]]],
        delta: float,
        composition: Composition,
    ) -> PrivacyBound:
        found = self._accounted(steps, delta, composition)
        kinds = sorted({run.sampling for run, _ in steps})
        return replace(found, sampling=" and ".join(kinds)) if "cyclic" in kinds else found

    def _accounted(
        self,
        steps: Sequence[tuple[RunState, Sequence[float]]],
        delta: float,
        composition: Composition,
    ) -> PrivacyBound:
        sampling = next((run.entry.sampling for run, _ in steps), "poisson")
        rates = [np.full(len(noise), run.entry.sample_rate) for run, noise in steps]
        z = np.concatenate([np.zeros(0), *(np.asarray(noise) for _, noise in steps)])
        q = np.concatenate([np.zeros(0), *rates])
        nothing = Odometer(delta, sampling=sampling).bound()
        if not z.size:
            return replace(nothing, accountant="none")
        if not z.all():
            return replace(nothing, epsilon=math.inf, accountant="none", is_upper_bound=False)
        if composition == "fixed":
            return accounting.epsilon(z, sample_rate=q, delta=delta, sampling=sampling)
        orders = None if self.cap is None else [*self.cap.orders]
        odometer = Odometer(delta, orders=orders, sampling=sampling)
        for noise, rate in zip(z.tolist(), q.tolist(), strict=True):
            odometer.charge(noise, rate)
        return odometer.bound()


def choices(runs: Sequence[RunState]) -> list[Sequence[RunState]]:
    """Return the sets of runs that one record can be in: one for each choice of parts.

    See `Ledger.part`. Where there are more than 64, all runs are taken together.
    """
    parts: dict[str, list[str | None]] = {}
    for run in runs:
        if run.entry.split is not None and run.entry.part not in parts.get(run.entry.split, []):
            parts.setdefault(run.entry.split, []).append(run.entry.part)
    if math.prod(map(len, parts.values())) > _MOST_CHOICES:
        return [runs]
    return [
        [
            run
            for run in runs
            if run.entry.split is None or (run.entry.split, run.entry.part) in chosen
        ]
        for chosen in product(*([(name, part) for part in parts[name]] for name in parts))
    ]


def _are_adaptive(runs: Sequence[RunState]) -> bool:
    return any(run.came_later(runs) for run in runs)


def orders_for(epsilon: float, delta: float, sampling: str) -> tuple[float, ...]:
    """Return the orders of the filter that a cap needs if runs come after others have spent.

    The largest is the best for steps whose noise is large; with less noise, lower ones are better.
    """
    (largest,) = Filter(epsilon, delta, sampling=sampling).orders
    return tuple(1.0 + (largest - 1.0) / 2.0**k for k in range(6))
