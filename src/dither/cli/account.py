"""Print the ε of a saved plan, or of equal steps, by every accountant."""

import argparse
import math
from decimal import ROUND_FLOOR
from typing import Any

import numpy as np

from dither import validate
from dither.cli.options import SAMPLINGS, number, print_json, read_plan
from dither.types import FloatArray, rounded

NAME = "account"
HELP = "print ε of a plan, or of equal steps, by every accountant"


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
    parser.add_argument(
        "--sampling", choices=SAMPLINGS, default=argparse.SUPPRESS,
        help="cyclic is that of correlated noise; default: poisson",
    )  # fmt: skip
    parser.add_argument(
        "--bands",
        type=number,
        default=argparse.SUPPRESS,
        help="b, for cyclic sampling: noise is correlated within b steps",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace) -> None:
    """Read or build the steps, account, print."""
    z, q, delta, sampling, bands = _read_steps(arguments)
    from dither import accounting

    rows: dict[str, dict[str, Any]] = {}
    found = accounting.costs(z, sample_rate=q, delta=delta, sampling=sampling, bands=bands)
    for name, bound in found.items():
        rows[name] = {
            "epsilon": bound.epsilon if math.isfinite(bound.epsilon) else None,
            "lower": bound.lower,
            "is_upper_bound": bound.is_upper_bound,
        }
    if arguments.json:
        setting = {"steps": z.size, "sample_rate": q, "delta": delta, "sampling": sampling}
        print_json({**setting, "bands": bands, **rows})
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    cycles = f" in {bands:,} subsets: {-(-z.size // bands):,} cycles at rate {bands * q:.6g}"
    console.print(
        f"{z.size:,} steps, q = {q:.6g}, δ = {delta:g}, {sampling} sampling"
        f"{cycles if sampling == 'cyclic' else ''}",
        markup=False,
        soft_wrap=True,
    )
    table = Table("accountant", "ε", "at least", "proven upper bound")
    for name, row in rows.items():
        table.add_row(
            name,
            "–" if row["epsilon"] is None else rounded(row["epsilon"], 5),
            "" if row["lower"] is None else rounded(row["lower"], 5, ROUND_FLOOR),
            "yes" if row["is_upper_bound"] else "no",
        )
    console.print(table)


def _read_steps(arguments: argparse.Namespace) -> tuple[FloatArray, float, float, str, int]:
    """Return noise multipliers, sample rate, δ, sampling and the number of bands."""
    names = ("noise_multiplier", "sample_rate", "steps", "delta")
    given = [name for name in names if hasattr(arguments, name)]
    if arguments.plan is not None:
        if set(given) - {"delta"} or hasattr(arguments, "sampling") or hasattr(arguments, "bands"):
            raise validate.InvalidTypeError(
                "account takes a plan (and --delta), or --noise-multiplier, --sample-rate, --steps "
                "and --delta without one"
            )
        plan = read_plan(arguments.plan)
        delta = getattr(arguments, "delta", plan.bound.delta)
        return plan.noise_multipliers, plan.sample_rate, delta, plan.sampling, plan.bands
    missing = [f"--{name.replace('_', '-')}" for name in names if name not in given]
    if missing:
        raise validate.InvalidTypeError(f"account needs a plan, or also {', '.join(missing)}")
    sampling = getattr(arguments, "sampling", "poisson")
    if (sampling == "cyclic") != hasattr(arguments, "bands"):
        raise validate.InvalidTypeError(
            "account takes --bands with --sampling cyclic, and with no other, got "
            + ("no --bands" if sampling == "cyclic" else f"{sampling} sampling")
        )
    z = np.full(validate.step_count(steps=arguments.steps), float(arguments.noise_multiplier))
    return z, arguments.sample_rate, arguments.delta, sampling, getattr(arguments, "bands", 1)
