"""Files that survive crashes: atomic writes, and checkpoints that load without executing code.

A checkpoint is one safetensors file of tensors and facts. Nothing in it comes from the records but
through the noise, and it has no random state.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from dither.validate import InvalidValueError

_FORMAT = "dither-checkpoint-1"


class DamagedCheckpointError(InvalidValueError):
    """A checkpoint is not what was written."""


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file that is there complete or not at all; the old one stays until then."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def save_checkpoint(
    path: str | Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Write a checkpoint; the one before it stays in its place until this one is complete.

    Args:
        path: the file.
        tensors: by name.
        facts: JSON values by name.

    Example:
        >>> import tempfile, torch
        >>> path = tempfile.mkdtemp() + "/model.safetensors"
        >>> save_checkpoint(path, {"weight": torch.ones(2)}, {"step": 3})
        >>> load_checkpoint(path)
        ({'weight': tensor([1., 1.])}, {'step': 3})
    """
    copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(facts, sort_keys=True, allow_nan=False)
    metadata = {"format": _FORMAT, "facts": text, "hash": _hash(copies, text)}
    write_atomic(Path(path), safetensors.torch.save(copies, metadata))


def load_checkpoint(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the facts of a checkpoint.

    Raises:
        DamagedCheckpointError: the file is not what was written.

    Example:
        >>> load_checkpoint(__file__)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        dither.ledger.files.DamagedCheckpointError: checkpoint ... is damaged: ...
    """
    try:
        with safetensors.safe_open(path, framework="pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (no dict)
    except (safetensors.SafetensorError, ValueError) as problem:
        raise _damaged(path, str(problem)) from None
    if metadata.get("format") != _FORMAT:
        raise _damaged(path, f"its format is {metadata.get('format')!r}, not {_FORMAT!r}")
    if metadata.get("hash") != _hash(tensors, metadata.get("facts", "")):
        raise _damaged(path, "its contents were changed")
    return tensors, json.loads(metadata["facts"])


def _sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on disk, where the system can be asked."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hash(tensors: Mapping[str, Tensor], facts: str) -> str:
    digest = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(safetensors.torch.save({"": tensor}))
    return digest.hexdigest()


def _damaged(path: str | Path, why: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        f"checkpoint {str(path)!r} is damaged: {why}; what was spent is in the ledger"
    )
