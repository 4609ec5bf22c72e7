"""Plan a run, and compare uniform, matched, optimal and correlated noise for the same budget."""

import argparse
import math
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dither import validate
from dither.cli.options import (
    ACCOUNTANTS,
    CLIPPING_HELP,
    NOISES,
    SAMPLINGS,
    add_schedule,
    add_sizes,
    number,
    parse_schedule,
    print_json,
    step_count,
)
from dither.types import CLIPPINGS, rounded

if TYPE_CHECKING:
    from dither.planning import Plan
    from dither.types import Schedule

NAME = "plan"
HELP = "plan the noise of every step for a privacy budget, and compare allocations"
_CORRELATED = "correlated"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options; the defaults are a run on MNIST."""
    parser.add_argument("--epsilon", type=number, default=1.0, help="ε, the target")
    parser.add_argument("--delta", type=number, default=1e-5, help="δ")
    add_sizes(parser, dataset_size=60_000)
    add_schedule(parser, default_steps=5_000)
    parser.add_argument("--noise", choices=NOISES, default="optimal", help="the one to save")
    parser.add_argument("--clipping", choices=CLIPPINGS, default="flat", help=CLIPPING_HELP)
    parser.add_argument(
        "--sampling", choices=SAMPLINGS, default="poisson",
        help="how batches are drawn; correlated noise is cyclic where the others are poisson",
    )  # fmt: skip
    parser.add_argument("--accountant", choices=ACCOUNTANTS, default="pld")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--plot",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="draw noise, the noise in the iterates and ε over the steps",
    )
    parser.add_argument(
        "--save", default=argparse.SUPPRESS, metavar="FILE", help="save the plan as JSON"
    )


def run(arguments: argparse.Namespace) -> None:
    """Plan with every noise, draw, save, print."""
    from dither.progress import Progress

    plot, save = getattr(arguments, "plot", None), getattr(arguments, "save", None)
    names = _compared(arguments)
    schedule, steps = parse_schedule(arguments), step_count(arguments)
    plans = {}
    with Progress("planning", len(names)) as progress:
        for name in names:
            plans[name] = _plan(arguments, schedule, steps, name)
            progress.update()
    noises = {name: _noise_of(name, each) for name, each in plans.items()}
    if plot is not None:
        from dither.reports import plan_figure, save_figure

        save_figure(plan_figure({noises[name]: each for name, each in plans.items()}), plot)
    if save is not None:
        from dither.ledger.files import write_atomic

        write_atomic(Path(save), plans[arguments.noise].to_json().encode())
    columns = {
        name: {"noise": noises[name], **_column(each, plans["uniform"])}
        for name, each in plans.items()
    }
    if arguments.json:
        print_json({"schedule": repr(schedule), "steps": steps, **columns})
    else:
        _print(plans, arguments.noise, columns)
        for what, where in (("figure", plot), (f"{noises[arguments.noise]} plan", save)):
            if where is not None:
                sys.stdout.write(f"The {what} is in {where}.\n")


def _compared(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the noises to compare: correlated noise is not for batches of a fixed size."""
    is_fixed, is_correlated = arguments.sampling == "fixed", arguments.noise == _CORRELATED
    if is_fixed and is_correlated:
        raise validate.InvalidValueError(
            f"sampling must be poisson or cyclic for correlated noise, got {arguments.sampling!r}"
        )
    if arguments.sampling == "cyclic" and not is_correlated:
        raise validate.InvalidValueError(
            "sampling must be poisson or fixed unless --noise correlated is given, got 'cyclic'"
        )
    if not is_fixed:
        return NOISES
    return tuple(name for name in NOISES if name != _CORRELATED)


def _plan(arguments: argparse.Namespace, schedule: "Schedule", steps: int, noise: str) -> "Plan":
    from dither.planning import plan

    with warnings.catch_warnings():
        if noise == _CORRELATED:  # the output says it where correlated noise gains nothing
            warnings.filterwarnings("ignore", message="correlated noise gains nothing")
        return plan(
            epsilon=arguments.epsilon,
            delta=arguments.delta,
            dataset_size=arguments.dataset_size,
            batch_size=arguments.batch_size,
            steps=steps,
            clip_norm=arguments.clip_norm,
            clipping=arguments.clipping,
            stepsizes=schedule,
            noise=noise,
            accountant=arguments.accountant,
            sampling="fixed" if arguments.sampling == "fixed" else "poisson",
        )


def _noise_of(name: str, plan: "Plan") -> str:
    """Return what noise a plan has: optimal where correlated noise gains nothing."""
    return "optimal" if name == _CORRELATED and plan.correlation is None else name


def _column(plan: "Plan", uniform: "Plan") -> dict[str, Any]:
    """Return the compared values of one plan."""
    from dither.planning.planner import compare

    return {
        **compare(
            plan.stepsizes,
            plan.noise_multipliers,
            uniform=uniform.noise_multipliers,
            correlation=plan.correlation,
        ),
        **{
            f"epsilon_{name}": bound.epsilon if math.isfinite(bound.epsilon) else None
            for name, bound in plan.costs().items()
        },
        "fingerprint": plan.fingerprint,
    }


_ROWS = {
    "first_noise_multiplier": "noise multiplier z, first step",
    "last_noise_multiplier": "noise multiplier z, last step",
    "bands": "bands of correlated noise",
    "mean_variance_of_the_iterates": "mean variance of the iterates",
    "variance_relative_to_uniform": "    relative to uniform",
    "noise_that_reaches_the_parameters": "noise on the parameters, Σ(ηz)²",
    "relative_to_uniform": "    relative to uniform",
    "improvement_by_the_theorem": "M_dp/M, by the paper's cost",
    "epsilon_pld": "ε by pld (certified)",
    "epsilon_rdp": "ε by rdp (certified)",
    "epsilon_gdp": "ε by gdp (an estimate)",
    "epsilon_theorem": "ε by the paper's theorem",
    "epsilon_advanced": "ε by the paper's lemmas",
}


def _print(plans: dict[str, "Plan"], name: str, columns: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table()
    table.add_column("at the same budget")
    for column, values in columns.items():
        is_other = column != values["noise"]
        table.add_column(f"{column}: {values['noise']}" if is_other else column, justify="right")
    for key, label in _ROWS.items():
        cells = (columns[column][key] for column in columns)
        show = rounded if key.startswith("epsilon") else "{:.{}g}".format
        table.add_row(label, *("–" if cell is None else show(cell, 5) for cell in cells))
    console.print(table)
    if _CORRELATED in columns and columns[_CORRELATED]["noise"] != _CORRELATED:
        console.print(
            "Correlated noise gains nothing over optimal noise here: its plan has optimal noise.",
            soft_wrap=True,
        )
    console.print(f"The {columns[name]['noise']} plan: {plans[name]}", markup=False)
