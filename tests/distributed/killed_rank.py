"""One rank of a run that can be killed at any moment, and gone on with by any number of ranks."""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from tests.ledger import killed_run


def main(folder: Path, releases: Path, steps: int) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    count = releases if dist.get_rank() == 0 else Path(os.devnull)
    result = killed_run.run(folder, count, steps, seconds=0.02)
    sys.stdout.write(f"{result.steps}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
