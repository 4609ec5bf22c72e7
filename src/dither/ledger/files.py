"""Files that are there whole or not at all, whatever happens while they are written."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Put a file in its place when it has reached the disk; the old one stays until then."""
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """See to it that the names in a folder have reached the disk, where that can be asked for."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
