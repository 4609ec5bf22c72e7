"""Schemas as dicts and files: strict, with one line that names the column and the key."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from dither.schema.columns import KINDS, Column
from dither.schema.target import Target
from dither.validate import InvalidTypeError, InvalidValueError, choice

Parsed = TypeVar("Parsed")

PLACEHOLDER = "?"
FILES = (".toml", ".json")


@contextmanager
def named(place: str) -> Iterator[None]:
    """Begin the message of an error inside the ``with`` with the place."""
    try:
        yield
    except (InvalidValueError, InvalidTypeError) as problem:
        raise type(problem)(f"{place}: {problem}") from None


def parse_file(path: Path) -> dict[str, Any]:
    """Return what a .toml or .json file holds."""
    if path.suffix.lower() not in FILES:
        raise InvalidValueError(f"schema must be a file of {', '.join(FILES)}, got {str(path)!r}")
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".toml":
            return tomllib.loads(text)
        return _mapping(json.loads(text, object_pairs_hook=_once), "schema")
    except OSError:
        raise InvalidValueError(
            f"schema must be a file that exists and can be read, got {str(path)!r}"
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, json.JSONDecodeError) as problem:
        kind = path.suffix[1:].upper()
        raise InvalidValueError(
            f"schema {str(path)!r} must be {kind}: {' '.join(str(problem).split())}"
        ) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InvalidValueError(f"schema must have every key once, got {twice!r} twice")
    return found


def parse_dict(
    given: Mapping[str, Any],
) -> tuple[dict[str, Column], Target | None, str | None]:
    """Return the columns, the target and the column of users of a schema.

    Raises:
        InvalidValueError: if a value is not allowed, or the schema is an unconfirmed draft.
        InvalidTypeError: if a value has a type that is not allowed.
    """
    _check_keys(_mapping(given, "schema"), ("confirmed", "users", "target", "columns"), "schema")
    columns = {
        name: _mapping(each, f"column {name!r}")
        for name, each in _mapping(given.get("columns", {}), "columns").items()
    }
    target = None if given.get("target") is None else _mapping(given["target"], "target")
    to_fill = placeholders(target or {}, columns)
    if to_fill:
        raise InvalidValueError(
            f'schema must be filled in from public knowledge where it has "{PLACEHOLDER}": '
            + ", ".join(to_fill)
        )
    confirmed = given.get("confirmed", True)
    if confirmed is not True:
        raise InvalidValueError(
            "schema: confirmed must be true, got "
            f"{confirmed!r}; confirm that everything in it is public knowledge, then set it to true"
        )
    return (
        {name: _column(each, f"column {name!r}") for name, each in columns.items()},
        None if target is None else _make(Target, target, "target"),
        given.get("users"),
    )


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidTypeError(f"{what} must be a table of keys and values, got {value!r}")
    return dict(value)


def _check_keys(given: Mapping[str, Any], allowed: tuple[str, ...], place: str) -> None:
    for key in given:
        if key not in allowed:
            raise InvalidValueError(
                f"{place}: key must be one of {', '.join(allowed)}, got {key!r}"
            )


def placeholders(target: Mapping[str, Any], columns: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what is still to be filled in, as an error names it."""
    tables = {"target": target, **{f"column {name!r}": each for name, each in columns.items()}}
    return [
        f"{key} of {place}"
        for place, table in tables.items()
        for key, value in table.items()
        if _is_placeholder(key, value)
    ]


def _is_placeholder(key: str, value: Any) -> bool:
    """Return whether a value is not filled in; among several values "?" may be one of them."""
    if not isinstance(value, list | tuple):
        return bool(value == PLACEHOLDER)
    is_of_numbers = key in ("bounds", "knots", "shares")
    return PLACEHOLDER in value and (is_of_numbers or len(value) == 1)


def _column(given: Any, place: str) -> Column:
    options = dict(given)
    with named(place):
        kind = KINDS[choice(KINDS, kind=options.pop("kind", None))]
    return _make(kind, options, place)


def _make(kind: type[Parsed], given: Mapping[str, Any], place: str) -> Parsed:
    """Return a value of a dataclass, whose fields are the keys."""
    known = fields(kind)  # type: ignore[arg-type]
    _check_keys(given, tuple(each.name for each in known), place)
    for each in known:
        if each.default is MISSING and each.name not in given:
            raise InvalidValueError(f"{place}: {each.name} must be given")
    with named(place):
        return kind(**given)


def as_dict(value: Any) -> dict[str, Any]:
    """Return the fields of a value of a dataclass that are not as by default, as JSON has them."""
    found = {}
    for each in fields(value):
        item = getattr(value, each.name)
        if each.default is MISSING or item != each.default:
            found[each.name] = [*item] if isinstance(item, tuple) else item
    return found
