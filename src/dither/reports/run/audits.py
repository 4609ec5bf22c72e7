"""What audits have found of a run: each looked at by itself, and by its numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import ROUND_FLOOR
from typing import Any

from dither.reports.run.plain_files import BAD
from dither.reports.run.report import Claim
from dither.types import rounded
from dither.validate import LARGEST

_CURVES = ("false_positives", "true_positives", "allowed")
_TEXTS = ("time", "attack", "steps", "verdict")
_COUNTS = ("trials", "guesses", "right")


def audit_of(found: Any) -> dict[str, Any] | None:
    """Return an audit with the fields that are shown; None if they are not what they should be."""
    try:
        return _checked(found)
    except BAD:
        return None


def judged(audits: Sequence[Mapping[str, Any]], claim: Claim) -> tuple[dict[str, Any], ...]:
    """Return audits, those marked as refuting that prove more than they or the report allow."""
    return tuple(_judged(each, claim) for each in audits)


def after_audits(
    claim: Claim, audits: Sequence[Mapping[str, Any]], alarms: list[str], *, is_whole: bool
) -> Claim:
    """Return the claim, or that it is refuted if an audit says so.

    An audit that cannot be read may be one that refutes: with such a one nothing is confirmed.

    Args:
        claim: without audits.
        audits: as `judged` returns them.
        alarms: what is found is added to these.
        is_whole: whether every audit could be read.
    """
    violated = [each for each in audits if each["is_violated"]]
    if violated:
        alarms.insert(0, f"An audit has refuted the claim of this run. {violated[-1]['verdict']}")
    if claim.verdict in ("nothing", "not confirmed"):
        return claim
    if violated:
        return replace(claim, verdict="refuted")
    return claim if is_whole else Claim("not confirmed", None, claim.recorded, claim.counted)


def _judged(audit: Mapping[str, Any], claim: Claim) -> dict[str, Any]:
    bound, lower, claimed = claim.bound, audit["lower"], audit["claimed"]
    above = claimed is not None and lower > claimed
    # What holds at a larger δ holds at a smaller one.
    if bound is not None and audit["delta"] >= bound.delta:
        above = above or lower > bound.epsilon
    if audit["is_violated"] or not (above or audit["breach"]):
        return {**audit}
    found = "the curve that the claim allows is passed"
    if above:
        found = f"ε is at least {rounded(lower, 3, ROUND_FLOOR)}, above the claim"
    return {
        **audit,
        "is_violated": True,
        "verdict": f"VIOLATED by the audit's own numbers, whatever it says: {found}.",
    }


def _checked(found: dict[str, Any]) -> dict[str, Any]:
    claimed, delta = found["claimed"]["epsilon"], found["claimed"]["delta"]
    if type(found["is_violated"]) is not bool:
        raise TypeError
    return {
        **{name: _text(found[name]) for name in _TEXTS},
        "claimed": None if claimed is None else _number(claimed),
        "delta": _number(delta, most=1.0),
        "lower": _number(found["lower"]),
        "confidence": _number(found["confidence"], most=1.0),
        **{name: int(_number(found[name])) for name in _COUNTS},
        "is_violated": found["is_violated"],
        "breach": found.get("breach") is not None,
        "curves": _curves(found["curves"]),
    }


def _curves(found: dict[str, Any]) -> dict[str, list[float] | None]:
    """Return the curves that are drawn, all of the same length; None for those that are missing."""
    kept = {
        name: None if found[name] is None else [_number(each, most=1.0) for each in found[name]]
        for name in _CURVES
    }
    lengths = {len(each) for each in kept.values() if each is not None}
    if len(lengths) > 1 or (kept["false_positives"] is None) != (kept["true_positives"] is None):
        raise ValueError
    return kept


def _number(value: Any, most: float = LARGEST) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= most:
        raise ValueError
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
