"""Join the process group of torchrun around a command; only rank 0 prints."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import Any

from dither.validate import InvalidTypeError, InvalidValueError

TIMEOUT = timedelta(minutes=5)
"""How long a rank waits for a silent one; one that has died is noticed at once."""

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
"""The backend of each kind of device."""

_REPORTED, _WAIT = "reported", timedelta(seconds=5)


@contextmanager
def join_group(device: str) -> Iterator[None]:
    """Join the group if torchrun has started this process; only rank 0 prints.

    Args:
        device: "cpu", or "cuda" for one GPU per rank.
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
    # Without a prefix, keys from before a restart (--max-restarts) would be read again.
    own = PrefixStore(f"start {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    dist.init_process_group(
        BACKENDS[device], store=own, rank=rank, world_size=size, timeout=TIMEOUT
    )
    try:
        with _report_once(rank, own):
            yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _report_once(rank: int, store: Any) -> Iterator[None]:
    """Silence all ranks but 0; another rank reports an error only if rank 0 has none."""
    from dither.training.errors import RankLostError, RankZeroError

    try:
        null = Path(os.devnull).open
        with null("w") as silence, redirect_stdout(silence) if rank else nullcontext():
            yield
    except RankZeroError as error:  # rank 0 reports it
        raise SystemExit(2) from error
    except RankLostError as lost:
        sys.stderr.write(f"dither: rank {rank}: {lost}\n")
        raise SystemExit(1) from lost
    except KeyboardInterrupt:
        if rank:
            raise SystemExit(130) from None
        raise
    except (InvalidValueError, InvalidTypeError, OSError) as error:
        if rank == 0:
            store.set(_REPORTED, "")
        elif _is_reported(store):
            raise SystemExit(2) from error
        raise


def _is_reported(store: Any) -> bool:
    """Return whether rank 0 reports an error too; both fail at about the same time."""
    try:
        store.wait([_REPORTED], _WAIT)
    except RuntimeError:  # timeout
        return False
    return True
