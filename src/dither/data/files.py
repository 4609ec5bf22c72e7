"""Find and open data files; one-line errors for those that are missing or damaged."""

import gzip
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dither.validate import InvalidTypeError, InvalidValueError

VARIABLE = "DITHER_DATA"
_UNREADABLE = (
    OSError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    NotImplementedError,  # a zip of a version that is not known
)
_TAR_ENDINGS = (".tar", ".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")


def directory(data_dir: str | Path | None = None) -> Path:
    """Return the data directory: the argument, else $DITHER_DATA, else ``data``.

    Example:
        >>> directory("somewhere").name
        'somewhere'
    """
    if data_dir is None:
        return Path(os.environ.get(VARIABLE) or "data")
    if not isinstance(data_dir, str | Path):
        raise InvalidTypeError(f"data_dir must be a path, got {type(data_dir).__name__}")
    return Path(data_dir)


def quoted(path: object) -> str:
    """Return the path for a message: in quotes and on one line."""
    return repr(str(path))


def file_error(path: object, why: str) -> InvalidValueError:
    """Return the error for a file that cannot be used."""
    return InvalidValueError(f"data file {quoted(path)} {why}")


def not_found_error(
    name: str, wanted: str, places: Iterable[Path], address: str
) -> InvalidValueError:
    """Return the error for a public set that is not there, with where to get it."""
    looked = ", ".join(quoted(place) for place in places)
    return InvalidValueError(
        f"{name} was not found: looked for {wanted} in {looked}; "
        f"set {VARIABLE} or --data-dir to its directory; download it from {address}"
    )


@contextmanager
def reading(path: object, kind: str) -> Iterator[None]:
    """Turn the errors of an unreadable or damaged file into one line that names it."""
    try:
        yield
    except _UNREADABLE as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise file_error(path, f"cannot be read as {kind}: {why}") from None


def content(path: Path, kind: str) -> bytes:
    """Return all bytes of a file, decompressed if its name ends in .gz."""
    with reading(path, kind):
        if path.suffix == ".gz":
            with gzip.open(path) as stream:
                return stream.read()
        return path.read_bytes()


def is_tar_name(path: Path) -> bool:
    """Return whether a file is a tar by its name, compressed or not."""
    return path.name.lower().endswith(_TAR_ENDINGS)


def tar_members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and contents of every regular file of a tar, in its order; nothing is unpacked."""
    with reading(path, "a tar archive"), tarfile.open(path) as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isreg() else None
            if stream is not None:
                yield member.name, stream.read()
        _check_end(archive)


def _check_end(archive: tarfile.TarFile) -> None:
    """Raise for an archive that ends early: tarfile takes a broken header for the end."""
    stream = archive.fileobj
    if stream is None:
        raise tarfile.ReadError("the archive is closed")
    stream.seek(archive.offset)
    if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("unexpected end of data or damaged header")
    while stream.read(1 << 20):
        pass  # to the end, where the checksum of the compression is
