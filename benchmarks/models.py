"""One step's clipped sum on the models that people train beyond the small ones.

As `benchmarks.clipping`, with the models of `benchmarks.large_models`. Run by ``make bench`` (or
``python -m benchmarks.models``); writes a record and a picture.
"""

from benchmarks.clipping_report import compare_all
from benchmarks.large_models import CASES


def main() -> None:
    """Measure everything, print it, and write the record and the picture."""
    compare_all("models", "benchmarks.large_models", CASES, repeats=5)


if __name__ == "__main__":
    main()
