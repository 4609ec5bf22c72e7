"""The entries of a ledger: they are only added, and have a version."""

import json
import secrets
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from dither.planning.serialization import from_json_value, to_json_value
from dither.validate import InvalidValueError

VERSION = 1
OF_USERS = " of users"
"""How names of splits end that keep a user's rows in one part."""


class DamagedLedgerError(InvalidValueError):
    """A ledger is not what was written: nothing is counted from it, and nothing is spent."""


def now() -> str:
    """Return the time in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def new_name() -> str:
    """Return a name for a run: the time, and some random digits."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


@dataclass(frozen=True)
class RunEntry:
    """A run was registered, with the least noise that each of its steps may have.

    A run with correlated noise is charged by cycles of consecutive steps: then its "steps" here and
    in its other entries are cycles, and its rate is that of a record in a cycle.

    Attributes:
        run: its name, unique in the ledger.
        fingerprint: of its plan.
        sampling: "poisson" or "fixed".
        sample_rate: q.
        noise: the least noise multiplier of every step, as it was planned.
        epsilon: ε of the plan.
        delta: δ of the plan.
        is_seeded: whether its noise can be repeated by those who know the seed.
        time: when, in UTC.
        split: the name of a random split of the records, if the run had one of its parts only.
        part: the name of that part.
        is_conditional: True if its claim holds only if what was read off the records is public.
        bands: the number of steps in a cycle, if the run is charged by cycles.
        unit: "user" if that is what it protects; None if it is a record.
        is_preplanned: True if its noise was settled before any result on the records was seen.
    """

    run: str
    fingerprint: str
    sampling: str
    sample_rate: float
    noise: tuple[float, ...]
    epsilon: float
    delta: float
    is_seeded: bool
    time: str
    split: str | None = None
    part: str | None = None
    is_conditional: bool | None = None
    bands: int | None = None
    unit: str | None = None
    is_preplanned: bool | None = None


@dataclass(frozen=True)
class PlanEntry:
    """A run continues with another plan, whose first steps are those that were spent."""

    run: str
    fingerprint: str
    noise: tuple[float, ...]
    time: str


@dataclass(frozen=True)
class StepEntry:
    """A step was charged: its number, from 0, and its noise multiplier."""

    run: str
    step: int
    noise: float


@dataclass(frozen=True)
class EndEntry:
    """A run has ended and will not spend any more."""

    run: str
    steps: int
    time: str


@dataclass(frozen=True)
class CapEntry:
    """All runs together may cost (ε, δ) at most; the orders are of the filter, if one is needed."""

    epsilon: float
    delta: float
    orders: tuple[float, ...]
    time: str


Entry: TypeAlias = RunEntry | PlanEntry | StepEntry | EndEntry | CapEntry
_KINDS: dict[str, type[Any]] = {
    "run": RunEntry,
    "plan": PlanEntry,
    "step": StepEntry,
    "end": EndEntry,
    "cap": CapEntry,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_text(entry: Entry) -> tuple[str, str]:
    """Return an entry's kind, and its fields as JSON."""
    fields = {
        key: to_json_value(value) for key, value in asdict(entry).items() if value is not None
    }
    return _NAMES[type(entry)], json.dumps(fields, sort_keys=True, allow_nan=False)


def from_text(kind: str, version: int, text: str) -> Entry:
    """Return an entry, or raise if this version does not know what it means."""
    if kind not in _KINDS or version != VERSION:
        raise DamagedLedgerError(
            f"ledger has an entry of kind {kind!r}, version {version!r}, which this version of "
            "dither does not know: what it cost cannot be counted"
        )
    fields = {
        name: tuple(value) if isinstance(value, list) else from_json_value(value)
        for name, value in json.loads(text).items()
    }
    entry: Entry = _KINDS[kind](**fields)
    return entry
