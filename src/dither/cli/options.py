"""Options that several commands share."""

import argparse
import math

from dither import schedules, validate
from dither.types import Schedule


def number(text: str) -> float:
    """Read a number, a whole one as an int; argparse names the option if it is none."""
    try:
        return int(text) if text.strip().lstrip("+-").isdecimal() else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None


def add_schedule(parser: argparse.ArgumentParser) -> None:
    """Add what `schedule_of` and `steps_of` read."""
    names = ", ".join(schedules.NAMES)
    parser.add_argument(
        "--schedule",
        default="inverse-sqrt",
        metavar="NAME:KEY=VALUE,…",
        help=f"step sizes, for example linear:start=2,end=0.01; the names are {names}",
    )
    parser.add_argument(
        "--warmup", type=number, metavar="STEPS", help="steps of linear warm-up in front of it"
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=number, metavar="T", help="number of steps")
    length.add_argument("--epochs", type=number, help="the same as ceil(epochs·n/m) steps")


def schedule_of(arguments: argparse.Namespace) -> Schedule:
    """Return the schedule that the options describe."""
    schedule = schedules.parse(arguments.schedule)
    if arguments.warmup is None:
        return schedule
    return schedules.Warmup(schedule, validate.count(warmup=arguments.warmup))


def steps_of(arguments: argparse.Namespace, *, default: int) -> int:
    """Return T from --steps or --epochs."""
    if arguments.epochs is not None:
        epochs = validate.positive(epochs=arguments.epochs)
        m, n = validate.batch_within(
            batch_size=arguments.batch_size, dataset_size=arguments.dataset_size
        )
        return math.ceil(epochs * n / m)
    return validate.count(steps=default if arguments.steps is None else arguments.steps)
