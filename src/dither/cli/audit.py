"""Attack a plan, or a run that was made, and hold what the attack proves against the claim."""

import argparse
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from dither import validate
from dither.cli.account import read_plan
from dither.cli.options import number
from dither.planning import Plan, plan
from dither.schedules import Linear
from dither.types import PrivacyBound, rounded

if TYPE_CHECKING:
    from dither.audit import AuditResult

NAME = "audit"
HELP = "attack a plan or a run, and prove how much ε must be at least"

CANARIES = "canaries.json"
"""What dither train --canaries leaves in the folder of a run."""

_ATTACKS = ("white-box", "final-model", "one-run")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--plan",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="a plan saved by dither plan; without it and --run-dir, the plan of dither train",
    )
    what.add_argument(
        "--run-dir",
        default=argparse.SUPPRESS,
        metavar="DIR",
        help="the folder of a run: the steps that its ledger has, or with --attack one-run the "
        "canaries that dither train --canaries put into its data",
    )
    parser.add_argument(
        "--attack",
        choices=_ATTACKS,
        default="white-box",
        help="whether the attacker sees every release, the final model, or one run with many "
        "canaries that disturb each other",
    )
    parser.add_argument(
        "--confidence", type=number, default=0.95, help="with which a refuted claim is wrong"
    )
    parser.add_argument(
        "--trials",
        type=number,
        default=argparse.SUPPRESS,
        help="the number of canaries; else 50,000, and 2,000 for one-run",
    )
    parser.add_argument("--seed", type=number, default=argparse.SUPPRESS, help="to repeat an audit")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--plot",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="draw the attack's ROC and what the claim allows",
    )


def run(arguments: argparse.Namespace) -> int:
    """Attack, draw, print; the exit code is 1 if the claim is refuted."""
    from dither.reports import audit_figure, save_figure
    from dither.reports.figures import checked_figure_path

    plot = getattr(arguments, "plot", None)
    if plot is not None:
        checked_figure_path(plot)
    result = _audited(arguments)
    if plot is not None:
        allowed = None if result.allowed is None else result.allowed.true_positives
        save_figure(audit_figure(result.roc, allowed, result.verdict), plot)
    if arguments.json:
        json.dump(_facts(result), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        _print(result)
        if plot is not None:
            sys.stdout.write(f"The picture is in {plot}.\n")
    return 1 if result.is_violated else 0


def _audited(arguments: argparse.Namespace) -> "AuditResult":
    from dither.audit import audit

    settings: dict[str, Any] = {
        "attack": arguments.attack,
        "confidence": arguments.confidence,
        "trials": getattr(arguments, "trials", None),
        "seed": getattr(arguments, "seed", None),
        "progress": True,
    }
    if hasattr(arguments, "plan"):
        return audit(read_plan(arguments.plan), **settings)
    if not hasattr(arguments, "run_dir"):
        return audit(_usual(), **settings)
    folder = Path(arguments.run_dir)
    if arguments.attack == "one-run":
        return _canaries(arguments, folder)
    planned = read_plan(str(folder / "plan.json"))
    return replace(audit(_made(folder, planned), **settings), claimed=planned.bound)


def _usual() -> Plan:
    """Return the plan that ``dither train`` makes without options."""
    return plan(
        epsilon=3.0,
        delta=1e-5,
        dataset_size=1_438,
        batch_size=128,
        epochs=30,
        stepsizes=Linear(2.0, 0.1),
    )


def _made(folder: Path, planned: Plan) -> Plan:
    """Return the plan of the steps that a run has paid for, by its ledger."""
    from dither.ledger import FILE, Ledger

    about = _read(folder / "run.json")
    ledger = Ledger(Path(about["ledger"] or folder / FILE), create=False)
    spent = np.array(ledger.runs[about["run"]].spent)
    ledger.close()
    if spent.size == 0:
        raise validate.InvalidValueError(
            f"run_dir must have a run that has taken a step, got {str(folder)!r}"
        )
    if np.array_equal(spent, planned.noise_multipliers):
        return planned
    return Plan.from_noise_multipliers(
        spent,
        delta=planned.bound.delta,
        dataset_size=planned.dataset_size,
        batch_size=planned.batch_size,
        clip_norm=planned.clip_norm,
        stepsizes=planned.stepsizes if spent.size == planned.steps else None,
        sampling=planned.sampling,
    )


def _canaries(arguments: argparse.Namespace, folder: Path) -> "AuditResult":
    """Return what the canaries of a run prove."""
    from dither.audit import one_run

    for name in ("trials", "seed"):
        if hasattr(arguments, name):
            raise validate.InvalidValueError(
                f"{name} is for attacks that are made now: the run in {str(folder)!r} is over, "
                f"got {getattr(arguments, name)!r}"
            )
    if not (folder / CANARIES).exists():
        raise validate.InvalidValueError(
            f"run_dir must be of a run with canaries, dither train --canaries N --run-dir DIR, got "
            f"{str(folder)!r}"
        )
    kept = _read(folder / CANARIES)
    return one_run(
        kept["scores"],
        kept["included"],
        claimed=PrivacyBound(**kept["bound"]),
        confidence=arguments.confidence,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise validate.InvalidValueError(
            f"run_dir must be the folder of a run with its {path.name}, got {str(path.parent)!r}"
        ) from None
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise validate.InvalidValueError(f"{path.name} must be JSON, got {str(path)!r}") from None
    return dict(found)


def _facts(result: "AuditResult") -> dict[str, Any]:
    claimed, breach = result.claimed, result.breach
    return {
        "claimed": {
            "epsilon": claimed.epsilon if math.isfinite(claimed.epsilon) else None,
            "delta": claimed.delta,
        },
        "attack": result.attack,
        "lower": result.lower,
        "gaussian": result.gaussian,
        "confidence": result.confidence,
        "trials": result.trials,
        "guesses": result.guesses,
        "right": result.right,
        "breach": None
        if breach is None
        else {
            "false_positives": breach.false_positives,
            "true_positives": breach.true_positives,
            "allowed": breach.allowed,
        },
        "is_violated": result.is_violated,
        "verdict": result.verdict,
    }


def _print(result: "AuditResult") -> None:
    from dither.audit.result import shown

    claimed = result.claimed.epsilon
    table = Table(show_header=False)
    for name, value in (
        ("claimed", f"ε ≤ {rounded(claimed, 4)}" if math.isfinite(claimed) else "nothing"),
        ("audited", f"ε ≥ {shown(result.lower)}"),
        ("if it is Gaussian", None if result.gaussian is None else f"ε ≥ {shown(result.gaussian)}"),
        ("trade-off", _tradeoff(result)),
        ("trials", f"{result.trials:,}"),
        ("guesses", f"{result.guesses:,}, of which {result.right:,} were right"),
    ):
        if value is not None:
            table.add_row(name, value)
    Console(highlight=False).print(table)
    sys.stdout.write(f"{result.verdict}\n")


def _tradeoff(result: "AuditResult") -> str | None:
    if result.attack == "one-run" or result.allowed is None:
        return None
    return "below the curve that the claim allows" if result.breach is None else "ABOVE the curve"
