"""Plans and their numbers as JSON, exact and with a fingerprint that shows damage, and as text."""

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

from dither import validate

if TYPE_CHECKING:
    from dither.planning.fixed_plan import Plan
    from dither.planning.reactive_plan import ReactivePlan


def fingerprint_of(fields: dict[str, Any]) -> str:
    """Return the hash of the fields, the same on every machine."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def parse_json(text: str) -> Any:
    """Return what JSON text holds; constants such as NaN are refused."""

    def refuse(constant: str) -> None:
        raise validate.InvalidValueError(f"plan must have finite numbers, got {constant}")

    try:
        return json.loads(validate.instance(str, text=text), parse_constant=refuse)
    except json.JSONDecodeError as problem:
        raise validate.InvalidValueError(f"plan must be JSON, got {problem}") from None


def to_json_value(value: object) -> object:
    """Return a value as JSON can hold it: infinity becomes a word."""
    return "infinity" if value == math.inf else value


def from_json_value(value: Any) -> Any:
    """Return the value that `to_json_value` was given."""
    return math.inf if value == "infinity" else value


def sizes_text(plan: "Plan | ReactivePlan") -> str:
    """Return how a plan samples and clips."""
    users = " users" if plan.unit == "user" else ""
    clipping = "" if plan.clipping == "flat" else f", {plan.clipping} clipping"
    return (
        f"{plan.sampling} sampling of m = {plan.batch_size:,} out of n = {plan.dataset_size:,}"
        f"{users} (q = {plan.sample_rate:.6g}), clip norm {plan.clip_norm:g}{clipping}"
    )
