"""Options that several commands share, their checks, and the values that they describe.

Everything that can be checked without data is checked here, before a command imports torch.
"""

import argparse
import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dither import schedules, validate
from dither.schedules.parsing import NAMES, parameters
from dither.types import Schedule

if TYPE_CHECKING:
    from torch import nn

    from dither.data import Examples
    from dither.planning import Plan

# Copies of the library's choices, whose import would slow down every command's help.
ACCOUNTANTS = ("pld", "rdp", "gdp", "theorem", "advanced")
ATTACKS = ("white-box", "final-model", "one-run")
DATASETS = ("cifar10", "digits", "fashion-mnist", "mnist")
MODELS = ("cnn", "linear", "mlp")
TABLE_MODELS = ("linear", "gam", "mlp")
TABLES = (".csv", ".csv.gz", ".parquet")
NOISES = ("uniform", "matched", "optimal", "correlated")
MISSING = ("drop", "own")
SAMPLINGS = ("poisson", "fixed", "cyclic")
FIGURES = (".pdf", ".png", ".svg")
REPORTS = (".html", ".json")

FEWEST_CANARIES = 100
CLIP_NORM_HELP = "largest norm of one record's gradient"
CLIPPING_HELP = "shorten gradients that are too long (flat), or scale all of them (automatic)"
BATCH_SIZE_HELP = "expected batch size, m"

_CHECKS: dict[str, Callable[..., object]] = {
    "epsilon": validate.positive,
    "evaluate_epsilon": validate.positive,
    "holdout": validate.probability,
    "delta": validate.probability,
    "noise_multiplier": validate.positive,
    "sample_rate": validate.rate,
    "clip_norm": validate.positive,
    "learning_rate": validate.positive,
    "steps": validate.step_count,
    "bands": validate.count,
    "epochs": validate.positive,
    "warmup": validate.count,
    "batch_size": validate.count,
    "rows_per_user": validate.count,
    "dataset_size": validate.count,
    "dimension": validate.count,
    "smoothness": validate.positive,
    "initial_gap": validate.nonnegative,
    "checkpoint_every": validate.count,
    "confidence": validate.probability,
    "trials": validate.count,
    "canary_rows": validate.count,
    "canaries": validate.count,
    "seeds": validate.count,
    "jobs": validate.count,
}


def print_json(value: object) -> None:
    """Print a value as JSON."""
    json.dump(value, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def number(text: str) -> float:
    """Read a number, an integer as an int; argparse names the option if it is not one."""
    try:
        return int(text) if text.strip().lstrip("+-").isdecimal() else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from None


def number_or_time(text: str) -> float | str:
    """Read a number of record-gradients; a time such as "2 min" stays text."""
    try:
        return validate.positive(compute=float(text))
    except ValueError as problem:
        if isinstance(problem, validate.InvalidValueError):
            raise argparse.ArgumentTypeError(str(problem)) from None
        return text


def check_options(arguments: argparse.Namespace) -> None:
    """Check every option that can be checked without data.

    Raises:
        InvalidValueError: if one is not allowed; the message names it.
    """
    for name, check in _CHECKS.items():
        if hasattr(arguments, name):
            check(**{name: getattr(arguments, name)})
    for name in ("trials", "canaries"):
        if getattr(arguments, name, FEWEST_CANARIES) < FEWEST_CANARIES:
            raise validate.InvalidValueError(
                f"{name} must be at least {FEWEST_CANARIES}, got {getattr(arguments, name)}"
            )
    if hasattr(arguments, "dataset_size") and hasattr(arguments, "batch_size"):
        validate.batch_within(batch_size=arguments.batch_size, dataset_size=arguments.dataset_size)
        if hasattr(arguments, "steps") or hasattr(arguments, "epochs"):
            step_count(arguments)
    if hasattr(arguments, "schedule") or hasattr(arguments, "warmup"):
        parse_schedule(arguments)
    if hasattr(arguments, "seed"):
        from dither.randomness import Source

        Source(arguments.seed)
    if hasattr(arguments, "model"):
        check_data(arguments)
    for name, suffixes in (("plot", FIGURES), ("output", REPORTS), ("save", ())):
        if hasattr(arguments, name):
            validate.output_file(suffixes, **{name: getattr(arguments, name)})


def add_schedule(
    parser: "argparse.ArgumentParser | argparse._ArgumentGroup",
    *,
    default: str = "inverse-sqrt",
    default_steps: int | None = None,
    help_text: str = "step sizes, for example linear:start=2,end=0.01",
) -> None:
    """Add step sizes and their number, for `parse_schedule` and `step_count`.

    Without ``default_steps`` neither step sizes nor their number have a default.
    """
    names = "; ".join(parameters(name) for name in NAMES)
    parser.add_argument(
        "--schedule",
        default=argparse.SUPPRESS if default_steps is None else default,
        metavar="NAME:KEY=VALUE,…",
        help=f"{help_text}. Choices: {names}",
    )
    parser.add_argument(
        "--warmup",
        type=number,
        default=argparse.SUPPRESS,
        metavar="STEPS",
        help="steps of linear warm-up before the schedule",
    )
    length = parser.add_mutually_exclusive_group()
    for name, other, given, text in (
        ("steps", "epochs", default_steps, "number of steps"),
        ("epochs", "steps", None, "ceil(epochs·n/m) steps"),
    ):
        length.add_argument(
            f"--{name}",
            type=number,
            default=argparse.SUPPRESS if given is None else given,
            help=text if given is not None else f"{text}; instead of --{other}",
        )


def add_sizes(parser: argparse.ArgumentParser, *, dataset_size: int) -> None:
    """Add n, m and C_G."""
    parser.add_argument(
        "--dataset-size",
        type=number,
        default=dataset_size,
        metavar="N",
        help="public number of records, n",
    )
    parser.add_argument("--batch-size", type=number, default=256, metavar="M", help=BATCH_SIZE_HELP)
    parser.add_argument("--clip-norm", type=number, default=1.0, metavar="C", help=CLIP_NORM_HELP)


def parse_schedule(arguments: argparse.Namespace) -> Schedule:
    """Return the step sizes of --schedule and --warmup."""
    if not hasattr(arguments, "schedule"):
        raise validate.InvalidValueError(
            f"warmup needs the schedule that follows it, --schedule, got {arguments.warmup!r} alone"
        )
    schedule = schedules.parse(arguments.schedule)
    if not hasattr(arguments, "warmup"):
        return schedule
    return schedules.Warmup(schedule, validate.count(warmup=arguments.warmup))


def step_count(arguments: argparse.Namespace) -> int:
    """Return T from --steps or --epochs."""
    if not hasattr(arguments, "epochs"):  # it is present only if it was given
        return validate.step_count(steps=arguments.steps)
    m, n = validate.batch_within(
        batch_size=arguments.batch_size, dataset_size=arguments.dataset_size
    )
    return validate.steps_in(arguments.epochs, batch_size=m, dataset_size=n)


def read_plan(path: str | Path) -> "Plan":
    """Return a saved plan.

    Raises:
        InvalidValueError: if the file cannot be read or is not a plan.
    """
    from dither.planning import Plan

    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError:
        raise validate.InvalidValueError(
            f"plan must be a file that exists and can be read, got {str(path)!r}"
        ) from None
    except UnicodeDecodeError:
        raise validate.InvalidValueError(f"plan must be a JSON file, got {str(path)!r}") from None
    return Plan.from_json(text)


def is_table(data: str) -> bool:
    """Return whether --data is a table, which `dither.cli.train_table` checks and trains on."""
    return data.lower().endswith(TABLES)


def check_data(arguments: argparse.Namespace) -> None:
    """Check the options of `read_data` and `find_model`, without reading anything."""
    test = getattr(arguments, "public_test", None)
    if test is not None and Path(test).resolve() == Path(arguments.data).resolve():
        raise validate.InvalidValueError(
            f"public_test must be another file than the private data, got {test!r}"
        )
    if is_table(arguments.data):
        return
    for name in ("public_test", "classes"):
        if arguments.data in DATASETS and hasattr(arguments, name):
            raise validate.InvalidValueError(
                f"{name} is for data of your own: {arguments.data} has its own, got "
                f"{getattr(arguments, name)!r}"
            )
    if hasattr(arguments, "users") and not arguments.data.lower().endswith(".npz"):
        raise validate.InvalidValueError(
            "users must be a column of a table or an array of a .npz file, got "
            f"{arguments.users!r} for {arguments.data!r}"
        )
    check_user_options(arguments, getattr(arguments, "users", None))
    for name in ("schema", "drop", "holdout", "evaluate_epsilon"):
        if hasattr(arguments, name):
            raise validate.InvalidValueError(
                f"{name} is for tables, {', '.join(TABLES)}, got {getattr(arguments, name)!r} for "
                f"{arguments.data!r}"
            )
    module, colon, _ = arguments.model.partition(":")
    is_own = bool(colon and module) and not module.startswith(".")
    if arguments.model not in ("auto", *MODELS) and not is_own:
        raise validate.InvalidValueError(
            f"model must be one of {', '.join(MODELS)} or MODULE:FUNCTION, got {arguments.model!r}"
        )


def check_user_options(arguments: argparse.Namespace, users: str | None) -> None:
    """Raise for options that need users, if there are none."""
    for name in ("rows_per_user", "missing"):
        if users is None and hasattr(arguments, name):
            raise validate.InvalidValueError(
                f"{name} needs the column of users, --users, got {getattr(arguments, name)!r} alone"
            )


def user_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options about users that are given, besides whose each row is."""
    names = ("rows_per_user", "missing")
    return {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}


def read_data(arguments: argparse.Namespace) -> tuple["Examples", "Examples | None"]:
    """Return the training records, and the public test records if there are any."""
    from dither import data

    data_dir = getattr(arguments, "data_dir", None)
    split = data.load(arguments.data, data_dir=data_dir)
    if arguments.data in DATASETS:
        return split.train, split.test
    train = split.train
    if hasattr(arguments, "classes"):
        classes = [name.strip() for name in arguments.classes.split(",")]
        train = data.with_classes(train, classes)
    if not hasattr(arguments, "public_test"):
        return train, None
    test = data.load(arguments.public_test, data_dir=data_dir).train
    if not bool(test.inputs.isfinite().all()):
        raise validate.InvalidValueError(
            f"public_test must have finite numbers only, got {arguments.public_test!r}"
        )
    return train, data.align_with(test, train)


def derived_from_private_data(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return what is taken from private data and not known to be public."""
    is_known = arguments.data in DATASETS or hasattr(arguments, "classes")
    return () if is_known else ("the set of classes",)


def find_model(name: str) -> Callable[..., "nn.Module"]:
    """Return the function of --model: (shape of a record, number of classes) → module."""
    from dither import training

    if name in training.MODELS:
        return training.MODELS[name]
    module, _, attribute = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, SyntaxError) as problem:
        raise validate.InvalidValueError(
            f"model must be importable, got {name!r}: {problem}"
        ) from None
    finally:
        sys.path.pop(0)
    if not callable(function):
        raise validate.InvalidValueError(f"model must be a function, got {name!r}: {function!r}")

    def build(shape: tuple[int, ...], classes: int) -> "nn.Module":
        return _build_model(function, name, shape, classes)

    return build


def _build_model(
    function: Callable[..., Any], name: str, shape: tuple[int, ...], classes: int
) -> "nn.Module":
    """Return a user's model, tried on two zero records."""
    import torch

    try:
        model = validate.instance(torch.nn.Module, model=function(shape, classes))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            outputs = model(torch.zeros(2, *shape))
    except (TypeError, RuntimeError, AttributeError, IndexError) as problem:
        why = " ".join(str(problem).split())[:200]
        raise validate.InvalidValueError(
            f"model must take records of shape {shape}, got {name!r}: {why}"
        ) from None
    if not isinstance(outputs, torch.Tensor) or outputs.shape != (2, classes):
        got = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise validate.InvalidValueError(
            f"model must return {classes} numbers per record, shape (2, {classes}) for two, got "
            f"{got} from {name!r}"
        )
    return model
