"""Attack a plan or a run, and compare the proven lower bound on ε with the claim."""

import argparse
import math
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dither import validate
from dither.cli.options import ATTACKS, number, print_json, read_plan
from dither.cli.run_directory import (
    ABOUT,
    append_audit,
    find_ledger,
    read_audits,
    read_run_file,
    read_scores,
)
from dither.types import PrivacyBound, SpentSoFar, rounded

if TYPE_CHECKING:
    from dither.audit import AuditResult
    from dither.planning import Plan

NAME = "audit"
HELP = "attack a plan or a run, and prove a lower bound on its ε"

VIOLATED = 3
"""The exit code for a claim that is refuted; 1 is for files that cannot be read or written."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--plan",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="a plan saved by dither plan; without it and --run-dir, the default of dither train",
    )
    what.add_argument(
        "--run-dir",
        default=argparse.SUPPRESS,
        metavar="DIR",
        help="a run directory: attack the steps in its ledger or, with --attack one-run, use the "
        "canaries that dither train --canaries added to its data",
    )
    parser.add_argument(
        "--attack",
        choices=ATTACKS,
        default="white-box",
        help="the attacker sees every release, the final model, or one run with many canaries",
    )
    parser.add_argument(
        "--confidence", type=number, default=0.95, help="confidence of the lower bound"
    )
    parser.add_argument(
        "--trials",
        type=number,
        default=argparse.SUPPRESS,
        help="number of canaries; default: 50,000, and 2,000 for one-run",
    )
    parser.add_argument(
        "--canary-rows",
        type=number,
        default=argparse.SUPPRESS,
        metavar="K",
        help="rows of each canary, for a plan that protects users; default: its rows per user",
    )
    parser.add_argument(
        "--seed", type=number, default=argparse.SUPPRESS, help="makes the audit reproducible"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--plot",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="draw the attack's ROC curve and the one that the claim allows",
    )


def run(arguments: argparse.Namespace) -> int:
    """Attack, draw, print; return the exit code."""
    if hasattr(arguments, "run_dir"):
        read_audits(Path(arguments.run_dir))  # a damaged file is reported before the attack
    result, steps = _audit(arguments)
    plot = getattr(arguments, "plot", None)
    if plot is not None:
        from dither.reports import audit_figure, save_figure

        allowed = None if result.allowed is None else result.allowed.true_positives
        save_figure(audit_figure(result.roc, allowed, result.verdict), plot)
    if hasattr(arguments, "run_dir"):
        append_audit(Path(arguments.run_dir), _record(result, steps))
    if arguments.json:
        print_json({"steps": steps, **_facts(result)})
    else:
        _print(result, steps)
        if plot is not None:
            sys.stdout.write(f"The figure is in {plot}.\n")
    return VIOLATED if result.is_violated else 0


def _audit(arguments: argparse.Namespace) -> tuple["AuditResult", str]:
    """Return the result, and which steps were attacked."""
    directory, plan = None, None
    if hasattr(arguments, "run_dir"):
        directory = Path(arguments.run_dir)
        plan = read_plan(directory / "plan.json")
    elif hasattr(arguments, "plan"):
        plan = read_plan(arguments.plan)
    from dither.audit import audit

    settings: dict[str, Any] = {
        "attack": arguments.attack,
        "confidence": arguments.confidence,
        "trials": getattr(arguments, "trials", None),
        "canary_rows": getattr(arguments, "canary_rows", None),
        "seed": getattr(arguments, "seed", None),
        "progress": True,
    }
    if directory is None or plan is None:
        plan = _default_plan() if plan is None else plan
        return audit(plan, **settings), f"{plan.steps:,}"
    spent, claimed = _spent_plan(directory, plan)
    steps = f"{spent.steps:,} of {plan.steps:,}"
    if arguments.attack == "one-run":
        return _audit_canaries(arguments, directory, claimed), steps
    return replace(audit(spent, **settings), claimed=claimed), steps


def _default_plan() -> "Plan":
    """Return the plan of ``dither train`` without options."""
    import torch

    from dither.planning import Plan
    from dither.training import MODELS, recipe

    model, inputs = MODELS["mlp"]((1, 8, 8), 10), torch.zeros(1, 1, 8, 8)
    made = recipe(model, dataset_size=1_438, epsilon=3.0, inputs=inputs).plan()
    return validate.instance(Plan, plan=made)


def _spent_plan(directory: Path, planned: "Plan") -> tuple["Plan", PrivacyBound]:
    """Return the plan of the steps that a run has spent, by its ledger, and its claim.

    A run that was resumed after lost steps claims its plan's ε. An open run claims what it has
    spent so far.
    """
    from dither.ledger import Ledger
    from dither.planning import Plan

    about = read_run_file(directory, ABOUT)
    ledger = Ledger(find_ledger(directory), create=False)
    run = ledger.runs.get(str(about.get("run")))
    ledger.close()
    if run is None or not run.spent:
        raise validate.InvalidValueError(
            f"run_dir must be of a run that has taken a step, got {str(directory)!r}"
        )
    if np.array_equal(run.spent, planned.charges):
        return planned, planned.bound
    spent = np.repeat(run.spent, planned.bands)
    plan = Plan.from_noise_multipliers(
        spent,
        delta=planned.bound.delta,
        dataset_size=planned.dataset_size,
        batch_size=planned.batch_size,
        clip_norm=planned.clip_norm,
        clipping=planned.clipping,
        stepsizes=planned.stepsizes[: spent.size] if spent.size <= planned.steps else None,
        sampling=planned.sampling,
        correlation=planned.correlation,
    )
    if planned.rows_per_user is not None:
        plan = plan.for_users(planned.rows_per_user)
    if (plan.bound.lower or 0.0) > planned.bound.epsilon:
        raise validate.InvalidValueError(
            f"run_dir must be of a run within its plan, ε = {planned.bound.epsilon:.6g}, got one "
            f"whose ledger has ε = {plan.bound.epsilon:.6g}"
        )
    return plan, SpentSoFar.of(plan.bound, plan.bound.epsilon) if run.is_open else planned.bound


def _audit_canaries(
    arguments: argparse.Namespace, directory: Path, claimed: PrivacyBound
) -> "AuditResult":
    """Audit a run by the canaries in its data."""
    from dither.audit import one_run

    for name in ("trials", "canary_rows", "seed"):
        if hasattr(arguments, name):
            raise validate.InvalidValueError(
                f"{name} does not apply to a run with canaries of its own, got "
                f"{getattr(arguments, name)!r}"
            )
    scores, included = read_scores(directory)
    return one_run(scores, included, claimed=claimed, confidence=arguments.confidence)


def _record(result: "AuditResult", steps: str) -> dict[str, Any]:
    """Return what is saved of an audit: its facts, and both curves."""
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
        "canary_rows": result.canary_rows,
        "guesses": result.guesses,
        "right": result.right,
        "breach": None if breach is None else asdict(breach),
        "is_violated": result.is_violated,
        "verdict": result.verdict,
    }


def _print(result: "AuditResult", steps: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from dither.audit.result import lower_text

    claimed = result.claimed.epsilon
    table = Table(show_header=False)
    for name, value in (
        ("claimed", f"ε ≤ {rounded(claimed, 4)}" if math.isfinite(claimed) else "nothing"),
        ("audited", lower_text(result.lower)),
        ("if Gaussian", None if result.gaussian is None else lower_text(result.gaussian)),
        ("trade-off", _tradeoff(result)),
        ("steps", steps),
        ("canaries", _canaries(result)),
        ("guesses", f"{result.guesses:,}, {result.right:,} right"),
    ):
        if value is not None:
            table.add_row(name, value)
    Console(highlight=False).print(table)
    sys.stdout.write(f"{result.verdict}\n")


def _canaries(result: "AuditResult") -> str:
    k = result.canary_rows
    users = "" if k is None else f" users with {k:,} row{'s' * (k > 1)} each"
    return f"{result.trials:,}{users}"


def _tradeoff(result: "AuditResult") -> str | None:
    if result.attack == "one-run" or result.allowed is None:
        return None
    return "below the allowed curve" if result.breach is None else "ABOVE the allowed curve"
