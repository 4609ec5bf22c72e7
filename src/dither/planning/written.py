"""Plans as text: exact numbers, a fingerprint, and no claim that is not counted again."""

import hashlib
import json
import math
from dataclasses import asdict, replace
from typing import Any

from dither import validate
from dither.types import PrivacyBound


def hashed(fields: dict[str, Any]) -> str:
    """Return the fingerprint of the fields, the same on every machine."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def parsed(text: str) -> Any:
    """Return what JSON text says, without numbers that are none."""

    def refuse(constant: str) -> None:
        raise validate.InvalidValueError(f"plan must have finite numbers, got {constant}")

    try:
        return json.loads(validate.instance(str, text=text), parse_constant=refuse)
    except json.JSONDecodeError as problem:
        raise validate.InvalidValueError(f"plan must be JSON, got {problem}") from None


def checked_claim(found: PrivacyBound, claimed: dict[str, Any]) -> PrivacyBound:
    """Return the bound as it was claimed, if it says nothing that our own count does not."""
    for name, value in asdict(found).items():
        said = claimed[name]
        if name in ("epsilon", "lower"):
            continue
        if type(said) is not type(value) or said != value:
            raise validate.InvalidValueError(
                f"plan must claim only what was counted: bound.{name} is {value!r}, got {said!r}"
            )
    epsilon, lower = read(claimed["epsilon"]), claimed["lower"]
    # Another machine may round differently.
    enough = type(epsilon) is float and epsilon >= found.epsilon * (1.0 - 1e-6)
    if not enough or math.isinf(epsilon) != math.isinf(found.epsilon):
        raise validate.InvalidValueError(
            f"plan must not claim less than it costs, got ε = {epsilon!r} for noise that costs "
            f"{found.epsilon:.6g}"
        )
    in_order = type(lower) is float and 0.0 <= lower <= min(found.epsilon, epsilon)
    if not (lower is None if found.lower is None else in_order):
        raise validate.InvalidValueError(
            f"plan must claim only what was counted: bound.lower is {found.lower!r}, got {lower!r}"
        )
    return replace(found, epsilon=epsilon, lower=lower)


def written(value: object) -> object:
    """Return a number as JSON can hold it."""
    return "infinity" if value == math.inf else value


def read(value: Any) -> Any:
    """Return what `written` has written."""
    return math.inf if value == "infinity" else value
