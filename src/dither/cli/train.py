"""Train a model privately: on a table, scikit-learn's digits, a standard set, or images."""

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dither import validate
from dither.cli import train_table
from dither.cli.options import (
    derived_from_private_data,
    find_model,
    is_table,
    print_json,
    read_data,
    user_settings,
)
from dither.cli.run_directory import (
    add_canaries,
    build_canaries,
    check_canaries,
    remove_unused_canaries,
    write_scores,
)
from dither.cli.torchrun import join_group
from dither.cli.train_options import add_arguments, given_settings
from dither.types import rounded

if TYPE_CHECKING:
    from torch import nn

    from dither.audit import Canaries
    from dither.data import Examples
    from dither.training import Recipe, Run, TrainResult
    from dither.training.users import Users

__all__ = ["HELP", "NAME", "add_arguments", "run"]

NAME = "train"
HELP = "train a model privately, and print what it costs"


def run(arguments: argparse.Namespace) -> None:
    """Plan, train, print; under torchrun with all ranks."""
    if is_table(arguments.data):
        train_table.run(arguments)
        return
    if arguments.resume and not hasattr(arguments, "run_dir"):
        raise validate.InvalidValueError("resume needs a run directory, --run-dir, got none")
    check_canaries(arguments)
    _check_device(arguments.device)
    with join_group(arguments.device):
        _run(arguments)


def _run(arguments: argparse.Namespace) -> None:
    from dither.training import Run
    from dither.training.distributed import Ranks

    ranks = Ranks()
    # Rank 0 alone reads and writes the run directory.
    ranks.on_rank_zero(lambda: _check_directory(arguments))
    name = "mlp" if arguments.model == "auto" else arguments.model
    build = find_model(name)
    examples, test = read_data(arguments)
    ids = _read_ids(arguments, len(examples))
    users = _users_of(arguments, ids)
    run = Run(
        getattr(arguments, "run_dir", None),
        resume=arguments.resume,
        ledger=getattr(arguments, "ledger", None),
        checkpoint_every=arguments.checkpoint_every,
        derived_from_private_data=derived_from_private_data(arguments),
        data=Path(arguments.data).name,
        purpose=getattr(arguments, "purpose", ""),
    )
    model = _new_model(arguments, build, examples)
    recipe = ranks.on_rank_zero(lambda: _find_recipe(arguments, model, examples, users, run))
    canaries = ranks.on_rank_zero(lambda: build_canaries(arguments, examples))
    if canaries is not None:
        examples = add_canaries(canaries, examples)
        if ids is not None:  # each canary is a user with one row
            own = [f"canary {k} of dither" for k in range(len(examples) - len(ids))]
            users = _users_of(arguments, [*ids, *own])
    if not (arguments.quiet or arguments.json):
        sys.stdout.write(f"{recipe}\n")
        sys.stdout.flush()
    with remove_unused_canaries(arguments, canaries) if ranks.is_rank_zero else nullcontext():
        result = _train(
            arguments, model, recipe, examples=examples, users=users, test=test, run=run
        )
    if ranks.is_rank_zero:
        _describe(arguments, name, examples, result)
        _report(arguments, str(recipe.noise), result, canaries)


def _new_model(
    arguments: argparse.Namespace, build: Callable[..., "nn.Module"], examples: "Examples"
) -> "nn.Module":
    import torch

    if hasattr(arguments, "seed"):
        torch.manual_seed(arguments.seed % 2**63)
    model = build(tuple(examples.inputs.shape[1:]), len(examples.classes))
    return model.to(arguments.device)


def _read_ids(arguments: argparse.Namespace, records: int) -> "list[Any] | None":
    """Return the ids of the records' users, from an array of the file."""
    if not hasattr(arguments, "users"):
        return None
    from dither.data import load_ids

    ids = load_ids(arguments.data, arguments.users, data_dir=getattr(arguments, "data_dir", None))
    if ids.shape != (records,):
        raise validate.InvalidValueError(
            f"users must be an array of one id per record, {records} in all, got shape {ids.shape} "
            f"of {arguments.users!r}"
        )
    return [*ids.tolist()]


def _users_of(arguments: argparse.Namespace, ids: "list[Any] | None") -> "Users | None":
    from dither.training.users import Users

    return None if ids is None else Users.of(ids, **user_settings(arguments))


def _find_recipe(
    arguments: argparse.Namespace,
    model: "nn.Module",
    examples: "Examples",
    users: "Users | None",
    run: "Run",
) -> "Recipe":
    """Return the recipe of a run that is resumed, or a new one."""
    from dither.training.records import records_of
    from dither.training.resolve import find_recipe
    from dither.training.run_directory import RunDirectory

    directory = None if run.directory is None else RunDirectory(run, run.directory)
    given = given_settings(arguments)
    length = len(examples) if users is None else users.count
    return find_recipe(model, records_of(examples), length, given, directory, users).settled()


def _describe(
    arguments: argparse.Namespace, name: str, examples: "Examples", result: "TrainResult"
) -> None:
    """Write to the run directory what `dither.load` needs besides the weights."""
    from dither.estimators.saving import describe_module

    if hasattr(arguments, "run_dir"):
        describe_module(
            arguments.run_dir,
            result,
            module=name,
            shape=tuple(examples.inputs.shape[1:]),
            classes=examples.classes,
            parameters=given_settings(arguments),
        )


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


def _train(
    arguments: argparse.Namespace,
    model: "nn.Module",
    recipe: "Recipe",
    *,
    examples: "Examples",
    users: "Users | None",
    test: "Examples | None",
    run: "Run",
) -> "TrainResult":
    from dither.training import Public, train

    return train(
        model,
        examples,
        recipe,
        evaluate=None if test is None else Public(test),
        every=-(-recipe.steps // 20),
        run=run,
        users=users,
        progress=not arguments.quiet,
        seed=getattr(arguments, "seed", None),
    )


def _report(
    arguments: argparse.Namespace,
    noise: str,
    result: "TrainResult",
    canaries: "Canaries | None",
) -> None:
    """Draw, save and print the result."""
    from dither.training.statement import facts_of, public_size, statement

    plot = getattr(arguments, "plot", None)
    if plot is not None:
        from dither.reports import save_figure, training_figure

        save_figure(training_figure({noise: result}), plot)
    if canaries is not None:
        write_scores(Path(arguments.run_dir), canaries, result)
    if arguments.json:
        chosen = None if result.recipe is None else json.loads(result.recipe.to_json())
        print_json({"run": _summary(result), "recipe": chosen, "statement": statement(result)})
    elif arguments.quiet:
        metrics = "".join(f", test {key} {value:.4f}" for key, value in result.metrics.items())
        derived = " and ".join(result.derived_from_private_data)
        unproven = f"; NOT PROVEN: {derived} derived from the private data" if derived else ""
        facts = facts_of(result)
        public = f"; taken as public: {public_size(facts)}" if facts.is_counted else ""
        sys.stdout.write(f"{result.bound}{metrics}{unproven}{public}\n")
    else:
        _print(noise, result, statement(result))
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
            "unit": result.bound.unit,
            "steps": result.steps,
            "plan": result.plan.fingerprint,
            "metrics": result.metrics,
        }
    )
    return summary


def _print(noise: str, result: "TrainResult", text: str) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("noise", "ε", *(f"test {name}" for name in result.metrics))
    epsilon = rounded(result.bound.epsilon, 4)
    table.add_row(noise, epsilon, *(f"{value:.4f}" for value in result.metrics.values()))
    console.print(table)
    if not result.metrics:
        console.print("No accuracy: give public records to evaluate on with --public-test.")
    sys.stdout.write(f"{text}\n")
