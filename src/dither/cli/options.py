"""Options that several commands share."""

import argparse

from dither import schedules, theory, validate
from dither.types import Schedule


def number(text: str) -> float:
    """Read a number, a whole one as an int; argparse names the option if it is none."""
    try:
        return int(text) if text.strip().lstrip("+-").isdecimal() else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None


def add_schedule(
    parser: argparse.ArgumentParser,
    *,
    default: str = "inverse-sqrt",
    default_steps: int | None = None,
    default_epochs: float | None = None,
) -> None:
    """Add what `schedule_of` and `steps_of` read, with a number of steps or of epochs."""
    names = "; ".join(schedules.parameters(name) for name in schedules.NAMES)
    parser.add_argument(
        "--schedule",
        default=default,
        metavar="NAME:KEY=VALUE,…",
        help=f"step sizes, for example linear:start=2,end=0.01. There are {names}",
    )
    parser.add_argument(
        "--warmup",
        type=number,
        default=argparse.SUPPRESS,
        metavar="STEPS",
        help="steps of linear warm-up in front of it",
    )
    length = parser.add_mutually_exclusive_group()
    parser.set_defaults(usual_length="epochs" if default_steps is None else "steps")
    for name, given, text in (
        ("steps", default_steps, "number of steps, T"),
        ("epochs", default_epochs, "ceil(epochs·n/m) steps"),
    ):
        length.add_argument(
            f"--{name}",
            type=number,
            default=argparse.SUPPRESS if given is None else given,
            help=text if given is not None else f"in place of the other: {text}",
        )


def add_data(parser: argparse.ArgumentParser, *, dataset_size: int) -> None:
    """Add n, m and C_G."""
    parser.add_argument(
        "--dataset-size",
        type=number,
        default=dataset_size,
        metavar="N",
        help="public number of records, n",
    )
    parser.add_argument(
        "--batch-size", type=number, default=256, metavar="M", help="records in a step, m"
    )
    parser.add_argument(
        "--clip-norm", type=number, default=1.0, metavar="C", help="bound on a gradient, C_G"
    )


def add_problem(parser: argparse.ArgumentParser) -> None:
    """Add what the utility bounds need to know of the problem."""
    parser.add_argument(
        "--dimension", type=number, default=100_000, metavar="D", help="number of parameters, d"
    )
    parser.add_argument(
        "--smoothness",
        type=number,
        default=1.0,
        metavar="L",
        help="Lipschitz constant of the gradient, L",
    )
    parser.add_argument(
        "--initial-gap", type=number, default=2.3, metavar="GAP", help="D_F = F(start) − minimum"
    )


def problem_of(arguments: argparse.Namespace) -> theory.Problem:
    """Return the problem that the options of `add_data` and `add_problem` describe."""
    return theory.Problem(
        dimension=arguments.dimension,
        smoothness=arguments.smoothness,
        initial_gap=arguments.initial_gap,
        clip_norm=arguments.clip_norm,
        dataset_size=arguments.dataset_size,
        batch_size=arguments.batch_size,
    )


def schedule_of(arguments: argparse.Namespace) -> Schedule:
    """Return the schedule that the options describe."""
    schedule = schedules.parse(arguments.schedule)
    if not hasattr(arguments, "warmup"):
        return schedule
    return schedules.Warmup(schedule, validate.count(warmup=arguments.warmup))


def steps_of(arguments: argparse.Namespace) -> int:
    """Return T from --steps or --epochs."""
    # The one without a default is there only if it was given, and then the other was not.
    other = "epochs" if arguments.usual_length == "steps" else "steps"
    if (other if hasattr(arguments, other) else arguments.usual_length) == "steps":
        return validate.step_count(steps=arguments.steps)
    m, n = validate.batch_within(
        batch_size=arguments.batch_size, dataset_size=arguments.dataset_size
    )
    return validate.steps_in(arguments.epochs, batch_size=m, dataset_size=n)
