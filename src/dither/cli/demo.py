"""See in a minute what privacy costs: five ways to train on scikit-learn's digits.

Without privacy; with what dither chooses, for a network and for a linear model; with the settings
of Opacus' example; with those of the paper. Nothing is downloaded.
"""

import argparse
import math
import sys
import time
from textwrap import fill
from typing import TYPE_CHECKING, Any

from dither import validate
from dither.cli.options import number, print_json

if TYPE_CHECKING:
    from dither.cli.demo_ways import Trained, Way

NAME = "demo"
HELP = "see in a minute what privacy costs, and what to type next"

_NOTES = """
Accuracy on {test} digits after training on {n:,}: mean ± standard deviation over {seeds} seeds.
δ = 1/(10·n). All networks have one hidden layer of 128 units. Digits were among the sets on which
dither's rule was developed: "How dither chooses" in the docs has its results on others.

The statement of dither's network (its demo is seeded, which the full statement says):
{statement}
"""

_NEXT = """
Next, a table of your own:
  dither schema people.csv --target COLUMN -o schema.toml
  dither train --data people.csv --schema schema.toml --epsilon {epsilon:g}
or in Python any PyTorch model with one loss per record:
  result = dither.train(model, (inputs, targets), epsilon={epsilon:g})
  print(dither.reports.statement(result))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--epsilon", type=number, default=1.0, help="ε of the private ways")
    parser.add_argument("--seeds", type=number, default=5, help="number of runs of each way")
    parser.add_argument(
        "--plot", default=argparse.SUPPRESS, metavar="FILE", help="draw the comparison"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(arguments: argparse.Namespace) -> None:
    """Train every way with every seed, then draw, then print."""
    from threadpoolctl import threadpool_limits

    from dither.cli.demo_ways import ways
    from dither.data import Examples
    from dither.data.loading import load_digits

    split = load_digits()
    records, test = split.train, validate.instance(Examples, test=split.test)
    compared = ways(records, test, arguments.epsilon)
    with threadpool_limits(1):  # more threads only wait for each other on products of this size
        runs, seconds = _train_all(compared, arguments.seeds)
    if hasattr(arguments, "plot"):
        _draw(runs, arguments)
    if arguments.json:
        print_json({"ways": {name: _summary(found) for name, found in runs.items()}})
        return
    _print_table(runs, seconds)
    sys.stdout.write(
        _NOTES.format(n=len(records), test=len(test), seeds=arguments.seeds, statement=_claim(runs))
    )
    sys.stdout.write(_NEXT.format(epsilon=arguments.epsilon))
    if hasattr(arguments, "plot"):
        sys.stdout.write(f"\nThe picture is in {arguments.plot}.\n")


def _train_all(
    compared: "list[Way]", seeds: int
) -> "tuple[dict[str, list[Trained]], dict[str, float]]":
    """Return the runs of every way, and the seconds that one takes."""
    from dither.progress import Progress

    runs: dict[str, list[Trained]] = {way.name: [] for way in compared}
    seconds = dict.fromkeys(runs, 0.0)
    done, total = 0, seeds * sum(way.work for way in compared)
    with Progress("training", total) as bar:
        for seed in range(seeds):
            for way in compared:
                begin = time.monotonic()
                runs[way.name].append(way.run(seed))
                seconds[way.name] += (time.monotonic() - begin) / seeds
                done += way.work
                bar.update(done)
    return runs, seconds


def _draw(runs: "dict[str, list[Trained]]", arguments: argparse.Namespace) -> None:
    from dither.reports import demo_figure, save_figure

    figure = demo_figure(
        {name: [each.accuracy for each in found] for name, found in runs.items()},
        {name: [each.curve for each in found] for name, found in runs.items() if found[0].curve},
        epsilon=arguments.epsilon,
    )
    save_figure(figure, arguments.plot)


def _spread(found: "list[Trained]") -> tuple[float, float]:
    """Return mean and standard deviation of the accuracies."""
    import numpy as np

    values = [each.accuracy for each in found]
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def _summary(found: "list[Trained]") -> dict[str, Any]:
    from dither.training.history import finite

    mean, deviation = _spread(found)
    summary: dict[str, Any] = finite(
        {
            "epsilon": found[0].epsilon,
            "steps": found[0].steps,
            "accuracies": [each.accuracy for each in found],
            "mean": mean,
            "standard_deviation": deviation,
        }
    )
    return summary


def _print_table(runs: "dict[str, list[Trained]]", seconds: dict[str, float]) -> None:
    from rich.console import Console
    from rich.table import Table

    from dither.types import rounded

    table = Table("way to train", "ε", "test accuracy, %", "steps", "seconds")
    for name, found in runs.items():
        (mean, deviation), epsilon = _spread(found), found[0].epsilon
        accuracy = f"{mean:.1f}" if math.isnan(deviation) else f"{mean:.1f} ± {deviation:.1f}"
        spent = rounded(epsilon, 3) if math.isfinite(epsilon) else "∞"
        table.add_row(name, spent, accuracy, f"{found[0].steps:,}", f"{seconds[name]:.1f}")
    Console(highlight=False).print(table)


def _claim(runs: "dict[str, list[Trained]]") -> str:
    """Return the first paragraph of the privacy statement of the first run by ε alone."""
    from dither.training.statement import facts_of, guarantee

    results = (each.result for found in runs.values() for each in found)
    first = next(result for result in results if result is not None and result.recipe is not None)
    return fill(guarantee(facts_of(first)), 80)
