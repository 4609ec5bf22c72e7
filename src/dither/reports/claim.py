"""What may be claimed of a run: no ε below the ledger's, and none where its files disagree.

A claim is proven if the recorded ε is an upper bound, nothing was derived from the private data,
the run was not seeded, and plan, result and ledger belong to the same run.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, final

from dither.ledger.state import RunState
from dither.reports.load import LedgerView, RunFiles
from dither.reports.model_files import PaidEvaluation
from dither.reports.odds import group_privacy
from dither.training.run_directory import PLAN, RESULT
from dither.types import PrivacyBound, rounded

Verdict = Literal[
    "proven", "conditional", "seeded", "estimate", "refuted", "no privacy", "not confirmed"
]
_ROUNDING = 1e-6  # another machine may round differently: no warning, but the larger is reported


@final
@dataclass(frozen=True)
class Claim:
    """What may be claimed of a run's privacy.

    Attributes:
        verdict: "proven"; "conditional" if something was derived from the private data; "seeded";
            "estimate" if ε is not an upper bound; "refuted" by an audit; "no privacy" if ε is
            infinite; "not confirmed" if the ledger does not confirm any ε.
        bound: what is reported; None if it is not confirmed.
        recorded: the bound of result.json.
        spent: what the ledger counts for this run so far.
        is_full_plan: whether ``bound`` is the cost of the full plan of a run that has not ended.
        training: what the training alone costs; ``bound`` has the paid evaluation, too.
        evaluated: how the evaluation counts: "part" on another part of a random split, "ledger" as
            the ledger composes both, "added" if the ledger does not have it, None without one.
    """

    verdict: Verdict
    bound: PrivacyBound | None
    recorded: PrivacyBound | None
    spent: PrivacyBound | None
    is_full_plan: bool = False
    training: PrivacyBound | None = None
    evaluated: Literal["part", "ledger", "added"] | None = None

    @property
    def is_guarantee(self) -> bool:
        """Whether ε is finite and proven, if need be on a condition."""
        is_finite = self.bound is not None and math.isfinite(self.bound.epsilon)
        return is_finite and self.verdict in ("proven", "conditional")


def find_claim(files: RunFiles) -> tuple[Claim, list[str]]:
    """Return what may be claimed, and warnings."""
    recorded = None if files.result is None else files.result.bound
    view = files.ledger
    if view is None or view.run is None or view.spent is None or view.full_plan is None:
        if recorded is not None and math.isinf(recorded.epsilon):
            return Claim("no privacy", recorded, recorded, None), []
        return Claim("not confirmed", None, recorded, None), []
    warnings = [*_disagreements(files, view, view.run)]
    if warnings:
        return Claim("not confirmed", None, recorded, view.spent), warnings
    if files.has_unreadable_audits:  # one of them may have refuted the claim
        return Claim("not confirmed", None, recorded, view.spent), warnings
    warnings += _end_warnings(files, view.run)
    larger = view.full_plan
    if recorded is not None and recorded.epsilon >= larger.epsilon:
        larger = recorded
    if math.isinf(larger.epsilon):
        return Claim("no privacy", larger, recorded, view.spent), warnings
    if recorded is not None and larger.epsilon > recorded.epsilon * (1.0 + _ROUNDING):
        warnings.append(
            f"{RESULT} records ε = {rounded(recorded.epsilon, 4)}, but the ledger counts "
            f"ε = {rounded(larger.epsilon, 4)} at δ = {rounded(larger.delta, 3)}. The larger is "
            "reported."
        )
    is_full_plan = view.run.is_open and view.run.is_incomplete
    verdict = _verdict(files, view.full_plan)
    bound, evaluated = _with_evaluation(larger, files.evaluation, view, view.run)
    if evaluated == "added":
        warnings.append("The ledger does not have the evaluation: its cost is added.")
    return (
        Claim(verdict, bound, recorded, view.spent, is_full_plan, larger, evaluated),
        warnings,
    )


def _with_evaluation(
    training: PrivacyBound, evaluation: PaidEvaluation | None, view: LedgerView, run: RunState
) -> tuple[PrivacyBound, Literal["part", "ledger", "added"] | None]:
    """Return the cost of training and evaluation together, and how the evaluation counts."""
    if evaluation is None:
        return training, None
    claimed = evaluation.epsilon or 0.0
    known, together = [each.entry for each in view.evaluation], view.together
    own = run.entry
    are_parts = own.split is not None and all(
        each.split == own.split and each.part != own.part for each in known
    )
    if known and together is not None:
        epsilon = max(training.epsilon, together.epsilon)
        if are_parts:
            return replace(training, epsilon=max(epsilon, claimed), lower=None), "part"
        if claimed <= max(each.epsilon for each in known) * (1.0 + _ROUNDING):
            accountant = together.accountant
            return replace(training, epsilon=epsilon, lower=None, accountant=accountant), "ledger"
    if evaluation.epsilon is None:
        return training, None
    delta = training.delta if evaluation.delta is None else evaluation.delta
    # Evaluations are for adding or removing a record: another in its place is both.
    cost = group_privacy(1 if training.adjacency == "add-remove" else 2, claimed, delta)
    total = training.epsilon + cost[0], min(1.0, training.delta + cost[1])
    return replace(training, epsilon=total[0], delta=total[1], lower=None), "added"


def _verdict(files: RunFiles, counted: PrivacyBound) -> Verdict:
    bounds = [counted, *([] if files.result is None else [files.result.bound])]
    if any(audit.is_violated for audit in files.audits):
        return "refuted"
    if not all(bound.is_upper_bound for bound in bounds):
        return "estimate"
    others = () if files.ledger is None else files.ledger.evaluation
    is_seeded = files.evaluation is not None and files.evaluation.is_seeded
    if files.is_seeded or is_seeded or any(run.entry.is_seeded for run in others):
        return "seeded"
    return "conditional" if files.derived_from_private_data else "proven"


def _disagreements(files: RunFiles, view: LedgerView, run: RunState) -> Iterator[str]:
    """Yield why the files do not belong together: then nothing is claimed."""
    plan, result, evaluation = files.plan, files.result, files.evaluation
    unit = run.entry.unit or "record"
    if evaluation is not None and evaluation.epsilon and evaluation.unit != unit:
        yield (
            f"The training protects {unit}s, but the evaluation {evaluation.unit}s: their costs do "
            "not add up. Evaluate with users= as the training has them."
        )
    if plan is None and result is None:
        yield f"Neither {PLAN} nor {RESULT} can be used to identify the run in the ledger."
    if plan is not None and plan.fingerprint != run.entry.fingerprint:
        yield f"{PLAN} is not the plan that the ledger has for this run."
    if result is None:
        return
    # A run that ended early may have ended with a plan that was not registered any more.
    is_known = result.fingerprint in view.fingerprints or (run.is_incomplete and plan is not None)
    if not is_known:
        yield f"{RESULT} is of a plan that the ledger does not have for this run."
    charged = files.steps_of(len(run.spent))
    if result.steps > charged:
        yield f"{RESULT} has {result.steps:,} steps, but the ledger only {charged:,}."
    counted = view.full_plan
    if counted is not None and (result.bound.delta, result.bound.adjacency) != (
        counted.delta,
        counted.adjacency,
    ):
        yield f"{RESULT} and the ledger differ in δ or in the adjacency."


def _end_warnings(files: RunFiles, run: RunState) -> Iterator[str]:
    if files.result is None and not run.is_open:
        yield f"The run has ended in the ledger, but there is no {RESULT} that can be read."
    if files.result is not None and run.is_open:
        yield (
            f"There is a {RESULT}, but the run is open in the ledger: the cost of its full plan is "
            "reported."
        )
    if files.about is not None and files.about.is_moved and run.is_open:
        yield (
            "This run directory is a copy or was moved, and its run is open: what other copies "
            "spend is not in this ledger."
        )
