"""Checkpoints: tensors and facts in one safetensors file, which loads without executing code.

Nothing in it comes from the records but through the noise, and no random state is in it.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from dither.ledger.files import write_whole
from dither.validate import InvalidValueError

_FORMAT = "dither-checkpoint-1"


class DamagedCheckpointError(InvalidValueError):
    """A checkpoint is not what was written."""


def save_checkpoint(
    path: str | Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Write a checkpoint; the one before it stays in its place until this one is whole.

    Args:
        path: the file.
        tensors: by name.
        facts: anything that JSON can hold.
    """
    kept = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    about = json.dumps(facts, sort_keys=True, allow_nan=False)
    metadata = {"format": _FORMAT, "facts": about, "hash": _hash(kept, about)}
    write_whole(Path(path), safetensors.torch.save(kept, metadata))


def load_checkpoint(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a checkpoint, or say in one line what is wrong with it."""
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


def _hash(tensors: Mapping[str, Tensor], facts: str) -> str:
    found = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(safetensors.torch.save({"": tensor}))
    return found.hexdigest()


def _damaged(path: str | Path, why: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        f"checkpoint {str(path)!r} is damaged: {why}; what was spent is in the ledger"
    )
