"""Time the preview over the ranges of the sliders: python -m tests.explorer.time_previews.

Process time and wall time, each with its median, 95th percentile and maximum, in seconds.
"""

import random
import sys
import time
from typing import Any

import numpy as np

from dither.explorer import settings
from dither.explorer.preview import preview


def cases(number: int) -> list[dict[str, Any]]:
    """Return one slider at a time from end to end, then all of them at random."""
    drags = {
        "epsilon": [f"{value:.3g}" for value in np.geomspace(0.1, 10.0, 9)],
        "delta": [f"{value:.3g}" for value in np.geomspace(1e-8, 1e-3, 6)],
        "dataset_size": [str(int(value)) for value in np.geomspace(1e3, 1e6, 9)],
        "batch_size": [str(int(value)) for value in np.geomspace(16, 8192, 10)],
        "epochs": ["1", "2", "5", "10", "20", "50", "100"],
        "schedule": [*settings.form()["parameters"]],
    }
    found = [{name: text} for name, texts in drags.items() for text in texts]
    rng = random.Random(1)  # noqa: S311 (not for privacy)
    found += [
        {
            "epsilon": f"{10 ** rng.uniform(-1, 1):.3g}",
            "delta": f"{10 ** rng.uniform(-8, -3):.3g}",
            "dataset_size": str(int(10 ** rng.uniform(3, 6))),
            "batch_size": str(int(2 ** rng.uniform(4, 13))),
            "epochs": f"{10 ** rng.uniform(0, 2):.3g}",
            "schedule": rng.choice(drags["schedule"]),
            "sampling": rng.choice(["poisson", "poisson", "fixed"]),
        }
        for _ in range(number)
    ]
    return [_complete(case) for case in found]


def _complete(changed: dict[str, str]) -> dict[str, Any]:
    given = {**settings.DEFAULTS, **changed}
    return {**given, "parameters": settings.form()["parameters"][given["schedule"]]}


def main() -> None:
    """Time every setting that is allowed, once."""
    process, wall, refused = [], [], 0
    for case in cases(150):
        start, start_wall = time.process_time(), time.perf_counter()
        try:
            shown = preview(settings.read(case))
        except settings.FieldsError:
            refused += 1
            continue
        process.append(time.process_time() - start)
        wall.append(time.perf_counter() - start_wall)
        if not shown["curves"]:
            sys.stdout.write(f"no preview: {shown['note']} {case}\n")
    sys.stdout.write(f"{len(wall)} settings, {refused} refused\n")
    for name, times in (("process", process), ("wall", wall)):
        quantiles = np.quantile(times, [0.5, 0.95, 1.0])
        within = np.mean(np.array(times) < 1.0 / 3.0)
        sys.stdout.write(f"{name}: {quantiles.round(3)}, within a third of a second {within:.0%}\n")


if __name__ == "__main__":
    main()
