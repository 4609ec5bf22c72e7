"""Show or cap the privacy loss of a run, or of all runs on the same data."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dither.cli.options import number, print_json
from dither.cli.run_directory import find_ledger
from dither.types import rounded

if TYPE_CHECKING:
    from dither.ledger import Ledger

NAME = "ledger"
HELP = "show or cap what the runs on the same data have spent together"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the three actions."""
    actions = parser.add_subparsers(dest="action", metavar="show|cap|export", required=True)
    for name, text in (
        ("show", "print runs and total"),
        ("cap", "limit all runs together to (ε, δ)"),
        ("export", "print every entry as JSON"),
    ):
        action = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        action.add_argument("path", metavar="PATH", help="a ledger, or a run directory")
        if name == "show":
            action.add_argument(
                "--delta", type=number, default=argparse.SUPPRESS,
                help="δ of the total; default: that of the cap, else of the first run",
            )  # fmt: skip
            action.add_argument("--json", action="store_true", help="print JSON instead of a table")
            action.add_argument("--plot", default=argparse.SUPPRESS, metavar="FILE", help="draw it")
        if name == "cap":
            action.add_argument("--epsilon", type=number, required=True, help="ε")
            action.add_argument("--delta", type=number, required=True, help="δ")


def run(arguments: argparse.Namespace) -> None:
    """Open the ledger and show, cap or export it."""
    from dither.ledger import Ledger

    path = find_ledger(Path(arguments.path))
    is_new = not path.exists()
    ledger = Ledger(path, create=arguments.action == "cap")
    if is_new:
        sys.stdout.write(f"{str(ledger.path)!r} is a new ledger.\n")
    if arguments.action == "cap":
        ledger.cap(arguments.epsilon, arguments.delta)
        sys.stdout.write(f"{_cap_line(ledger)}\n")
        spent = ledger.total(arguments.delta).epsilon
        if spent >= arguments.epsilon:
            sys.stdout.write(f"ε = {spent:.4g} is spent already: no further run can begin.\n")
    elif arguments.action == "export":
        sys.stdout.write(f"{ledger.export()}\n")
    else:
        _show(arguments, ledger)
    ledger.close()


def _show(arguments: argparse.Namespace, ledger: "Ledger") -> None:
    from dither.ledger.ledger import spent_text
    from dither.ledger.state import COMPOSITION_TEXT

    plot = getattr(arguments, "plot", None)
    delta = _delta(arguments, ledger)
    if plot is not None:
        from dither.reports import ledger_figure, save_figure

        save_figure(ledger_figure(ledger, delta), plot)
    totals = ledger.summary(delta)
    if arguments.json:
        print_json(totals)
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    own = f"ε at δ = {delta:g}"
    has_parts = any(run["split"] is not None for run in totals["runs"])
    part = ["part"] if has_parts else []
    table = Table("run", *part, "registered (UTC)", "steps", "noise z", own, "state")
    table.columns[0].overflow = "fold"
    for run in totals["runs"]:
        least, most = run["least_noise"], run["most_noise"]
        table.add_row(
            run["run"],
            *(["all" if run["split"] is None else f"{run['split']}: {run['part']}"] * has_parts),
            run["registered"][:16].replace("T", " "),
            spent_text(run),
            "none" if least is None else f"{least:.4g} to {most:.4g}",
            "∞" if run["epsilon"] is None else rounded(run["epsilon"], 4),
            ("open" if run["is_open"] else "ended")
            + (", SEEDED" if run["is_seeded"] else "")
            + (", conditional" if run["is_conditional"] else ""),
        )
    console.print(table)
    total = "∞" if totals["epsilon"] is None else rounded(totals["epsilon"], 4)
    how = COMPOSITION_TEXT[totals["composition"]]
    unit = totals["unit"]
    sys.stdout.write(f"Spent together: ε = {total} at δ = {delta:g}, per {unit}. {how}\n")
    if any(run["is_conditional"] for run in totals["runs"]):
        sys.stdout.write(
            "NOT PROVEN: a run had settings that were read off its records without noise.\n"
        )
    if has_parts:
        sys.stdout.write("Of the parts of a random split the most expensive counts.\n")
    sys.stdout.write(f"{_cap_line(ledger)}\n")
    if plot is not None:
        sys.stdout.write(f"The figure is in {plot}.\n")


def _delta(arguments: argparse.Namespace, ledger: "Ledger") -> float:
    if hasattr(arguments, "delta"):
        return float(arguments.delta)
    return ledger.default_delta()


def _cap_line(ledger: "Ledger") -> str:
    cap = ledger.limit
    if cap is None:
        return "There is no cap: dither ledger cap PATH --epsilon ε --delta δ sets one."
    return f"The cap is ε = {cap.epsilon:g} at δ = {cap.delta:g}."
