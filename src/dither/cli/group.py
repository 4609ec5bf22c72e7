"""The process group that torchrun prepares, around a command."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from pathlib import Path

TIMEOUT = timedelta(minutes=5)
"""How long a rank waits for another that is silent; one that has died is noticed at once."""


BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
"""What carries tensors between the devices of a kind."""


@contextmanager
def joined(device: str) -> Iterator[None]:
    """Join the group if torchrun has started this process; only rank 0 is heard.

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

    from dither.training.errors import RefusedByFirstError

    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
    # What ranks wrote there that torchrun has since replaced (--max-restarts) would be read again.
    own = PrefixStore(f"start {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    dist.init_process_group(
        BACKENDS[device], store=own, rank=rank, world_size=size, timeout=TIMEOUT
    )
    try:
        if dist.get_rank() == 0:
            yield
        else:
            with Path(os.devnull).open("w") as nobody, redirect_stdout(nobody):
                yield
    except RefusedByFirstError as refusal:  # it has said why
        raise SystemExit(2) from refusal
    finally:
        dist.destroy_process_group()
