"""Draft the public schema of a table, or check that a schema fits it before anything is spent."""

import argparse
import shlex
import sys
from dataclasses import asdict

from dither import validate
from dither.cli.options import print_json

NAME = "schema"
HELP = "draft the public schema of a table, to be filled in and confirmed, or check one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the table, its target and the draft."""
    parser.add_argument("table", metavar="TABLE", help="a .csv, .csv.gz or .parquet file")
    parser.add_argument(
        "--target",
        default=argparse.SUPPRESS,
        metavar="COLUMN",
        help="the column to predict; default: the one called label or target, else the last",
    )
    parser.add_argument(
        "-o", "--output", dest="draft", default="schema.toml", metavar="FILE",
        help="where the draft goes: a new .toml file",
    )  # fmt: skip
    parser.add_argument(
        "--fill",
        action="store_true",
        help="read bounds and values off the table; confirm that each of them is public",
    )
    parser.add_argument(
        "--check",
        default=argparse.SUPPRESS,
        metavar="SCHEMA",
        help="print which share of the cells this schema does not understand, and draft nothing; "
        "the figures are private",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the next steps")


def run(arguments: argparse.Namespace) -> None:
    """Write the draft, and print what comes next; or check a schema."""
    if hasattr(arguments, "check"):
        _check(arguments)
        return
    file = validate.output_file((".toml",), output=arguments.draft)
    if file.exists():
        raise validate.InvalidValueError(f"output must be a new file, but {str(file)!r} exists")
    from dither.schema import draft

    made = draft(arguments.table, target=getattr(arguments, "target", None), fill=arguments.fill)
    with file.open("x", encoding="utf-8") as stream:
        stream.write(made.to_toml())
    if arguments.json:
        print_json({"draft": str(file), "to_fill": made.to_fill, "schema": made.fields})
        return
    left = len(made.to_fill)
    what = f'fill in the {left} lines with "?"' if left else "check the lines that were read off"
    train = shlex.join(["dither", "train", "--data", arguments.table, "--schema", str(file)])
    check = shlex.join(["dither", "schema", arguments.table, "--check", str(file)])
    sys.stdout.write(
        f"{str(file)!r} is a draft: {what} from public knowledge, confirm the rest, and set "
        "confirmed = true.\n"
        f"Then: {check}\n"
        f"      {train}\n"
    )


def _check(arguments: argparse.Namespace) -> None:
    from dither.schema import Schema

    found = Schema.load(arguments.check).check(arguments.table)
    if arguments.json:
        print_json({**asdict(found), "marked": found.marked, "is_private": True})
    else:
        sys.stdout.write(f"{found}\n")
