"""Writes TOML, which the standard library only reads."""

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml(value: Any) -> str:
    """Return a text, number, truth value, or a list of them.

    Example:
        >>> toml(["a", 1.5, True])
        '["a", 1.5, true]'
    """
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    # As in JSON, but for one control character that TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(name: str) -> str:
    """Return a name as a key, in quotes where these are needed.

    Example:
        >>> toml_key("age"), toml_key("blood pressure")
        ('age', '"blood pressure"')
    """
    return name if _BARE.fullmatch(name) else toml(name)


def toml_table(
    name: str, fields: Mapping[str, Any], comments: Mapping[str, str] | None = None
) -> str:
    """Return a table with its header, with a comment behind the keys that have one.

    Example:
        >>> print(toml_table("target", {"column": "ill"}, {"column": "public"}), end="")
        [target]
        column = "ill"  # public
    """
    notes = comments or {}
    lines = [f"[{name}]"]
    for key, value in fields.items():
        note = f"  # {notes[key]}" if key in notes else ""
        lines.append(f"{toml_key(key)} = {toml(value)}{note}")
    return "\n".join(lines) + "\n"
