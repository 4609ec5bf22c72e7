"""What can go wrong with a ledger."""

from dither.validate import InvalidValueError


class DamagedLedgerError(InvalidValueError):
    """A ledger is not what was written: nothing is counted from it, and nothing is spent."""


class LedgerWriteError(OSError):
    """A cost could not be written down: what it would have paid for is not released."""
