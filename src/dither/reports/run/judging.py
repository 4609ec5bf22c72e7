"""From what the files say to what may be said: the worse of two claims, and fail closed."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

from dither.ledger.entries import RunEntry
from dither.ledger.state import RunState
from dither.reports.run.booking import Booked
from dither.reports.run.reading import About, Planned, Recorded
from dither.reports.run.report import ACCOUNTANTS, Claim
from dither.types import PrivacyBound, SpentSoFar, rounded

_SAME = 1e-6  # another machine may round differently: no alarm, but the larger is reported


@final
@dataclass(frozen=True)
class Files:
    """All that the folder of a run says; ``planned`` only if it is the plan of the ledger's run."""

    about: About | None
    recorded: Recorded | None
    planned: Planned | None
    booked: Booked | None
    has_other_plan: bool = False

    @property
    def is_seeded(self) -> bool:
        """Whether anything says that the noise can be repeated."""
        run = None if self.booked is None else self.booked.run
        by_ledger = run is not None and run.entry.is_seeded
        return by_ledger or (self.recorded is not None and self.recorded.seed is not None)

    @property
    def derived_from_private_data(self) -> tuple[str, ...] | None:
        """What was read off the private data; None if run.json does not say."""
        if self.about is None or self.about.derived_from_private_data is None:
            return None
        recorded = () if self.recorded is None else self.recorded.derived_from_private_data
        return tuple(dict.fromkeys((*self.about.derived_from_private_data, *recorded)))


def claim_of(files: Files, alarms: list[str]) -> Claim:
    """Return what may be said of the run's privacy; what does not fit together is added to alarms.

    Never better than the ledger: where result.json claims less than the ledger counts, the ledger
    is believed. Without a ledger that has the run, or with files of another run, nothing is
    confirmed.
    """
    booked, recorded = files.booked, files.recorded
    said = None if recorded is None else recorded.bound
    if booked is None or booked.run is None or booked.alone is None or booked.whole is None:
        if said is not None and math.isinf(said.epsilon):
            return Claim("nothing", said, said, None)
        return Claim("not confirmed", None, said, None)
    alone, whole = booked.alone, booked.whole
    _tell_of_ends(recorded, booked.run, alarms)
    contradictions = [*_contradictions(files, booked.run, booked.fingerprints)]
    alarms += contradictions
    if contradictions or files.has_other_plan:
        return Claim("not confirmed", None, said, alone)
    if math.isinf(alone.epsilon) or (said is not None and math.isinf(said.epsilon)):
        if said is not None and math.isfinite(said.epsilon):
            alarms.append(
                f"result.json claims ε = {rounded(said.epsilon, 4)}, but the ledger says that the "
                "run's steps protect nothing. The ledger is believed."
            )
        return Claim("nothing", replace(whole, epsilon=math.inf, lower=None), said, alone)
    return _finite_claim(files, alone, whole, alarms)


def _finite_claim(
    files: Files, alone: PrivacyBound, whole: PrivacyBound, alarms: list[str]
) -> Claim:
    said = None if files.recorded is None else files.recorded.bound
    bound = whole if said is None or whole.epsilon > said.epsilon else said
    if said is not None and whole.epsilon > said.epsilon * (1.0 + _SAME):
        alarms.append(
            f"result.json claims ε = {rounded(said.epsilon, 4)}, but the ledger counts "
            f"ε = {rounded(whole.epsilon, 4)} at δ = {rounded(said.delta, 3)} for this run. "
            "The ledger's is reported."
        )
    is_proven = said is None or said.is_upper_bound
    verdict = "proven" if is_proven else "not proven"
    if is_proven and files.derived_from_private_data != ():
        verdict = "conditional"
    if is_proven and files.is_seeded:
        verdict = "seeded"
    return Claim(verdict, bound, said, alone, is_whole_plan=isinstance(alone, SpentSoFar))


def _tell_of_ends(recorded: Recorded | None, run: RunState, alarms: list[str]) -> None:
    """Tell of files that differ in whether the run is over, or was seeded: the worse is taken."""
    if recorded is None:
        if not run.is_open:
            alarms.append("By the ledger the run has ended, but no result.json can be read.")
        return
    if run.is_open:
        alarms.append(
            "There is a result.json, but by the ledger the run is still open: the cost of its "
            "whole plan is reported."
        )
    if (recorded.seed is not None) != run.entry.is_seeded:
        alarms.append("result.json and the ledger differ in whether the run was seeded.")


def _contradictions(files: Files, run: RunState, fingerprints: tuple[str, ...]) -> Iterator[str]:
    """Return everything in which files differ so that no claim can stand."""
    recorded = files.recorded
    if recorded is None:
        if files.planned is None:
            yield (
                "Neither plan.json nor result.json can be used, so nothing shows that the ledger's "
                "run is the one of this folder."
            )
        return
    yield from _of_bound(recorded.bound, run.entry)
    if recorded.steps > len(run.spent):
        yield (
            f"result.json has {recorded.steps:,} steps, but the ledger has only "
            f"{len(run.spent):,}: steps were released that nobody has paid for."
        )
    if recorded.steps < 1:
        yield f"result.json has {recorded.steps:,} steps, but no run has less than one."
    # A run that ended early may have ended with a plan that was not registered any more.
    is_tied = recorded.plan in fingerprints or (run.is_part and files.planned is not None)
    if not is_tied:
        yield (
            "result.json is of a plan that the ledger does not know for this run, so it may be of "
            "another run."
        )


def _of_bound(said: PrivacyBound, entry: RunEntry) -> Iterator[str]:
    """Return in what result.json's claim differs from the ledger's run, but for ε itself."""
    adjacency = "replace-one" if entry.sampling == "fixed" else "add-remove"
    if said.adjacency != adjacency:
        yield f"result.json speaks of {said.adjacency} neighbours, the ledger of {adjacency}."
    if said.sampling not in (entry.sampling, "full" if entry.sample_rate == 1.0 else None):
        yield f"result.json speaks of {said.sampling} sampling, the ledger of {entry.sampling}."
    if said.unit != "record":
        yield f"result.json claims to protect each {_short(said.unit)}, but runs protect records."
    if said.accountant not in ACCOUNTANTS or (
        said.accountant == "none" and math.isfinite(said.epsilon)
    ):
        yield f"result.json names the accountant {_short(said.accountant)}, which counts nothing."
    if said.delta != entry.delta:
        yield f"result.json has δ = {said.delta:g}, the ledger δ = {entry.delta:g}."


def _short(text: str) -> str:
    return repr(text[:40])


def fits_ledger(planned: Planned, booked: Booked | None, alarms: list[str]) -> bool:
    """Return whether a plan is the one that the run was registered with, as far as is known."""
    if booked is None or booked.run is None:
        return True
    entry = booked.run.entry
    is_same = (
        entry.fingerprint[: 64 if planned.plan is not None else 16] == planned.fingerprint
        and entry.sampling == planned.sampling
        and entry.sample_rate == planned.batch_size / planned.dataset_size
        and len(entry.noise) == planned.steps
        and (planned.privacy is None or _promises(planned, planned.privacy, entry))
    )
    if not is_same:
        alarms.append(
            "plan.json is another plan than the one that the ledger has for this run, and is not "
            "used."
        )
    return is_same


def _promises(planned: Planned, privacy: str, entry: RunEntry) -> bool:
    """Return whether a plan in words promises what the run was registered with."""
    if planned.is_raw or math.isinf(entry.epsilon):
        return planned.is_raw and math.isinf(entry.epsilon)
    numbers = f"ε = {rounded(entry.epsilon, 4)}, δ = {rounded(entry.delta, 3)}"
    estimate = f"about ε = {entry.epsilon:.4g} at δ = {entry.delta:.3g}:"
    return privacy.startswith((f"({numbers})-", estimate))
