"""Train a model privately: on scikit-learn's digits, a standard set, or data of your own."""

import argparse
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dither import validate
from dither.cli.options import (
    BATCH_SIZE_HELP,
    CLIP_NORM_HELP,
    DATASETS,
    NOISES,
    SAMPLINGS,
    add_schedule,
    derived_from_private_data,
    find_model,
    number,
    parse_bounds,
    parse_schedule,
    print_json,
    read_data,
    step_count,
)
from dither.cli.run_directory import (
    add_canaries,
    build_canaries,
    check_canaries,
    remove_unused_canaries,
    write_scores,
)
from dither.cli.torchrun import BACKENDS, join_group
from dither.types import rounded

if TYPE_CHECKING:
    from torch import nn

    from dither.audit import Canaries
    from dither.data import Examples
    from dither.planning import Plan
    from dither.training import TrainResult

NAME = "train"
HELP = "train a model privately, and print what it costs"

_WITHOUT_NOISE = "none (Adam, no clipping)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options; the defaults train on scikit-learn's digits."""
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        default="digits",
        help=f"one of {', '.join(DATASETS)}, or the path of a .csv or .npz file, "
        "or of a directory (or tar) with one folder of images per class",
    )
    for name, metavar, text in (
        (
            "label",
            "COLUMN",
            "the label column of a .csv file; default: label or target if there is one, else the "
            "last column",
        ),
        (
            "classes",
            "A,B,…",
            "the public set of classes, separated by commas; default: those that occur, and the "
            "privacy statement says so",
        ),
        (
            "bounds",
            "COLUMN=LOW:HIGH,…",
            "public bounds of columns, for example age=0:120,income=0:200000: values are clipped "
            "to them and scaled to [-1, 1]; other columns are unchanged",
        ),
        ("public-test", "FILE", "a file of public records to evaluate on, in the same format"),
        ("data-dir", "DIR", "directory of the standard sets; default: $DITHER_DATA, else ./data"),
    ):
        data.add_argument(f"--{name}", default=argparse.SUPPRESS, metavar=metavar, help=text)
    data.add_argument(
        "--dataset-size",
        type=number,
        default=argparse.SUPPRESS,
        metavar="N",
        help="public number of records, n; default: the number of training records, which "
        "becomes public by that",
    )
    budget = parser.add_argument_group("budget and plan")
    budget.add_argument("--epsilon", type=number, default=3.0, help="ε, the target")
    budget.add_argument("--delta", type=number, default=1e-5, help="δ")
    budget.add_argument("--batch-size", type=number, default=128, metavar="M", help=BATCH_SIZE_HELP)
    budget.add_argument("--clip-norm", type=number, default=1.0, metavar="C", help=CLIP_NORM_HELP)
    budget.add_argument(
        "--noise", choices=NOISES, default="optimal", help="how noise is spread over the steps"
    )
    budget.add_argument(
        "--sampling", choices=SAMPLINGS, default="poisson", help="how batches are drawn"
    )
    # A float: argparse cannot tell a given integer from an equal default.
    add_schedule(parser, default="linear:start=2,end=0.1", default_epochs=30.0)
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model",
        default="mlp",
        metavar="linear|mlp|cnn|MODULE:FUNCTION",
        help="a function is called with (shape of a record, number of classes)",
    )
    model.add_argument(
        "--optimizer",
        choices=("adam", "adamw", "momentum", "sgd"),
        default="sgd",
        help="its learning rate is multiplied by the step sizes",
    )
    model.add_argument(
        "--averaging",
        choices=("ema", "tail", "none"),
        default="ema",
        help="which average of the models of the steps is kept",
    )
    model.add_argument(
        "--device",
        choices=tuple(BACKENDS),
        default="cpu",
        help="device of the model; under torchrun one GPU per rank",
    )
    model.add_argument(
        "--seed",
        type=number,
        default=argparse.SUPPRESS,
        help="for experiments only: a seeded run is not private to anyone who can guess the seed",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--run-dir",
        default=argparse.SUPPRESS,
        metavar="DIR",
        help="a new directory for the model, checkpoints and the ledger",
    )
    output.add_argument(
        "--resume", action="store_true", help="continue the run in --run-dir, if there is one"
    )
    output.add_argument(
        "--ledger",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="one budget for all runs on the same data; see dither ledger",
    )
    output.add_argument(
        "--checkpoint-every",
        type=number,
        default=50,
        metavar="STEPS",
        help="steps between checkpoints in --run-dir",
    )
    output.add_argument(
        "--canaries",
        type=number,
        default=argparse.SUPPRESS,
        metavar="N",
        help="add about half of N random records to the data, for dither audit --run-dir DIR "
        "--attack one-run; this costs some accuracy",
    )
    output.add_argument(
        "--plot", default=argparse.SUPPRESS, metavar="FILE", help="draw the training curves"
    )
    output.add_argument(
        "--alone",
        action="store_true",
        help="train only the private model, without the runs for comparison",
    )
    output.add_argument("--quiet", action="store_true", help="no progress, one line of output")
    output.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(arguments: argparse.Namespace) -> None:
    """Plan, train, compare where the data is public, print; under torchrun with all ranks."""
    if arguments.resume and not hasattr(arguments, "run_dir"):
        raise validate.InvalidValueError("resume needs a run directory, --run-dir, got none")
    check_canaries(arguments)
    _check_device(arguments.device)
    with join_group(arguments.device):
        _run(arguments)


def _run(arguments: argparse.Namespace) -> None:
    from dither.training.distributed import Ranks

    ranks = Ranks()
    # Rank 0 alone reads and writes the run directory.
    ranks.on_rank_zero(lambda: _check_directory(arguments))
    build = find_model(arguments.model)
    examples, test = read_data(arguments)
    plans = ranks.on_rank_zero(lambda: _build_plans(arguments, len(examples)))
    canaries = ranks.on_rank_zero(lambda: build_canaries(arguments, examples))
    if ranks.is_rank_zero and not arguments.quiet:
        _hint_bounds(arguments, examples)
    if canaries is not None:
        examples = add_canaries(canaries, examples)
    if not (arguments.quiet or arguments.json):
        sys.stdout.write(f"{plans[arguments.noise]}\n")
        sys.stdout.flush()
    with remove_unused_canaries(arguments, canaries) if ranks.is_rank_zero else nullcontext():
        results = {
            name: _train(arguments, plan, name, examples, test, build)
            for name, plan in plans.items()
        }
    if ranks.is_rank_zero:
        _report(arguments, results, canaries)


def _hint_bounds(arguments: argparse.Namespace, examples: "Examples") -> None:
    """Name the columns of a table that have no bounds."""
    bounds = parse_bounds(getattr(arguments, "bounds", ""))
    unbounded = [name for name in examples.columns if name not in bounds]
    if unbounded:
        shown = ", ".join(unbounded[:10]) + (", …" if len(unbounded) > 10 else "")
        sys.stderr.write(f"no --bounds for {shown}: used unscaled; values far from 1 train badly\n")


def _check_device(name: str) -> None:
    """Raise if torch cannot compute there."""
    if name == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise validate.InvalidValueError(
                "device must be cpu where torch finds no GPU, got 'cuda': see dither doctor"
            )


def _check_directory(arguments: argparse.Namespace) -> None:
    """Raise if a run cannot begin, or be resumed, in the run directory."""
    from dither.training.run_directory import check_directory

    if hasattr(arguments, "run_dir"):
        check_directory(arguments.run_dir, resume=arguments.resume)


def _build_plans(arguments: argparse.Namespace, records: int) -> dict[str, "Plan"]:
    """Return the plan and, where all data is public, those to compare with."""
    from dither.planning import Plan, plan
    from dither.schedules import Constant

    sized = argparse.Namespace(**{"dataset_size": records, **vars(arguments)})
    sizes: dict[str, Any] = {
        "dataset_size": sized.dataset_size,
        "batch_size": sized.batch_size,
        "steps": step_count(sized),
        "stepsizes": parse_schedule(sized),
        "sampling": sized.sampling,
    }
    is_compared = sized.data in DATASETS and not sized.alone
    names = dict.fromkeys((sized.noise, "uniform") if is_compared else (sized.noise,))
    plans = {
        name: plan(
            epsilon=sized.epsilon,
            delta=sized.delta,
            clip_norm=sized.clip_norm,
            noise=name,
            **sizes,
        )
        for name in names
    }
    if is_compared:
        # Step sizes for clipped gradients do not suit plain ones; Adam's own do.
        plans[_WITHOUT_NOISE] = Plan.unsafe_without_noise(**{**sizes, "stepsizes": Constant(5.0)})
    if arguments.resume:
        plans[sized.noise] = _saved_plan(plans[sized.noise], Path(arguments.run_dir))
    return plans


def _saved_plan(plan: "Plan", directory: Path) -> "Plan":
    """Return the plan that a run began with, if it equals the given one up to rounding."""
    file = directory / "plan.json"
    if not file.exists():
        return plan
    saved = type(plan).from_json(file.read_text(encoding="utf-8"))
    names = ("steps", "dataset_size", "batch_size", "sampling", "clip_norm", "clipping")
    is_same = (
        all(getattr(saved, name) == getattr(plan, name) for name in names)
        and np.allclose(saved.noise_multipliers, plan.noise_multipliers, rtol=1e-5)
        and np.allclose(saved.stepsizes, plan.stepsizes, rtol=1e-9)
        and saved.bound.delta == plan.bound.delta
    )
    return saved if is_same else plan


def _train(
    arguments: argparse.Namespace,
    plan: "Plan",
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
            derived_from_private_data=derived_from_private_data(arguments),
        )
    model = build(tuple(examples.inputs.shape[1:]), len(examples.classes))
    return train(
        model.to(arguments.device),
        examples,
        plan,
        optimizer="adam" if name == _WITHOUT_NOISE else arguments.optimizer,
        evaluate=None if test is None else Public(test),
        every=-(-plan.steps // 20),
        run=run,
        averaging=None if arguments.averaging == "none" else arguments.averaging,
        progress=not arguments.quiet,
        seed=seed,
    )


def _report(
    arguments: argparse.Namespace,
    results: dict[str, "TrainResult"],
    canaries: "Canaries | None",
) -> None:
    """Draw, save and print the results."""
    from dither.reports import statement

    plot = getattr(arguments, "plot", None)
    if plot is not None:
        from dither.reports import save_figure, training_figure

        save_figure(training_figure(results), plot)
    result = results[arguments.noise]
    if canaries is not None:
        write_scores(Path(arguments.run_dir), canaries, result)
    if arguments.json:
        summaries = {name: _summary(each) for name, each in results.items()}
        print_json({"runs": summaries, "statement": statement(result)})
    elif arguments.quiet:
        metrics = "".join(f", test {key} {value:.4f}" for key, value in result.metrics.items())
        derived = " and ".join(result.derived_from_private_data)
        unproven = f"; NOT PROVEN: {derived} derived from the private data" if derived else ""
        sys.stdout.write(f"{result.bound}{metrics}{unproven}\n")
    else:
        _print(results, statement(result))
        if canaries is not None:
            sys.stdout.write(
                f"{int(canaries.included.sum()):,} of {canaries.included.size:,} canaries were in "
                f"the data: dither audit --run-dir {arguments.run_dir} --attack one-run\n"
            )
        if plot is not None:
            sys.stdout.write(f"The figure is in {plot}.\n")


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


def _print(results: dict[str, "TrainResult"], text: str) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    first = next(iter(results.values()))
    table = Table("noise", "ε", *(f"test {name}" for name in first.metrics))
    for name, result in results.items():
        epsilon = result.bound.epsilon
        shown = rounded(epsilon, 4) if math.isfinite(epsilon) else "∞"
        table.add_row(name, shown, *(f"{value:.4f}" for value in result.metrics.values()))
    console.print(table)
    if not first.metrics:
        console.print("No accuracy: give public records to evaluate on with --public-test.")
    sys.stdout.write(f"{text}\n")
