"""The claim in plain words: who is protected, from what, by how much, and what is not covered."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import final

from dither.reports.run.odds import Odds, odds_of, of_group, percent, times
from dither.reports.run.report import ACCOUNTANTS, Claim, RunReport
from dither.training.statement import claim as claimed_in_words
from dither.types import PrivacyBound, rounded

_ADJACENCIES = {
    "add-remove": "add-remove: two datasets are neighbours if one has a single record more",
    "replace-one": "replace-one: two datasets of the same size are neighbours if a single record "
    "differs",
}
_OTHERWISE = {
    "add-remove": "as if that record were not in the data",
    "replace-one": "as with any other record in its place",
}
_PROVISOS = {
    "seeded": "Nobody, from those who know or guess the seed. From all others: ",
    "refuted": "An audit has refuted this. Claimed was: ",
    "not proven": "By an estimate, and without proof: ",
    "conditional": "Only if what was read off the private data is public: ",
}
_IS_IT = {
    "add-remove": "a given one was in the data",
    "replace-one": "it was a given one or another",
}
_QUESTIONS = {
    "add-remove": ("was this record in the data, or not", "in the data", "not in the data"),
    "replace-one": (
        "was it this record, or another given one in its place",
        "this record",
        "the other one",
    ),
}


@final
@dataclass(frozen=True)
class Headline:
    """The first thing to read: a few words, and one or two sentences."""

    title: str
    text: str


def headline(report: RunReport) -> Headline:
    """Return what is claimed, as the first thing to read."""
    claim = report.claim
    bound = claim.bound
    if claim.verdict == "not confirmed" or bound is None:
        return Headline("Not confirmed", _not_confirmed(claim))
    if claim.verdict == "nothing":
        why = "" if report.stated is None else claimed_in_words(report.stated)
        return Headline(
            "No privacy: ε = ∞",
            why or "This run claims NO privacy (ε = ∞): nothing protects its steps.",
        )
    numbers = f"ε = {rounded(bound.epsilon, 4)} at δ = {rounded(bound.delta, 3)}"
    if claim.verdict == "refuted":
        return Headline(
            f"REFUTED: {numbers} was claimed",
            "An attack has found more than the claim allows: do not rely on it, and do not release "
            "the model before the reason is known.",
        )
    if claim.verdict == "not proven":
        return Headline(f"Not proven: about {numbers}", f"This is an estimate: {bound}.")
    if claim.verdict == "seeded":
        return Headline(
            f"SEEDED: {numbers} only for those who cannot guess the seed",
            "The noise of this run can be computed and subtracted by whoever knows or guesses the "
            "seed. It is for tests and experiments, and protects nobody.",
        )
    text = " ".join(filter(None, (_proven_text(report, bound), _together(report))))
    if claim.verdict == "conditional":
        return Headline(
            f"NOT PROVEN unless public: at most {numbers}", f"{_condition(report)} {text}"
        )
    return Headline(f"At most {numbers}", text)


def _not_confirmed(claim: Claim) -> str:
    said = claim.recorded
    text = "No ledger that can be read confirms what this run has spent, so no ε is reported."
    if claim.counted is not None:
        text = (
            "Files of this run are damaged or do not fit together, as the warnings say, so no ε is "
            "reported."
        )
    if said is not None and math.isfinite(said.epsilon):
        text += (
            f" result.json claims ε = {rounded(said.epsilon, 4)} at "
            f"δ = {rounded(said.delta, 3)}; nothing here supports it."
        )
    return text


def _condition(report: RunReport) -> str:
    """Return on what the claim of a conditional run rests."""
    if report.derived_from_private_data is None:
        return (
            "Whether anything was read off the private data, such as the number of records or the "
            "set of classes, is not recorded. No noise protects such a thing: what follows holds "
            "only if whatever was read off may be known to everybody."
        )
    what = " and ".join(report.derived_from_private_data)
    verb = "were" if len(report.derived_from_private_data) > 1 else "was"
    return (
        f"{_sentence(what)} {verb} READ OFF the private data, which no noise protects: what "
        "follows holds only if that may be known to everybody."
    )


def _proven_text(report: RunReport, bound: PrivacyBound) -> str:
    found = odds_of(bound.epsilon, bound.delta)
    if report.claim.is_whole_plan:
        return (
            "The run is not over. This is what its whole plan may cost, which holds wherever the "
            "run stops."
        )
    proven = "Then it is proven" if report.claim.verdict == "conditional" else "Proven"
    return (
        f"{proven} for each single {bound.unit}. Somebody who knows all the others, and for whom "
        f"it is 50:50 whether {_IS_IT[bound.adjacency]}, guesses right at most "
        f"{percent(found.best_guess)} of the time after seeing the model."
    )


def _together(report: RunReport) -> str:
    """Return what all runs in the ledger cost, if there are others."""
    found = report.ledger
    if found is None or len(found["runs"]) < 2:
        return ""
    total = "∞" if found["epsilon"] is None else rounded(found["epsilon"], 4)
    return (
        f"All {len(found['runs'])} runs in the ledger together: ε = {total} at "
        f"δ = {rounded(found['delta'], 3)}."
    )


def in_short(report: RunReport) -> list[tuple[str, str]]:
    """Return who is protected and how it was counted, as names and sentences."""
    bound, stated = report.claim.bound, report.stated
    if bound is None or not math.isfinite(bound.epsilon):
        return []
    many = "" if stated is None else f" The plan takes n = {stated.dataset_size:,} as public."
    factor = odds_of(bound.epsilon, bound.delta).factor
    rows = [
        (
            "Who is protected",
            f"{_PROVISOS.get(report.claim.verdict, '')}Each single {bound.unit} of the training "
            f"data.{many}",
        ),
        (
            "What that means",
            f"Whatever is learnt from the model is at most {times(factor)} times as probable "
            f"{_OTHERWISE[bound.adjacency]}, and at least 1/{times(factor)} times, up to δ.",
        ),
        ("Adjacency", f"{_ADJACENCIES[bound.adjacency]}."),
        (
            "Unit",
            f"One {bound.unit}. It is one person only if every person has a single {bound.unit}.",
        ),
        ("Sampling", _sampling(report, bound)),
        ("Accountant", f"{bound.accountant}: {_accountant(bound)}."),
        ("δ", _delta(report, bound)),
    ]
    if report.claim.is_whole_plan and report.claim.counted is not None:
        rows.append(("Spent so far", f"{_sentence(str(report.claim.counted))}."))
    return rows


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _accountant(bound: PrivacyBound) -> str:
    return ACCOUNTANTS.get(bound.accountant, "not described here")


def _sampling(report: RunReport, bound: PrivacyBound) -> str:
    stated = report.stated
    if stated is None:
        return bound.sampling
    q = stated.batch_size / stated.dataset_size
    if q == 1.0:
        return "full batch: every record takes part in every step."
    if stated.sampling == "fixed":
        return f"fixed: every step draws {stated.batch_size:,} distinct records at random."
    return f"poisson: in every step each record takes part by its own coin, with q = {q:.4g}."


def _delta(report: RunReport, bound: PrivacyBound) -> str:
    text = (
        f"{rounded(bound.delta, 3)}, at most 1 in {math.floor(1 / Fraction(repr(bound.delta))):,}: "
        "by so much may the probability of any event exceed what the factor e^ε allows."
    )
    n = None if report.stated is None else report.stated.dataset_size
    if n is not None and bound.delta * n >= 1.0:
        text += (
            f" This δ is NOT below 1/n = 1/{n:,}: a δ of that size would allow to publish a "
            "record outright. Choose a smaller one."
        )
    return text


def odds_in_words(claim: Claim) -> list[str]:
    """Return what ε and δ mean for one person, in sentences; empty if there are no odds."""
    bound = claim.bound
    if bound is None or not claim.has_odds:
        return []
    found = odds_of(bound.epsilon, bound.delta)
    question, yes, no = _QUESTIONS[bound.adjacency]
    delta = rounded(bound.delta, 3)
    parts = [
        f"The question is: {question}? An attacker who finds both equally likely beforehand, knows "
        "all other records and sees every model on the way, answers rightly at most "
        f"{percent(found.best_guess)} of the time: odds of {times(found.to_one)} to 1, where "
        "guessing has 1 to 1.",
        f"Exactly: let any test say “{yes}”. The probability of that if it is true is at most "
        f"e^ε = {times(found.factor)} times the probability of it if “{no}” is true, plus "
        f"δ = {delta}; and the same holds with the two exchanged. If δ were 0, seeing the model "
        f"could multiply anybody's odds by {times(found.factor)} at most.",
    ]
    if claim.verdict == "conditional":
        parts.insert(0, "All of this holds only if what was read off the private data is public.")
    if found.best_guess > 0.99:
        parts.append(
            "With an ε of this size the bound by itself rules out little: it is a worst case, and "
            "an audit may show how far from it attacks are that are known today."
        )
    return parts


def odds_rows(found: Odds) -> list[tuple[str, str]]:
    """Return rows: wrong about so many who were not in, finds so many who were."""
    return [(f"{100.0 * F:g} %", percent(P)) for F, P in found.found]


def not_covered(report: RunReport) -> list[tuple[str, str]]:
    """Return what the claim does not cover, as names and sentences."""
    return [
        ("Seeds", _seeds(report)),
        (
            "Tuning on the private data",
            "ε is of this run alone. Settings that were chosen by looking at other runs on the "
            "same data cost more; the ledger's total covers those runs that are in it, and no "
            "others.",
        ),
        ("Public constants", _constants(report)),
        (
            "Forged files",
            "The files of a run's folder are not signed: who can write to the folder can change "
            "what is reported here. The ledger is checked for damage, not for forgery.",
        ),
        ("Several records of one person", _group(report)),
        (
            "Public test data",
            "Records that accuracy is measured on were declared public, and are not protected.",
        ),
        (
            "What is true of many",
            "What the model tells of a whole group can be used on a person of that group, whether "
            "that person's record was in the data or not.",
        ),
        (
            "Other ways out",
            "The data itself, other releases from it that are not in the ledger, what a program "
            "of one's own prints while it trains, time and memory that a step takes, and whoever "
            "controls the machine.",
        ),
    ]


def _seeds(report: RunReport) -> str:
    if report.is_seeded:
        return (
            "This run WAS seeded. Who knows or guesses the seed computes its noise and subtracts "
            "it: no ε holds against them."
        )
    if report.state == "unknown":
        return "Whether this run was seeded is not recorded. A seeded run protects nobody."
    return "This run was not seeded. A seeded one would protect nobody who can guess the seed."


def _constants(report: RunReport) -> str:
    text = (
        "The number of records, the shape of a record, the set of classes, bounds of features and "
        "targets, and all settings are taken as public."
    )
    if report.derived_from_private_data is None:
        return (
            f"{text} Whether some of that was read off the private data is not recorded: the claim "
            "holds only as far as that may be known to everybody."
        )
    if report.derived_from_private_data:
        what = " and ".join(report.derived_from_private_data)
        verb = "were" if len(report.derived_from_private_data) > 1 else "was"
        return (
            f"{text} In this run {what} {verb} READ OFF the private data, which no noise protects: "
            "the claim holds only as far as that may be known to everybody."
        )
    return text


def _group(report: RunReport) -> str:
    bound = report.claim.bound
    text = "Who has k records is protected by k·ε only, with δ·(1 + e^ε + … + e^((k−1)·ε))."
    if bound is None or not report.claim.has_odds:
        return text
    epsilon, delta = of_group(2, bound.epsilon, bound.delta)
    return f"{text} For two records: ε = {rounded(epsilon, 4)}, δ = {rounded(delta, 3)}."
