"""Train a model privately: on scikit-learn's digits, a standard set, or data of your own."""

import argparse
import json
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from dither import accounting, validate
from dither.cli.canaries import canaries_of, clearing, keep_scores, with_canaries
from dither.cli.group import BACKENDS, joined
from dither.cli.models import model_of
from dither.cli.options import add_schedule, number, schedule_of, steps_of
from dither.cli.training_data import STANDARD, derived_from_private_data, read
from dither.planning import Plan, plan
from dither.randomness import Source
from dither.schedules import Constant
from dither.types import rounded

if TYPE_CHECKING:
    from torch import nn

    from dither.audit import Canaries
    from dither.data import Examples
    from dither.training import TrainResult

NAME = "train"
HELP = "train a model privately, and say what it cost"

_NOISES = ("optimal", "matched", "uniform")
_WITHOUT = "none (Adam, no clipping)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options; the defaults train on scikit-learn's digits."""
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        default="digits",
        help=f"one of {', '.join(STANDARD)}, or the path of a .csv or .npz file, "
        "of a folder of class folders of images, or of a tar of one",
    )
    for name, text in (
        (
            "label",
            "the column of a .csv file with the labels; else the one called label or target, else "
            "the last",
        ),
        (
            "classes",
            "the public set of classes, separated by commas, for data of your own; else they are "
            "read off it, and the claim says so",
        ),
        (
            "bounds",
            "public bounds of columns, to which a .csv file's values are clipped and by which they "
            "are scaled to -1 to 1, for example age=0:120,income=0:200000; columns without them "
            "are taken as they are",
        ),
        ("public-test", "a file with public records to measure on, of the same kind"),
        ("data-dir", "where the standard sets are; else $DITHER_DATA, else ./data"),
    ):
        data.add_argument(f"--{name}", default=argparse.SUPPRESS, metavar="NAME", help=text)
    data.add_argument(
        "--dataset-size",
        type=number,
        default=argparse.SUPPRESS,
        metavar="N",
        help="public number of records, n; else that of the training records, which you make "
        "public by that",
    )
    budget = parser.add_argument_group("budget and plan")
    budget.add_argument("--epsilon", type=number, default=3.0, help="ε, the target")
    budget.add_argument("--delta", type=number, default=1e-5, help="δ")
    budget.add_argument("--batch-size", type=number, default=128, metavar="M", help="expected, m")
    budget.add_argument("--clip-norm", type=number, default=1.0, metavar="C", help="C_G")
    budget.add_argument("--noise", choices=_NOISES, default="optimal", help="over the steps")
    budget.add_argument(
        "--sampling", choices=accounting.SAMPLINGS, default="poisson", help="of the batches"
    )
    # A float: argparse takes a whole number that is the default for one that was not given.
    add_schedule(parser, default="linear:start=2,end=0.1", default_epochs=30.0)
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model",
        default="mlp",
        metavar="linear|mlp|cnn|MODULE:FUNCTION",
        help="a function is called with the shape of a record and the number of classes",
    )
    model.add_argument(
        "--optimizer",
        choices=("adam", "adamw", "momentum", "sgd"),
        default="sgd",
        help="its learning rate is multiplied by the step sizes",
    )
    model.add_argument(
        "--averaging", choices=("ema", "tail", "none"), default="ema", help="of the iterates"
    )
    model.add_argument(
        "--device",
        choices=tuple(BACKENDS),
        default="cpu",
        help="where the model is computed; under torchrun every rank has a GPU of its own",
    )
    model.add_argument(
        "--seed",
        type=number,
        default=argparse.SUPPRESS,
        help="for experiments only: a seeded run protects nobody who can guess the seed",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--run-dir",
        default=argparse.SUPPRESS,
        metavar="DIR",
        help="a new folder for the model, checkpoints and the ledger",
    )
    output.add_argument(
        "--resume", action="store_true", help="go on with the run in --run-dir, if there is one"
    )
    output.add_argument(
        "--ledger",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="one budget for all runs on the same data; see dither ledger",
    )
    output.add_argument(
        "--checkpoint-every", type=number, default=50, metavar="STEPS", help="in --run-dir"
    )
    output.add_argument(
        "--canaries",
        type=number,
        default=argparse.SUPPRESS,
        metavar="N",
        help="put about half of N records of noise into the data, for dither audit --run-dir DIR "
        "--attack one-run; they cost some accuracy",
    )
    output.add_argument("--plot", default=argparse.SUPPRESS, metavar="FILE", help="draw the runs")
    output.add_argument("--alone", action="store_true", help="without runs to compare with")
    output.add_argument("--quiet", action="store_true", help="no progress, and one line at the end")
    output.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(arguments: argparse.Namespace) -> None:
    """Plan, train, compare where the data is public, print; under torchrun with all its ranks."""
    with joined(_checked_device(arguments.device)):
        _run(arguments)


def _run(arguments: argparse.Namespace) -> None:
    from dither.reports.figures import check_figure_path
    from dither.training.ranks import Ranks

    group = Ranks()
    if hasattr(arguments, "plot"):
        check_figure_path(arguments.plot)
    Source(getattr(arguments, "seed", None))  # refuses what is no whole number
    examples, test = read(arguments)
    build = model_of(arguments.model)
    arguments.derived_from_private_data = derived_from_private_data(arguments)
    # Folders are the first rank's concern: what it makes of them is what all go by.
    plans = group.on_rank_zero(lambda: _checked_plans(arguments, len(examples)))
    chosen = plans[arguments.noise]
    canaries = group.on_rank_zero(lambda: canaries_of(arguments, chosen, examples))
    if canaries is not None:
        examples = with_canaries(canaries, examples)
    if not (arguments.quiet or arguments.json):
        sys.stdout.write(f"{chosen}\n")
        if arguments.data.lower().endswith(".csv") and not hasattr(arguments, "bounds"):
            sys.stdout.write(
                "No --bounds are given: columns are taken as they are, which goes well only if "
                "their values are about 1 in size.\n"
            )
    with clearing(arguments, canaries) if group.is_rank_zero else nullcontext():
        runs = {
            name: _trained(arguments, made, name, examples, test, build)
            for name, made in plans.items()
        }
    if group.is_rank_zero:
        _tell(arguments, runs, canaries)


def _tell(
    arguments: argparse.Namespace,
    runs: dict[str, "TrainResult"],
    canaries: "Canaries | None",
) -> None:
    """Draw, keep and print what has come of the runs."""
    from dither.reports import save_figure, statement, training_figure

    plot = getattr(arguments, "plot", None)
    if plot is not None:
        save_figure(training_figure(runs), plot)
    result = runs[arguments.noise]
    if canaries is not None:
        keep_scores(canaries, result, Path(arguments.run_dir))
    if arguments.json:
        found = {name: _summary(each) for name, each in runs.items()}
        said = {"runs": found, "statement": statement(result)}
        json.dump(said, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    elif arguments.quiet:
        measured = "".join(f", test {key} {value:.4f}" for key, value in result.metrics.items())
        derived = " and ".join(result.derived_from_private_data)
        unproven = f"; NOT PROVEN: {derived} read off the private data" if derived else ""
        sys.stdout.write(f"{result.bound}{measured}{unproven}\n")
    else:
        _print(runs, statement(result))
        if canaries is not None:
            sys.stdout.write(
                f"{int(canaries.included.sum()):,} of {canaries.included.size:,} canaries were in "
                f"the data: dither audit --run-dir {arguments.run_dir} --attack one-run\n"
            )
        if plot is not None:
            sys.stdout.write(f"The picture is in {plot}.\n")


def _checked_device(name: str) -> str:
    """Return where to compute, if torch can."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise validate.InvalidValueError(
            "device must be cpu where torch finds no GPU, got 'cuda': dither doctor tells"
        )
    return name


def _checked_plans(arguments: argparse.Namespace, records: int) -> dict[str, Plan]:
    """Return the plans, that of a run which goes on from its folder."""
    from dither.training.run_directory import check_directory

    if hasattr(arguments, "run_dir"):
        check_directory(arguments.run_dir, resume=arguments.resume)
    elif arguments.resume:
        raise validate.InvalidValueError("resume needs the folder of the run, --run-dir, got none")
    plans = _plans(arguments, records)
    if arguments.resume:
        plans[arguments.noise] = _begun(plans[arguments.noise], Path(arguments.run_dir))
    return plans


def _plans(arguments: argparse.Namespace, records: int) -> dict[str, Plan]:
    """Return the plan that was asked for, and where all data is public those to compare with."""
    arguments.dataset_size = getattr(arguments, "dataset_size", records)
    schedule, steps = schedule_of(arguments), steps_of(arguments)
    sizes: dict[str, Any] = {
        "dataset_size": arguments.dataset_size,
        "batch_size": arguments.batch_size,
        "steps": steps,
        "stepsizes": schedule,
        "sampling": arguments.sampling,
    }
    compared = arguments.data in STANDARD and not arguments.alone
    names = dict.fromkeys((arguments.noise, "uniform") if compared else (arguments.noise,))
    plans = {
        name: plan(
            epsilon=arguments.epsilon,
            delta=arguments.delta,
            clip_norm=arguments.clip_norm,
            noise=name,
            **sizes,
        )
        for name in names
    }
    if compared:
        # Step sizes for clipped gradients do not suit plain ones; Adam's own do.
        plans[_WITHOUT] = Plan.unsafe_without_noise(**{**sizes, "stepsizes": Constant(5.0)})
    return plans


def _begun(made: Plan, folder: Path) -> Plan:
    """Return the plan that a run began with, if these options give it but for the last digits."""
    file = folder / "plan.json"
    if not file.exists():
        return made
    saved = Plan.from_json(file.read_text(encoding="utf-8"))
    same = (
        (saved.steps, saved.dataset_size, saved.batch_size, saved.sampling, saved.clip_norm)
        == (made.steps, made.dataset_size, made.batch_size, made.sampling, made.clip_norm)
        and np.allclose(saved.noise_multipliers, made.noise_multipliers, rtol=1e-5)
        and np.allclose(saved.stepsizes, made.stepsizes, rtol=1e-9)
        and saved.bound.delta == made.bound.delta
    )
    return saved if same else made


def _trained(
    arguments: argparse.Namespace,
    made: Plan,
    name: str,
    examples: "Examples",
    test: "Examples | None",
    build: Callable[..., "nn.Module"],
) -> "TrainResult":
    import torch

    from dither.training import Public, Run, train

    seed = getattr(arguments, "seed", None)
    if seed is not None:
        torch.manual_seed(seed % 2**63)
    run = None
    if name == arguments.noise:
        run = Run(
            getattr(arguments, "run_dir", None),
            resume=arguments.resume,
            ledger=getattr(arguments, "ledger", None),
            checkpoint_every=arguments.checkpoint_every,
            derived_from_private_data=arguments.derived_from_private_data,
        )
    model = build(tuple(examples.inputs.shape[1:]), len(examples.classes))
    return train(
        model.to(arguments.device),
        examples,
        made,
        optimizer="adam" if name == _WITHOUT else arguments.optimizer,
        evaluate=None if test is None else Public(test),
        every=-(-made.steps // 20),
        run=run,
        averaging=None if arguments.averaging == "none" else arguments.averaging,
        progress=not arguments.quiet,
        seed=seed,
    )


def _summary(result: "TrainResult") -> dict[str, Any]:
    from dither.training.history import finite

    summary: dict[str, Any] = finite(
        {
            "epsilon": result.bound.epsilon,
            "delta": result.bound.delta,
            "steps": result.steps,
            "plan": result.plan.fingerprint,
            "metrics": result.metrics,
        }
    )
    return summary


def _print(runs: dict[str, "TrainResult"], text: str) -> None:
    console = Console(highlight=False)
    first = next(iter(runs.values()))
    table = Table("noise", "ε", *(f"test {name}" for name in first.metrics))
    for name, result in runs.items():
        epsilon = result.bound.epsilon
        shown = rounded(epsilon, 4) if math.isfinite(epsilon) else "∞"
        table.add_row(name, shown, *(f"{value:.4f}" for value in result.metrics.values()))
    console.print(table)
    if not first.metrics:
        console.print("No accuracy: give public records to measure on with --public-test.")
    sys.stdout.write(f"{text}\n")
