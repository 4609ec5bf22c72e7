"""Evaluate the paper's theorems for a schedule: noise, uniform and matched, and utility."""

import argparse
import sys
from typing import Any

import numpy as np

from dither import validate
from dither.cli.options import (
    add_schedule,
    add_sizes,
    number,
    parse_schedule,
    print_json,
    step_count,
)
from dither.types import Allocation, FloatArray

NAME = "theory"
HELP = "the paper's noise, its condition, M_dp/M_adp and utility bounds for a schedule"

_PAPER_STEPS = 60 * 196


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options; the defaults are the setting of the paper's figure 1."""
    add_schedule(parser, default_steps=_PAPER_STEPS)
    add_sizes(parser, dataset_size=50_000)
    parser.set_defaults(clip_norm=2.5)
    for name, default, text in (
        ("dimension", 100_000, "number of parameters, d"),
        ("smoothness", 1.0, "Lipschitz constant of the gradient, L"),
        ("initial-gap", 2.3, "D_F = F(start) − minimum"),
    ):
        parser.add_argument(f"--{name}", type=number, default=default, help=text)
    parser.add_argument(
        "--epsilon", type=number, default=51.2, help="ε of the privacy theorem, 16 times ε̄"
    )
    parser.add_argument("--delta", type=number, default=1e-5, help="δ")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--plot",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="draw the noise that reaches the parameters, the privacy spent and the schedules",
    )


def run(arguments: argparse.Namespace) -> None:
    """Compute, then draw, then print."""
    from dither import noise, theory

    allocations: dict[str, Allocation] = {"uniform": noise.Uniform(), "matched": noise.Matched()}
    schedule = parse_schedule(arguments)
    eta = schedule.stepsizes(step_count(arguments))
    alphas = {name: allocation.alphas(eta) for name, allocation in allocations.items()}
    with np.errstate(over="ignore"):
        columns = {name: _column(arguments, eta, alpha) for name, alpha in alphas.items()}
    if hasattr(arguments, "plot"):
        from dither.reports import save_figure, theory_figure

        figure = theory_figure(
            parameter_noise={name: eta * alphas[name] * columns[name]["sigma"] for name in columns},
            spent={
                name: theory.adp_spent(alpha, epsilon=arguments.epsilon)
                for name, alpha in alphas.items()
            },
            schedule=f"{schedule}, T = {eta.size:,}{_caveat(columns)}",
        )
        save_figure(figure, arguments.plot)
    setting = {
        "schedule": repr(schedule),
        "steps": eta.size,
        **{
            name: getattr(arguments, name)
            for name in (
                "dataset_size",
                "batch_size",
                "clip_norm",
                "dimension",
                "smoothness",
                "initial_gap",
                "epsilon",
                "delta",
            )
        },
    }
    if arguments.json:
        print_json({"setting": setting, **columns})
    else:
        _print(setting, columns)
        if hasattr(arguments, "plot"):
            sys.stdout.write(f"The figure is in {arguments.plot}.\n")


def _column(arguments: argparse.Namespace, eta: FloatArray, alpha: FloatArray) -> dict[str, Any]:
    """Return the theorems' values for one allocation."""
    from dither import theory

    budget = {"epsilon": arguments.epsilon, "delta": arguments.delta}
    problem = theory.Problem(
        dimension=arguments.dimension,
        smoothness=arguments.smoothness,
        initial_gap=arguments.initial_gap,
        clip_norm=arguments.clip_norm,
        dataset_size=arguments.dataset_size,
        batch_size=arguments.batch_size,
    )
    data = {"dataset_size": problem.dataset_size, "batch_size": problem.batch_size}
    sigma = theory.adp_sigma(alpha, clip_norm=problem.clip_norm, **data, **budget)
    condition = theory.adp_condition(alpha, **data, **budget)
    bound = theory.utility_bound(problem, eta, alphas=alpha, **budget)
    multipliers = alpha * sigma * problem.batch_size / problem.clip_norm
    column: dict[str, Any] = {
        "sigma": sigma,
        "first_noise_multiplier": float(multipliers[0]),
        "last_noise_multiplier": float(multipliers[-1]),
        "noise_that_reaches_the_parameters": float(np.sum((eta * alpha * sigma) ** 2)),
        "noise_cost": theory.noise_cost(alpha, eta),
        "improvement": theory.improvement(eta, alpha),
        "utility_bound": bound.total,
        "utility_bound_optimization": bound.optimization,
        "utility_bound_noise": bound.noise,
        "condition_holds": condition.holds,
        "condition_worst_step": condition.worst_step,
        "condition_reasons": list(condition.reasons),
    }
    for key, label in _ROWS.items():
        if not (np.isfinite(column[key]) and column[key] > 0.0):
            raise validate.InvalidValueError(
                f"the setting must be within floating point, got {label.strip()} = {column[key]}"
            )
    return column


def _caveat(columns: dict[str, dict[str, Any]]) -> str:
    holds = all(column["condition_holds"] for column in columns.values())
    return "" if holds else " (the theorem's condition does not hold here)"


_ROWS = {
    "sigma": "σ, noise on the mean at α = 1",
    "first_noise_multiplier": "noise multiplier z, first step",
    "last_noise_multiplier": "noise multiplier z, last step",
    "noise_that_reaches_the_parameters": "noise that reaches the parameters, Σ(ηασ)²",
    "noise_cost": "M",
    "improvement": "M_dp/M",
    "utility_bound": "utility bound, min E‖∇F‖²",
    "utility_bound_optimization": "    of which optimization",
    "utility_bound_noise": "    of which noise",
}


def _print(setting: dict[str, Any], columns: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(
        f"{setting['schedule']}, T = {setting['steps']:,}, n = {int(setting['dataset_size']):,}, "
        f"m = {int(setting['batch_size']):,}, C_G = {setting['clip_norm']:g}, "
        f"d = {int(setting['dimension']):,}, L = {setting['smoothness']:g}\n"
        f"ε = {setting['epsilon']:g} (ε̄ = {setting['epsilon'] / 16:g}), δ = {setting['delta']:g}",
        markup=False,
    )
    table = Table()
    table.add_column("by the paper's theorems")
    for name in columns:
        table.add_column(name, justify="right")
    for key, label in _ROWS.items():
        table.add_row(label, *(f"{column[key]:.6g}" for column in columns.values()))
    console.print(table)
    for name, column in columns.items():
        if column["condition_holds"]:
            console.print(f"{name}: the privacy theorem's condition holds.", markup=False)
        else:
            reasons = "; ".join(column["condition_reasons"])
            console.print(
                f"{name}: the privacy theorem's condition does not hold ({reasons}): "
                "this noise reproduces the paper, and claims no ε.",
                markup=False,
            )
