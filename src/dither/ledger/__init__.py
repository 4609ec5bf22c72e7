"""The write-ahead record of what was spent, and checkpoints.

A `Ledger` is one SQLite file for a run, or for all runs on the same data. A run registers its plan,
and every step's cost is on disk before its release can be seen.
"""

from dither.ledger.account import Account
from dither.ledger.entries import DamagedLedgerError
from dither.ledger.files import DamagedCheckpointError, load_checkpoint, save_checkpoint
from dither.ledger.ledger import Ledger
from dither.ledger.store import LedgerWriteError

__all__ = [
    "Account",
    "DamagedCheckpointError",
    "DamagedLedgerError",
    "Ledger",
    "LedgerWriteError",
    "load_checkpoint",
    "save_checkpoint",
]
