"""The write-ahead record of what was spent, and checkpoints.

A `Ledger` is one SQLite file for a run, or for all runs on the same data. A run registers its plan,
and every step's cost is on disk before its release can be seen.
"""

from dither.ledger.account import Account
from dither.ledger.entries import (
    CapEntry,
    DamagedLedgerError,
    EndEntry,
    Entry,
    PlanEntry,
    RunEntry,
    StepEntry,
)
from dither.ledger.files import DamagedCheckpointError, load_checkpoint, save_checkpoint
from dither.ledger.ledger import Ledger
from dither.ledger.store import LedgerWriteError

__all__ = [
    "Account",
    "CapEntry",
    "DamagedCheckpointError",
    "DamagedLedgerError",
    "EndEntry",
    "Entry",
    "Ledger",
    "LedgerWriteError",
    "PlanEntry",
    "RunEntry",
    "StepEntry",
    "load_checkpoint",
    "save_checkpoint",
]
