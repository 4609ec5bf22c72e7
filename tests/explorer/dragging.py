"""How long a preview takes over all that the sliders can reach: python -m tests.explorer.dragging.

Time of the process and time on the wall, each with its median, 95th percentile and worst, in
seconds: on a machine that others use, too, they differ.
"""

import random
import sys
import time
from typing import Any

import numpy as np

from dither.explorer import curves, settings


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
    dice = random.Random(1)  # noqa: S311 (settings to look at)
    found += [
        {
            "epsilon": f"{10 ** dice.uniform(-1, 1):.3g}",
            "delta": f"{10 ** dice.uniform(-8, -3):.3g}",
            "dataset_size": str(int(10 ** dice.uniform(3, 6))),
            "batch_size": str(int(2 ** dice.uniform(4, 13))),
            "epochs": f"{10 ** dice.uniform(0, 2):.3g}",
            "schedule": dice.choice(drags["schedule"]),
            "sampling": dice.choice(["poisson", "poisson", "fixed"]),
        }
        for _ in range(number)
    ]
    return [_whole(case) for case in found]


def _whole(changed: dict[str, str]) -> dict[str, Any]:
    given = {**settings.DEFAULTS, **changed}
    return {**given, "parameters": settings.form()["parameters"][given["schedule"]]}


def main() -> None:
    """Time every setting that is allowed, once."""
    process, wall, refused = [], [], 0
    for case in cases(150):
        start, start_wall = time.process_time(), time.perf_counter()
        try:
            shown = curves.preview(settings.read(case))
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
