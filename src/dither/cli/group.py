"""The process group that torchrun prepares, around a command."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import Any

from dither.validate import InvalidTypeError, InvalidValueError

TIMEOUT = timedelta(minutes=5)
"""How long a rank waits for another that is silent; one that has died is noticed at once."""

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
"""What carries tensors between the devices of a kind."""

_SAID, _PATIENCE = "said", timedelta(seconds=5)


@contextmanager
def joined(device: str) -> Iterator[None]:
    """Join the group if torchrun has started this process; rank 0 speaks for all.

    Args:
        device: where models are computed, "cpu" or "cuda"; then every rank has a GPU of its own.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("WORLD_SIZE") == "1":
        yield
        return
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
    # What ranks wrote there that torchrun has since replaced (--max-restarts) would be read again.
    own = PrefixStore(f"start {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    dist.init_process_group(
        BACKENDS[device], store=own, rank=rank, world_size=size, timeout=TIMEOUT
    )
    try:
        with _in_one_voice(rank, own):
            yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _in_one_voice(rank: int, store: Any) -> Iterator[None]:
    """Let only rank 0 be heard, unless another alone has something to complain of."""
    from dither.training.errors import RankLostError, RankZeroError

    try:
        nobody = Path(os.devnull).open
        with nobody("w") as silence, redirect_stdout(silence) if rank else nullcontext():
            yield
    except RankZeroError as refusal:  # it has said why
        raise SystemExit(2) from refusal
    except RankLostError as lost:
        sys.stderr.write(f"dither: rank {rank}: {lost}\n")
        raise SystemExit(1) from lost
    except KeyboardInterrupt:
        if rank:
            raise SystemExit(130) from None
        raise
    except (InvalidValueError, InvalidTypeError, OSError) as refusal:
        if rank == 0:
            store.set(_SAID, "")
        elif _is_said(store):
            raise SystemExit(2) from refusal
        raise


def _is_said(store: Any) -> bool:
    """Return whether rank 0 has refused something, too; both do so at about the same time."""
    try:
        store.wait([_SAID], _PATIENCE)
    except RuntimeError:  # torch's way to say that the time is up
        return False
    return True
