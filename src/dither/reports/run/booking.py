"""What the ledger has of a run: the part of a report that is believed if others say otherwise."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from dither import accounting
from dither.ledger import (
    FILE,
    EndEntry,
    Ledger,
    PlanEntry,
)
from dither.ledger.state import RunState
from dither.reports.run.plain_files import BAD, is_plain
from dither.reports.run.reading import About
from dither.types import PrivacyBound
from dither.validate import LARGEST, InvalidValueError

_MOST_RUNS = 24
_BESIDE = {".mark": 2**12, "-wal": 2**32, "-shm": 2**32, "-journal": 2**32}  # most bytes


@final
@dataclass(frozen=True)
class Booked:
    """A ledger, and the run in it.

    Attributes:
        summary: as ``dither ledger show --json`` prints it; None if nothing was spent.
        together: ε of the first run, of the first two, …; empty for too many runs.
        run: the run, or None if the ledger does not have it.
        alone: what the run has spent, as if there were no others.
        whole: what it may cost at most, wherever it stops.
        fingerprints: of all its plans, the first one first.
        ended: when it ended, if it did.
    """

    summary: dict[str, Any] | None
    together: tuple[float, ...]
    run: RunState | None = None
    alone: PrivacyBound | None = None
    whole: PrivacyBound | None = None
    fingerprints: tuple[str, ...] = ()
    ended: str | None = None


def read_ledger(folder: Path, about: About | None, alarms: list[str]) -> Booked | None:
    """Return what the ledger of a folder says; None, with an alarm, if it cannot be read.

    Args:
        folder: of the run.
        about: its run.json.
        alarms: what is wrong is added to these.
    """
    elsewhere = None if about is None else about.ledger
    place = folder / FILE if elsewhere is None else Path(elsewhere)
    if not is_plain(place):
        alarms.append(f"The ledger {place.name} was not found: nothing confirms what was spent.")
        return None
    try:
        _refuse_others_beside(place)
        ledger = Ledger(place, create=False)
        try:
            return _booked(ledger, about, alarms)
        finally:
            ledger.close()
    except (OSError, *BAD) as problem:
        why = str(problem).replace(str(place), place.name)[:300]
        alarms.append(f"The ledger cannot be read, so nothing confirms what was spent: {why}.")
        return None


def _refuse_others_beside(place: Path) -> None:
    """See that the files that belong to a ledger are plain and can be read in finite time."""
    for end, most in _BESIDE.items():
        path = place.with_name(f"{place.name}{end}")
        if path.exists() and not (is_plain(path) and path.stat().st_size <= most):
            raise InvalidValueError(f"{path.name} must be a plain file of at most {most:,} bytes")


def _booked(ledger: Ledger, about: About | None, alarms: list[str]) -> Booked:
    runs = ledger.runs
    try:
        shared = ledger.default_delta()
        found = ledger.summary(shared)
    except InvalidValueError:  # no run that claims something, and no cap
        shared, found = 0.0, None
    names = [*runs] if found is not None and len(runs) <= _MOST_RUNS else []
    spent = [ledger.total_of(*names[: k + 1], delta=shared).epsilon for k in range(len(names))]
    booked = Booked(found, tuple(spent))
    run = None if about is None else runs.get(about.run)
    if about is None or run is None:
        if about is not None:
            alarms.append(f"The ledger has no run {about.run!r}: nothing confirms what it spent.")
        return booked
    plans = [each for each in ledger.entries if isinstance(each, PlanEntry)]
    ends = [each for each in ledger.entries if isinstance(each, EndEntry)]
    alone, whole = _bounds(ledger, run)
    return replace(
        booked,
        run=run,
        alone=alone,
        whole=whole,
        fingerprints=(
            run.entry.fingerprint,
            *(each.fingerprint for each in plans if each.run == about.run),
        ),
        ended=next((each.time for each in ends[::-1] if each.run == about.run), None),
    )


def _bounds(ledger: Ledger, run: RunState) -> tuple[PrivacyBound, PrivacyBound]:
    """Return what a run has spent, and what it may cost at most, at its plan's δ."""
    entry = run.entry
    if math.isinf(entry.epsilon) or entry.delta == 0.0:
        adjacency = "replace-one" if entry.sampling == "fixed" else "add-remove"
        nothing = PrivacyBound(
            math.inf, entry.delta, "none", entry.sampling, adjacency, is_upper_bound=False
        )
        return nothing, nothing
    if entry.epsilon > LARGEST:
        raise InvalidValueError(f"a run's ε must be at most {LARGEST:g}, got {entry.epsilon:g}")
    alone = ledger.total_of(entry.run, delta=entry.delta)
    if not run.is_open and run.spent:
        return alone, alone
    whole = accounting.epsilon(
        run.promised(), sample_rate=entry.sample_rate, delta=entry.delta, sampling=entry.sampling
    )
    # A filter's claim may be above what its least noise costs.
    return alone, replace(whole, epsilon=max(whole.epsilon, entry.epsilon), lower=None)
