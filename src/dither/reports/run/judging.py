"""From what the files say to what may be said: the worse of two claims, and fail closed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from dither.ledger.book import Run
from dither.reports.run.booking import Booked
from dither.reports.run.reading import About, Planned, Recorded
from dither.reports.run.report import Claim
from dither.types import PrivacyBound, SpentSoFar, rounded

_SAME = 1e-6  # another machine may round differently


@final
@dataclass(frozen=True)
class Files:
    """All that the folder of a run says."""

    about: About | None
    recorded: Recorded | None
    planned: Planned | None
    booked: Booked | None

    @property
    def is_seeded(self) -> bool:
        """Whether anything says that the noise can be repeated."""
        run = None if self.booked is None else self.booked.run
        by_ledger = run is not None and run.entry.is_seeded
        return by_ledger or (self.recorded is not None and self.recorded.seed is not None)


def claim_of(files: Files, alarms: list[str]) -> Claim:
    """Return what may be said of the run's privacy; what does not fit together is added to alarms.

    Never better than the ledger: where result.json claims less than the ledger counts, the ledger
    is believed. Without a ledger that has the run, nothing is confirmed.
    """
    booked, recorded = files.booked, files.recorded
    said = None if recorded is None else recorded.bound
    if booked is None or booked.run is None or booked.alone is None or booked.whole is None:
        if said is not None and math.isinf(said.epsilon):
            return Claim("nothing", said, said, None)
        return Claim("not confirmed", None, said, None)
    alone, whole = booked.alone, booked.whole
    if not _fits(recorded, booked.run, booked.fingerprints, alarms):
        return Claim("not confirmed", None, said, alone)
    if math.isinf(alone.epsilon) or (said is not None and math.isinf(said.epsilon)):
        if said is not None and math.isfinite(said.epsilon):
            alarms.append(
                f"result.json claims ε = {rounded(said.epsilon, 4)}, but the ledger says that the "
                "run's steps protect nothing. The ledger is believed."
            )
        return Claim("nothing", replace(whole, epsilon=math.inf), said, alone)
    return _finite_claim(files, alone, whole, alarms)


def _finite_claim(
    files: Files, alone: PrivacyBound, whole: PrivacyBound, alarms: list[str]
) -> Claim:
    said = None if files.recorded is None else files.recorded.bound
    bound = whole
    if said is not None:
        if whole.epsilon > said.epsilon * (1.0 + _SAME):
            alarms.append(
                f"result.json claims ε = {rounded(said.epsilon, 4)}, but the ledger counts "
                f"ε = {rounded(whole.epsilon, 4)} at δ = {rounded(said.delta, 3)} for this run. "
                "The ledger's is reported."
            )
        else:
            bound = said
    proven = said is None or said.is_upper_bound
    verdict = "proven" if proven else "not proven"
    if files.is_seeded and proven:
        verdict = "seeded"
    return Claim(verdict, bound, said, alone, is_whole_plan=isinstance(alone, SpentSoFar))


def _fits(
    recorded: Recorded | None, run: Run, fingerprints: Sequence[str], alarms: list[str]
) -> bool:
    """Tell of everything in which files differ, and whether the claim can stand with that."""
    fits = True
    if recorded is None:
        if not run.is_open:
            alarms.append("By the ledger the run has ended, but no result.json can be read.")
        return True
    if run.is_open:
        alarms.append(
            "There is a result.json, but by the ledger the run is still open: the cost of its "
            "whole plan is reported."
        )
    if recorded.steps > len(run.spent):
        alarms.append(
            f"result.json has {recorded.steps:,} steps, but the ledger has only "
            f"{len(run.spent):,}: steps were released that nobody has paid for."
        )
        fits = False
    relation = "replace-one" if run.entry.sampling == "fixed" else "add-remove"
    if recorded.bound.relation != relation:
        alarms.append(
            f"result.json speaks of {recorded.bound.relation} neighbours, the ledger of {relation}."
        )
        fits = False
    if recorded.bound.delta != run.entry.delta:
        alarms.append(
            f"result.json has δ = {recorded.bound.delta:g}, the ledger δ = {run.entry.delta:g}."
        )
    if (recorded.seed is not None) != run.entry.is_seeded:
        alarms.append("result.json and the ledger differ in whether the run was seeded.")
    if recorded.plan not in fingerprints and not run.is_part:  # else it ended early
        alarms.append("result.json is of a plan that the ledger does not know.")
    return fits


def after_audits(claim: Claim, audits: Sequence[Mapping[str, Any]], alarms: list[str]) -> Claim:
    """Return the claim, or that it is refuted if an audit says so."""
    violated = [each for each in audits if each["is_violated"]]
    if not violated:
        return claim
    alarms.insert(0, f"An audit has refuted the claim of this run. {violated[-1]['verdict']}")
    if claim.verdict in ("nothing", "not confirmed"):
        return claim
    return replace(claim, verdict="refuted")


def usable_plan(
    planned: Planned | None, booked: Booked | None, alarms: list[str]
) -> Planned | None:
    """Return the plan of plan.json, if it is the one that the run was registered with."""
    if planned is None or booked is None or booked.run is None:
        return planned
    entry = booked.run.entry
    is_same = entry.fingerprint.startswith(planned.fingerprint) and entry.sampling == (
        planned.sampling
    )
    if not is_same:
        alarms.append(
            "plan.json is another plan than the one that the ledger has for this run, and is not "
            "used."
        )
    return planned if is_same else None
