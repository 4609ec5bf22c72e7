"""Attack a plan, or a run that was made, and hold what the attack proves against the claim."""

import argparse
import json
import math
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from dither import validate
from dither.cli.account import read_plan
from dither.cli.canaries import read_scores
from dither.cli.options import number
from dither.cli.run_files import ABOUT, audits_of, keep_audit, ledger_place, read_run_file
from dither.planning import Plan, plan
from dither.schedules import Linear
from dither.types import PrivacyBound, SpentSoFar, rounded

if TYPE_CHECKING:
    from dither.audit import AuditResult

NAME = "audit"
HELP = "attack a plan or a run, and prove how much ε must be at least"

REFUTED = 3
"""The exit code for a claim that is refuted; 1 is for files that cannot be read or written."""

# Those of dither.audit, whose import would bring torch into the help of every command.
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
    """Attack, draw, print; return the exit code."""
    from dither.reports import audit_figure, save_figure
    from dither.reports.figures import check_figure_path

    plot = getattr(arguments, "plot", None)
    if plot is not None:
        check_figure_path(plot)
    if hasattr(arguments, "run_dir"):
        audits_of(Path(arguments.run_dir))  # refuses what could not be added to
    result, steps = _audited(arguments)
    if plot is not None:
        allowed = None if result.allowed is None else result.allowed.true_positives
        save_figure(audit_figure(result.roc, allowed, result.verdict), plot)
    if hasattr(arguments, "run_dir"):
        keep_audit(Path(arguments.run_dir), _record(result, steps))
    if arguments.json:
        json.dump({"steps": steps, **_facts(result)}, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        _print(result, steps)
        if plot is not None:
            sys.stdout.write(f"The picture is in {plot}.\n")
    return REFUTED if result.is_violated else 0


def _audited(arguments: argparse.Namespace) -> tuple["AuditResult", str]:
    """Return what was found, and which steps were attacked."""
    from dither.audit import audit

    settings: dict[str, Any] = {
        "attack": arguments.attack,
        "confidence": arguments.confidence,
        "trials": getattr(arguments, "trials", None),
        "seed": getattr(arguments, "seed", None),
        "progress": True,
    }
    if not hasattr(arguments, "run_dir"):
        made = read_plan(arguments.plan) if hasattr(arguments, "plan") else _usual()
        return audit(made, **settings), f"{made.steps:,}"
    folder = Path(arguments.run_dir)
    planned = read_plan(str(folder / "plan.json"))
    made, claimed = _made(folder, planned)
    steps = f"{made.steps:,} of {planned.steps:,}"
    if arguments.attack == "one-run":
        return _canaries(arguments, folder, claimed), steps
    return replace(audit(made, **settings), claimed=claimed), steps


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


def _made(folder: Path, planned: Plan) -> tuple[Plan, PrivacyBound]:
    """Return the plan of the steps that a run has paid for, by its ledger, and what it claims.

    A run that has lost steps on the way claims its plan's ε; one that is not over, what it has
    spent so far.
    """
    from dither.ledger import Ledger

    about = read_run_file(folder, ABOUT)
    ledger = Ledger(ledger_place(folder), create=False)
    run = ledger.runs.get(str(about.get("run")))
    ledger.close()
    if run is None or not run.spent:
        raise validate.InvalidValueError(
            f"run_dir must have a run that has taken a step, got {str(folder)!r}"
        )
    if run.entry.fingerprint != planned.fingerprint:
        raise validate.InvalidValueError(
            f"plan.json must be the plan that the run began with, got another in {str(folder)!r}"
        )
    spent = np.array(run.spent)
    if np.array_equal(spent, planned.noise_multipliers):
        return planned, planned.bound
    made = Plan.from_noise_multipliers(
        spent,
        delta=planned.bound.delta,
        dataset_size=planned.dataset_size,
        batch_size=planned.batch_size,
        clip_norm=planned.clip_norm,
        stepsizes=planned.stepsizes[: spent.size] if spent.size <= planned.steps else None,
        sampling=planned.sampling,
    )
    if (made.bound.lower or 0.0) > planned.bound.epsilon:
        raise validate.InvalidValueError(
            f"run_dir must have a run that keeps to its plan, ε = {planned.bound.epsilon:.6g}, got "
            f"one whose ledger has ε = {made.bound.epsilon:.6g}"
        )
    if run.is_open:
        return made, SpentSoFar.of(made.bound, made.bound.epsilon)
    return made, planned.bound


def _canaries(arguments: argparse.Namespace, folder: Path, claimed: PrivacyBound) -> "AuditResult":
    """Return what the canaries of a run prove."""
    from dither.audit import one_run

    for name in ("trials", "seed"):
        if hasattr(arguments, name):
            raise validate.InvalidValueError(
                f"{name} is for attacks that are made now: the run in {str(folder)!r} has its "
                f"canaries, got {getattr(arguments, name)!r}"
            )
    scores, included = read_scores(folder)
    return one_run(scores, included, claimed=claimed, confidence=arguments.confidence)


def _record(result: "AuditResult", steps: str) -> dict[str, Any]:
    """Return what is kept of an audit: its facts, and both curves to draw."""
    roc = result.roc.round(6)
    allowed = None if result.allowed is None else result.allowed.true_positives(roc[0])
    curves = {
        "false_positives": roc[0].tolist(),
        "true_positives": roc[1].tolist(),
        "allowed": None if allowed is None else allowed.tolist(),
    }
    return {"steps": steps, **_facts(result), "curves": curves}


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
        "breach": None if breach is None else asdict(breach),
        "is_violated": result.is_violated,
        "verdict": result.verdict,
    }


def _print(result: "AuditResult", steps: str) -> None:
    from dither.audit.result import shown

    claimed = result.claimed.epsilon
    table = Table(show_header=False)
    for name, value in (
        ("claimed", f"ε ≤ {rounded(claimed, 4)}" if math.isfinite(claimed) else "nothing"),
        ("audited", shown(result.lower)),
        ("if it is Gaussian", None if result.gaussian is None else shown(result.gaussian)),
        ("trade-off", _tradeoff(result)),
        ("steps", steps),
        ("canaries", f"{result.trials:,}"),
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
