"""The sentences of a report: the claim, as odds, how strong it is, and what it does not cover."""

import math
from collections.abc import Iterator
from fractions import Fraction

from dither.reports.claim import Claim
from dither.reports.odds import group_privacy, membership_odds, percent, times
from dither.reports.report import RunReport
from dither.reports.scale import strength
from dither.training.run_directory import RESULT
from dither.training.statement import PARTITION, guarantee, public_size, weighted
from dither.types import PrivacyBound, rounded

_GUESSES = {
    "add-remove": ("'in' and 'out'", "whether a given {unit} was in the data"),
    "replace-one": ("both", "which of two given {unit}s was in the data"),
}
_PAIRS = {
    "add-remove": "with a {unit} in the data and without it",
    "replace-one": "with a {unit} in the data and with any other {unit} in its place",
}
_REMEDIES = {  # by a word of what was derived from the private data
    "number of records": "--dataset-size N (in Python dataset_size=)",
    "number of users": "--dataset-size N (in Python dataset_size=)",
    "classes": "--classes A,B,… (in Python classes=), or classes in the schema",
    "bounds": "bounds in the schema (in Python also feature_bounds=)",
}
_EVALUATED = {
    "part": "a {unit} is in one part of the random split only, so the larger counts",
    "ledger": "the ledger composes both",
    "added": "they add up",
}
_READINGS = {
    "strong": "The model says little about any one {unit}, whatever else an attacker knows.",
    "reasonable": "This is usual for machine learning. It limits every attack, but an attacker who "
    "knows almost everything may become fairly certain in the worst case.",
    "weak": "The bound alone rules out little. Do not rely on ε alone: an audit measures known "
    "attacks (dither audit --run-dir DIR).",
}


def headline(report: RunReport) -> tuple[str, str]:
    """Return the claim as a title and a sentence."""
    claim = report.claim
    bound = claim.bound
    if bound is None:
        return "Not confirmed: no ε is reported", _not_confirmed(claim)
    if claim.verdict == "no privacy":
        reason = "" if report.facts is None else guarantee(report.facts)
        return "No privacy: ε = ∞", reason or "This run has no privacy guarantee."
    numbers = _numbers(bound)
    if claim.verdict == "refuted":
        return (
            f"REFUTED: {numbers} was claimed",
            "An attack achieved more than the claim allows. Do not rely on the claim, and do not "
            "release the model, until the cause is known.",
        )
    if claim.verdict == "estimate":
        return (
            f"NOT PROVEN: about {numbers}",
            f"This ε is an estimate of the {bound.accountant} accountant, and not a bound. Train "
            "with a plan of the pld accountant, the default, to prove one.",
        )
    if claim.verdict == "seeded":
        return (
            f"SEEDED: {numbers} does not hold against anyone who can guess the seed",
            "The noise of this run can be computed from its seed and subtracted. Seeds are for "
            "tests and experiments.",
        )
    text = _guarantee(claim, bound)
    if claim.verdict == "conditional":
        derived = "; ".join(report.derived_from_private_data)
        return (
            f"NOT PROVEN: {derived} taken from the private data without noise",
            f"What is missing is public knowledge of it: give {_remedy(report)}, and train again. "
            f"Only if it is public is this run at most {numbers} for each {bound.unit}. {text}",
        )
    return f"At most {numbers} for each {bound.unit}", text


def _numbers(bound: PrivacyBound) -> str:
    return f"ε = {rounded(bound.epsilon, 4)} at δ = {rounded(bound.delta, 3)}"


def _not_confirmed(claim: Claim) -> str:
    text = "The ledger that records what this run has spent is missing, damaged, or another one."
    if claim.spent is not None:
        text = "Files of this run are damaged or disagree; see the warnings."
    recorded = claim.recorded
    if recorded is not None and math.isfinite(recorded.epsilon):
        text += f" {RESULT} records {_numbers(recorded)}, which nothing confirms."
    return text


def _remedy(report: RunReport) -> str:
    derived = " ".join(report.derived_from_private_data)
    known = [remedy for word, remedy in _REMEDIES.items() if word in derived]
    return "; ".join(known) or "it as a setting from public knowledge"


def _guarantee(claim: Claim, bound: PrivacyBound) -> str:
    open_run = "The run has not ended: this is the cost of its full plan, wherever it stops. "
    factor = times(membership_odds(bound.epsilon, bound.delta).likelihood_ratio)
    pairs = _PAIRS[bound.adjacency].format(unit=bound.unit)
    return (
        f"{open_run if claim.is_full_plan else ''}The probabilities of any result, "
        f"{pairs}, differ at most by the factor e^ε = {factor}, apart from "
        f"δ = {rounded(bound.delta, 3)}, which is at most 1 in {_one_in(bound.delta)}."
    )


def _one_in(delta: float) -> str:
    # 1/(1/n) is n but for rounding in the last digits.
    return f"{math.floor(float(1 / Fraction(repr(delta))) * (1.0 + 1e-12)):,}"


def odds(report: RunReport) -> list[tuple[str, str]]:
    """Return the claim as odds, as names and sentences; empty if nothing is guaranteed."""
    bound = report.claim.bound
    if bound is None or not report.claim.is_guarantee:
        return []
    found = membership_odds(bound.epsilon, bound.delta)
    answers, question = _GUESSES[bound.adjacency]
    unit = bound.unit
    F, P = found.rates[0]
    return [
        (
            "Best guess",
            f"An attacker who sees every model, knows all other {unit}s, and first thinks "
            f"{answers} equally likely guesses right {question.format(unit=unit)} with probability "
            f"at most {percent(found.best_guess)}.",
        ),
        (
            "Best test",
            f"A test that wrongly says 'in' of {100.0 * F:g} % of the {unit}s that were not in the "
            f"data says it of at most {percent(P)} of those that were.",
        ),
        *_conditions(report, bound),
    ]


def _conditions(report: RunReport, bound: PrivacyBound) -> Iterator[tuple[str, str]]:
    facts, ledger = report.facts, report.ledger
    if facts is not None:
        if facts.rows_per_user is not None:
            yield (
                "Users",
                "All rows of one person are protected together, however many there are: a step "
                f"takes at most {facts.rows_per_user:,} of them.",
            )
        yield "Taken as public", f"{public_size(facts)}."
        if facts.is_weighted:
            yield "Weights", weighted(facts)
        if bound.delta * facts.dataset_size >= 1.0:
            yield (
                "Large δ",
                f"This δ is NOT below 1/n = 1/{facts.dataset_size:,}: it would allow publishing a "
                f"{'record' if facts.rows_per_user is None else 'person'} outright. Choose a "
                "smaller one.",
            )
    claimed = 2 if report.claim.evaluated in ("part", "ledger") else 1
    if ledger is not None and len(ledger["runs"]) > claimed:
        total = "∞" if ledger["epsilon"] is None else rounded(ledger["epsilon"], 4)
        has_parts = any(run["split"] is not None for run in ledger["runs"])
        of = "in all of them" if not has_parts else "in the most expensive part of every split"
        yield (
            "All runs",
            f"All {len(ledger['runs'])} runs in the ledger together: ε = {total} at "
            f"δ = {rounded(ledger['delta'], 3)}, for a {bound.unit} that is {of}.",
        )
    costs = _evaluation_costs(report)
    if costs:
        yield "Evaluation", costs


def _evaluation_costs(report: RunReport) -> str:
    """Return what training and evaluation cost each, as a sentence; empty without an evaluation."""
    training, found, how = report.claim.training, report.evaluation, report.claim.evaluated
    if training is None or found is None or found.epsilon is None or how is None:
        return ""
    delta = "" if found.delta is None else f" at δ = {rounded(found.delta, 3)}"
    return (
        f"Training costs {_numbers(training)}, and its evaluation "
        f"ε = {rounded(found.epsilon, 4)}{delta}: {_EVALUATED[how].format(unit=training.unit)}."
    )


def reading(report: RunReport) -> str:
    """Return how strong ε is, in plain words; empty if nothing is guaranteed."""
    bound = report.claim.bound
    if bound is None or not report.claim.is_guarantee:
        return ""
    word = strength(bound.epsilon)
    an = "If that is public: an" if report.claim.verdict == "conditional" else "An"
    of = f"{an} ε of {rounded(bound.epsilon, 4)} for each {bound.unit}"
    return f"{of} is {word}. {_READINGS[word].format(unit=bound.unit)}"


def _several_rows(report: RunReport, bound: PrivacyBound) -> str:
    """Return what the claim means for a person with several rows."""
    each = f"The claim is for each {bound.unit}"
    if report.groups:
        found = "; ".join(
            f"{group.unit.removeprefix('group of ')}: ε = {rounded(group.epsilon, 4)}"
            for group in report.groups
        )
        return f"{each}. For a person with several, at δ = {rounded(bound.delta, 3)}: {found}."
    epsilon, delta = group_privacy(2, bound.epsilon, bound.delta)
    return (
        f"{each}: two of one person have ε = {rounded(epsilon, 4)} and δ = {rounded(delta, 3)}, "
        "and k have k·ε with a larger δ."
    )


def not_covered(report: RunReport) -> dict[str, str]:
    """Return what the claim of this run does not cover; empty if nothing is guaranteed."""
    bound = report.claim.bound
    if bound is None or not report.claim.is_guarantee:
        return {}
    if bound.unit == "user":
        epsilon, delta = group_privacy(2, bound.epsilon, bound.delta)
        several = (
            f"The claim is for each user: two together, as a couple, have ε = "
            f"{rounded(epsilon, 4)} and δ = {rounded(delta, 3)}, and k have k·ε with a larger δ."
        )
        whom = {"Rows about several people": PARTITION, "Several users": several}
    else:
        whom = {"Several rows of a person": _several_rows(report, bound)}
    rows = {
        **whom,
        "Groups": "What the model reveals about a group applies to all of its members, in the data "
        "or not.",
    }
    if report.metrics:
        rows["Public test data"] = "Records that were declared public are not protected."
    if not report.is_ledger_shared:
        rows["Other runs"] = (
            "Other runs on the same data add to ε. A shared ledger counts them (--ledger FILE)."
        )
    rows["Other channels"] = (
        "The data itself, output of the caller's own code, the time and memory of a step, and an "
        "attacker who controls the machine."
    )
    return rows
