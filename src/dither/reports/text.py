"""The sentences of a report: what is claimed, what ε and δ mean, and what is not covered."""

import math
from fractions import Fraction

from dither.reports.claim import Claim
from dither.reports.load import RESULT
from dither.reports.odds import group_privacy, membership_odds, percent, times
from dither.reports.report import RunReport
from dither.training.statement import guarantee
from dither.types import PrivacyBound, rounded

_ACCOUNTANTS = {
    "pld": "numerical composition of privacy loss distributions, rounded up",
    "rdp": "Rényi differential privacy",
    "filter": "a Rényi privacy filter, which covers noise that is chosen adaptively",
    "odometer": "a Rényi privacy odometer, which holds wherever a run stops",
    "gdp": "the central limit theorem, an estimate",
    "theorem": "the paper's theorem",
    "advanced": "advanced composition",
}
_GUESSES = {
    "add-remove": ("'in' and 'out'", "whether a given record was in the data"),
    "replace-one": ("both", "which of two given records was in the data"),
}
_PAIRS = {
    "add-remove": "with the record and without it",
    "replace-one": "with the record and with any other record in its place",
}


def headline(report: RunReport) -> tuple[str, str]:
    """Return the claim as a title and a text."""
    claim = report.claim
    bound = claim.bound
    if bound is None:
        return "Not confirmed: no ε is reported", _not_confirmed(claim)
    if claim.verdict == "no privacy":
        reason = "" if report.facts is None else guarantee(report.facts)
        return "No privacy: ε = ∞", reason or "This run has no privacy guarantee."
    numbers = f"ε = {rounded(bound.epsilon, 4)} at δ = {rounded(bound.delta, 3)}"
    if claim.verdict == "refuted":
        return (
            f"REFUTED: {numbers} was claimed",
            "An attack achieved more than the claim allows. Do not rely on the claim, and do not "
            "release the model, until the cause is known.",
        )
    if claim.verdict == "estimate":
        return f"Not proven: about {numbers}", f"This ε is an estimate, not a bound: {bound}."
    if claim.verdict == "seeded":
        return (
            f"SEEDED: {numbers} does not hold against anyone who can guess the seed",
            "The noise of this run can be computed from its seed and subtracted. Seeds are for "
            "tests and experiments.",
        )
    text = _proven(report, bound) + _all_runs(report)
    if claim.verdict == "conditional":
        derived = "; ".join(report.derived_from_private_data)
        return (
            f"NOT PROVEN unless public: at most {numbers}",
            f"Derived from the private data without noise: {derived}. The guarantee holds only if "
            f"this is public. {text}",
        )
    return f"At most {numbers}", text


def _not_confirmed(claim: Claim) -> str:
    text = "The ledger that records what this run has spent is missing, damaged, or another one."
    if claim.spent is not None:
        text = "Files of this run are damaged or disagree; see the warnings."
    recorded = claim.recorded
    if recorded is not None and math.isfinite(recorded.epsilon):
        text += (
            f" {RESULT} records ε = {rounded(recorded.epsilon, 4)} at "
            f"δ = {rounded(recorded.delta, 3)}, which nothing confirms."
        )
    return text


def _proven(report: RunReport, bound: PrivacyBound) -> str:
    claim = report.claim
    if claim.is_full_plan:
        return (
            "The run has not ended. This is the cost of its full plan, which holds wherever the "
            "run stops."
        )
    best = membership_odds(bound.epsilon, bound.delta).best_guess
    answers, question = _GUESSES[bound.adjacency]
    proven = "Under this condition it is proven" if claim.verdict == "conditional" else "Proven"
    is_counted = report.facts is not None and report.facts.is_counted
    where = ", if the number of records is public" if is_counted else ""
    return (
        f"{proven} for each {bound.unit}{where}. An attacker who sees every model, knows all other "
        f"records, and first thinks {answers} equally likely guesses right {question} with "
        f"probability at most {percent(best)}."
    )


def _all_runs(report: RunReport) -> str:
    ledger = report.ledger
    if ledger is None or len(ledger["runs"]) < 2:
        return ""
    total = "∞" if ledger["epsilon"] is None else rounded(ledger["epsilon"], 4)
    return (
        f" All {len(ledger['runs'])} runs in the ledger together: ε = {total} at "
        f"δ = {rounded(ledger['delta'], 3)}."
    )


def meaning(report: RunReport) -> list[tuple[str, str]]:
    """Return what ε and δ mean, as names and sentences; empty if nothing is guaranteed."""
    claim = report.claim
    bound = claim.bound
    if bound is None or not claim.is_guarantee:
        return []
    odds = membership_odds(bound.epsilon, bound.delta)
    pair, delta = group_privacy(2, bound.epsilon, bound.delta), rounded(bound.delta, 3)
    rows = [
        (
            "ε",
            f"The probabilities of any result, {_PAIRS[bound.adjacency]}, differ at most by the "
            f"factor e^ε = {times(odds.likelihood_ratio)}, plus δ.",
        ),
        (
            "δ",
            f"{delta}, at most 1 in {_one_in(bound.delta)}: the probability that the factor e^ε "
            f"does not cover.{_large_delta(report, bound)}",
        ),
        (
            "Unit",
            f"One {bound.unit}. A person with k records is protected with k·ε and "
            "δ·(1 + e^ε + … + e^((k−1)·ε)); for two records, "
            f"ε = {rounded(pair[0], 4)} and δ = {rounded(pair[1], 3)}.",
        ),
        ("Accountant", f"{bound.accountant}: {_ACCOUNTANTS.get(bound.accountant, 'unknown')}."),
    ]
    if claim.is_full_plan and claim.spent is not None:
        rows.append(("Spent so far", f"{claim.spent}."))
    if odds.best_guess > 0.99:
        rows.append(
            ("Large ε", "The bound alone rules out little. An audit measures known attacks.")
        )
    return rows


def _one_in(delta: float) -> str:
    return f"{math.floor(1 / Fraction(repr(delta))):,}"


def _large_delta(report: RunReport, bound: PrivacyBound) -> str:
    n = None if report.facts is None else report.facts.dataset_size
    if n is None or bound.delta * n < 1.0:
        return ""
    return (
        f" This δ is NOT below 1/n = 1/{n:,}: it would allow publishing a record outright. Choose "
        "a smaller one."
    )


NOT_COVERED = (
    (
        "Public test data",
        "Records that metrics are computed on were declared public, and are not protected.",
    ),
    (
        "Properties of groups",
        "What the model reveals about a group applies to each of its members, whether or not their "
        "records were used.",
    ),
    (
        "Other channels",
        "The data itself, releases that are not in the ledger, output of the caller's own code, "
        "the time and memory of a step, and an attacker who controls the machine.",
    ),
    (
        "Changed files",
        "The run directory is not signed. The ledger is checked for damage, not for tampering.",
    ),
)
