"""The ``dither`` command: parse, call, print."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from dither import __version__, validate
from dither.cli import theory

_COMMANDS = (theory,)


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; bad input is one line on stderr and exit code 2."""
    parser = _Parser(
        prog="dither", allow_abbrev=False, description="Differentially private training."
    )
    parser.add_argument("--version", action="version", version=f"dither {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in _COMMANDS:
        command = commands.add_parser(
            module.NAME,
            help=module.HELP,
            allow_abbrev=False,
            description=module.__doc__,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run, parser=command)
    arguments = parser.parse_args(argv)
    try:
        arguments.run(arguments)
    except (validate.InvalidValueError, validate.InvalidTypeError) as problem:
        arguments.parser.error(str(problem))
    except OSError as problem:
        sys.stderr.write(f"{arguments.parser.prog}: {problem}\n")
        return 1
    return 0
