"""Files of a folder that nobody vouches for: only plain ones are read, of a limited size."""

import hashlib
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

BAD = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""What may be raised where a file does not hold what it should."""

_MOST_BYTES = 2**28
_MOST_MODEL_BYTES = 2**34


def damaged(name: str) -> str:
    """Return the alarm for a file that is not what it should be."""
    return f"{name} is damaged or cannot be read, and is not used."


def is_plain(path: Path) -> bool:
    """Return whether there is a file that is no folder, pipe or device."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def text_of(folder: Path, name: str, alarms: list[str], *, needed: bool = False) -> str | None:
    """Return the text of a file; None, with an alarm if it is needed or cannot be read."""
    try:
        with _opened(folder / name, _MOST_BYTES) as stream:
            return stream.read(_MOST_BYTES).decode("utf-8")
    except FileNotFoundError:
        if needed:
            alarms.append(f"{name} is missing.")
    except (OSError, UnicodeDecodeError):
        alarms.append(damaged(name))
    return None


def json_of(
    folder: Path, name: str, alarms: list[str], *, needed: bool = False
) -> dict[str, Any] | None:
    """Return the JSON object of a file; None, with an alarm, if it holds none."""
    text = text_of(folder, name, alarms, needed=needed)
    if text is None:
        return None
    try:
        found = parsed(text)
    except BAD:
        found = None
    if not isinstance(found, dict):
        alarms.append(damaged(name))
        return None
    return found


def parsed(text: str) -> Any:
    """Return what JSON text says, or raise one of `BAD`.

    Numbers that are none are refused, and so are strings that are no text (half of a surrogate
    pair), which could be written nowhere.
    """
    found = json.loads(text, parse_constant=_refuse)
    json.dumps(found, ensure_ascii=False).encode()
    return found


def model_hash(folder: Path, name: str, alarms: list[str]) -> str | None:
    """Return the SHA-256 of the model, if there is one."""
    try:
        with _opened(folder / name, _MOST_MODEL_BYTES) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        return None
    except OSError:
        alarms.append(damaged(name))
        return None


def _opened(path: Path, most: int) -> io.BufferedReader:
    """Open a plain file that is not too large; a pipe is refused without waiting for its writer."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size > most:
        os.close(descriptor)
        raise OSError(f"{path.name} is no plain file of at most {most:,} bytes")
    return os.fdopen(descriptor, "rb")


def _refuse(constant: str) -> None:
    raise ValueError(constant)
