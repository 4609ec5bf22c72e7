"""The file of a ledger: an SQLite table that only grows, and a mark with its length.

Every entry carries a hash of itself and of all before it. How many there are, and the last hash,
are also in a small file beside the database: a database that has lost entries, because a part of it
or of its journal was damaged, has fewer.
"""

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dither.ledger.entries import VERSION, DamagedLedgerError, Entry, from_text, to_text
from dither.ledger.state import LedgerState

_APPLICATION = 0x64697468  # "dith"
_PATIENCE = 120.0  # seconds to wait for another process
_START = "0" * 64
_MARK = 128  # bytes
_TABLE = (
    "CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, version INTEGER NOT NULL, "
    "kind TEXT NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL)"
)


class LedgerWriteError(OSError):
    """A cost could not be written: the step that it belongs to is not released."""


class Store:
    """The entries of one file, verified when they are read.

    Args:
        path: the file.
        is_new: whether the file may be created.

    Attributes:
        state: what the entries add up to.
    """

    def __init__(self, path: Path, *, is_new: bool) -> None:
        self.path = path
        self.state = LedgerState()
        self._number, self._last = 0, _START
        if not is_new and not path.is_file():
            raise DamagedLedgerError(f"ledger {str(path)!r} was not found")
        with self._translating_errors():
            self._database = sqlite3.connect(
                path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
            )
            self._prepare(is_new)
        self._file = _identity(path)
        self.refresh()

    def refresh(self) -> LedgerState:
        """Read what was added since, by whichever process."""
        with self._translating_errors():
            self._read()
        return self.state

    def entries(self) -> list[Entry]:
        """Return all entries, the oldest first."""
        self.refresh()
        query = "SELECT kind, version, body FROM entries WHERE number < ? ORDER BY number"
        with self._translating_errors():
            rows = self._database.execute(query, (self._number,)).fetchall()
        return [from_text(*row) for row in rows]

    def append(self, entry: Entry, check: Callable[[LedgerState], None]) -> None:
        """Add an entry, if the check does not raise on what is there at that moment.

        When this returns, the entry has reached the disk.
        """
        kind, body = to_text(entry)
        if _identity(self.path) != self._file:
            raise LedgerWriteError(f"ledger {str(self.path)!r} was deleted or replaced")
        with self._translating_errors(), self._locked():
            self._read()
            check(self.state)
            if not self._mark_path.exists():
                self._write_mark(0, _START)
            row = self._number, VERSION, kind, body
            new = (*row, _chained(self._last, *row))
            self._database.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", new)
        self._take(entry, new[4])
        # If two processes do this at once, the mark may stay at the entry before the last.
        self._write_mark(self._number, self._last)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _prepare(self, is_new: bool) -> None:
        """Check that the file is a ledger before it is changed, or make it one."""
        database = self._database
        tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        found = database.execute("PRAGMA application_id").fetchone()[0]
        if found != _APPLICATION and (tables or not is_new):
            raise DamagedLedgerError(f"{str(self.path)!r} is no ledger")
        if database.execute("PRAGMA journal_mode=WAL").fetchone()[0] != "wal":
            raise LedgerWriteError(f"ledger {str(self.path)!r}: this disk keeps no WAL journal")
        database.execute("PRAGMA synchronous=FULL")
        if not tables:
            with self._locked():
                database.execute(f"PRAGMA application_id={_APPLICATION}")
                database.execute(_TABLE)
            return
        problem = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise self._damaged(str(problem))

    def _read(self) -> None:
        """Read new rows, and check that no earlier one is missing."""
        number, expected = self._read_mark()  # before the rows: others may add to both
        query = "SELECT number, version, kind, body, hash FROM entries WHERE number >= ? ORDER BY 1"
        for row in self._database.execute(query, (self._number,)).fetchall():
            if row[0] != self._number or row[4] != _chained(self._last, *row[:4]):
                raise self._damaged(f"entry {self._number} was changed")
            self._take(from_text(row[2], row[1], row[3]), row[4])
        if number > self._number:
            raise self._damaged(f"{number - self._number} of {number} entries are gone")
        if number < 0 and self._number:
            raise self._damaged(f"{self._mark_path.name}, which belongs to it, is missing")
        if number > 0 and self._hash_of(number - 1) != expected:
            raise self._damaged(f"entry {number - 1} is another than was written")

    def _take(self, entry: Entry, found: str) -> None:
        self.state.add(entry)
        self._number, self._last = self._number + 1, found

    def _read_mark(self) -> tuple[int, str]:
        """Return how many entries there were when the mark was written, −1 if there is none."""
        place = self._mark_path
        if not place.exists():
            return -1, _START
        try:
            mark = json.loads(place.read_text(encoding="ascii"))
            return int(mark["entries"]), str(mark["hash"])
        except (ValueError, KeyError, TypeError):
            raise self._damaged(f"{place.name} was changed") from None

    def _hash_of(self, number: int) -> str:
        row = self._database.execute("SELECT hash FROM entries WHERE number = ?", (number,))
        return str(row.fetchone()[0])

    def _write_mark(self, entries: int, last: str) -> None:
        text = json.dumps({"entries": entries, "hash": last}).ljust(_MARK - 1) + "\n"
        place = self._mark_path
        is_new = not place.exists()
        with place.open("wb" if is_new else "r+b", buffering=0) as stream:
            stream.write(text.encode("ascii"))
            if is_new:
                os.fsync(stream.fileno())

    @property
    def _mark_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.mark")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock out other writers; the changes inside are committed together or not at all."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        finally:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        """Name the file in the errors of SQLite."""
        try:
            yield
        except sqlite3.OperationalError as problem:
            raise LedgerWriteError(f"ledger {str(self.path)!r}: {problem}") from None
        except sqlite3.DatabaseError as problem:
            raise self._damaged(str(problem)) from None
        except UnicodeDecodeError as problem:
            raise self._damaged(str(problem)) from None

    def _damaged(self, why: str) -> DamagedLedgerError:
        return DamagedLedgerError(
            f"ledger {str(self.path)!r} is damaged, and nothing is counted from it: "
            f"{' '.join(why.split())}"
        )


def _identity(path: Path) -> tuple[int, int] | None:
    """Return which file a path refers to."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _chained(last: str, number: int, version: int, kind: str, body: str) -> str:
    text = json.dumps([last, number, version, kind, body])
    return hashlib.sha256(text.encode()).hexdigest()
