"""Say what noise costs, by every accountant: of a saved plan, or of equal steps."""

import argparse
import json
import math
import sys
from decimal import ROUND_FLOOR
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from dither import accounting, validate
from dither.cli.options import number
from dither.planning import Plan
from dither.types import rounded

NAME = "account"
HELP = "what a plan, or a number of equal steps, costs by every accountant"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("plan", nargs="?", metavar="plan.json", help="a plan saved by dither plan")
    for name, text in (
        ("noise-multiplier", "z of every step"),
        ("sample-rate", "q"),
        ("steps", "number of steps"),
        ("delta", "δ; a plan has its own"),
    ):
        parser.add_argument(f"--{name}", type=number, default=argparse.SUPPRESS, help=text)
    parser.add_argument("--sampling", choices=accounting.SAMPLINGS, default=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> None:
    """Read or build the steps, account, print."""
    z, q, delta, sampling = _steps(arguments)
    found: dict[str, dict[str, Any]] = {}
    for name, bound in accounting.costs(z, sample_rate=q, delta=delta, sampling=sampling).items():
        finite = math.isfinite(bound.epsilon)
        found[name] = {
            "epsilon": bound.epsilon if finite else None,
            "lower": bound.lower,
            "is_upper_bound": bound.is_upper_bound,
        }
    if arguments.json:
        setting = {"steps": z.size, "sample_rate": q, "delta": delta, "sampling": sampling}
        json.dump({**setting, **found}, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
        return
    console = Console(highlight=False)
    console.print(
        f"{z.size:,} steps, q = {q:.6g}, δ = {delta:g}, {sampling} sampling", markup=False
    )
    table = Table("accountant", "ε", "not below", "is it proven?")
    for name, row in found.items():
        table.add_row(
            name,
            "–" if row["epsilon"] is None else rounded(row["epsilon"], 5),
            "" if row["lower"] is None else rounded(row["lower"], 5, ROUND_FLOOR),
            "yes" if row["is_upper_bound"] else "no",
        )
    console.print(table)


def _steps(arguments: argparse.Namespace) -> tuple[np.ndarray, float, float, str]:
    names = ("noise_multiplier", "sample_rate", "steps", "delta")
    given = [name for name in names if hasattr(arguments, name)]
    if arguments.plan is not None:
        if [name for name in given if name != "delta"] or hasattr(arguments, "sampling"):
            raise validate.InvalidTypeError(
                "account takes a plan (and --delta), or --noise-multiplier, --sample-rate, --steps "
                "and --delta without one"
            )
        made = read_plan(arguments.plan)
        delta = getattr(arguments, "delta", made.bound.delta)
        return made.noise_multipliers, made.sample_rate, delta, made.sampling
    missing = [f"--{name.replace('_', '-')}" for name in names if name not in given]
    if missing:
        raise validate.InvalidTypeError(f"account needs a plan, or also {', '.join(missing)}")
    z = validate.positive(noise_multiplier=arguments.noise_multiplier)
    steps = validate.step_count(steps=arguments.steps)
    sampling = getattr(arguments, "sampling", "poisson")
    return np.full(steps, z), arguments.sample_rate, arguments.delta, sampling


def read_plan(path: str) -> Plan:
    """Read a plan from a file, or say in one line why it cannot be."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError:
        raise validate.InvalidValueError(
            f"plan must be a file that exists and can be read, got {path!r}"
        ) from None
    except UnicodeDecodeError:
        raise validate.InvalidValueError(f"plan must be a JSON file, got {path!r}") from None
    return Plan.from_json(text)
