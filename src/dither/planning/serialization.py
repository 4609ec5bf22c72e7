"""Plans and their numbers as JSON: exact, with a fingerprint that shows damage."""

import hashlib
import json
import math
from typing import Any

from dither import validate


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
