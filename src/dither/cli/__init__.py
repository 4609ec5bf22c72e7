"""The ``dither`` command: parse, call, print."""

import argparse
import io
import os
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from dither import __version__, validate
from dither.accounting.filter import BudgetExceededError
from dither.cli import (
    account,
    audit,
    completion,
    doctor,
    explore,
    ledger,
    plan,
    report,
    reproduce,
    theory,
    train,
)

_COMMANDS = (
    train,
    report,
    plan,
    explore,
    account,
    audit,
    ledger,
    theory,
    reproduce,
    doctor,
    completion,
)


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())} (see {self.prog} --help)\n")


def _warn(program: str, message: Warning | str, *_: object) -> None:
    """Show a warning as one line, without the code that gave it."""
    sys.stderr.write(f"{program}: warning: {message}\n")


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
        command.set_defaults(run=module.run, parser=command, root=parser)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    arguments, unknown = parser.parse_known_args(argv)
    command = arguments.parser
    if unknown:
        command.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = partial(_warn, command.prog)
            outcome: int | None = arguments.run(arguments)
        sys.stdout.flush()
    except (
        validate.InvalidValueError,
        validate.InvalidTypeError,
        BudgetExceededError,
    ) as problem:
        command.error(str(problem))
    except BrokenPipeError:
        # The reader has gone; what Python flushes at its exit must go somewhere quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as problem:
        sys.stderr.write(f"{command.prog}: {problem}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"{command.prog}: stopped\n")
        return 130
    return outcome or 0
