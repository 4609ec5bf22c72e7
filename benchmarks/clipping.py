"""One step's clipped sum: dither against plain PyTorch, three modes of Opacus, and opake.

All in one run on two threads, a process each, steps alternating, medians, on five small models;
with peak memory, and the differences of the sums. Run by ``make bench`` (or
``python -m benchmarks.clipping``); writes a record and a picture.
"""

from benchmarks.clipping_models import CASES
from benchmarks.clipping_report import compare_all


def main() -> None:
    """Measure everything, print it, and write the record and the picture."""
    compare_all("clipping", "benchmarks.clipping_models", CASES, repeats=15)


if __name__ == "__main__":
    main()
