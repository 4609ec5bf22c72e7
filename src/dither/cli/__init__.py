"""The ``dither`` command: parse, check, run, print.

Commands import torch, SciPy and rich only when they run, so that help and errors are immediate.
"""

import argparse
import io
import os
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

from dither import __version__, validate
from dither.cli import (
    account,
    audit,
    demo,
    doctor,
    explore,
    ledger,
    plan,
    predict,
    report,
    schema,
    theory,
    train,
)
from dither.cli.options import check_options

_COMMANDS = (
    demo,
    schema,
    train,
    predict,
    report,
    plan,
    explore,
    account,
    audit,
    ledger,
    theory,
    doctor,
)

_FILES = {
    "check",
    "data",
    "draft",
    "ledger",
    "output",
    "path",
    "plan",
    "plot",
    "public_test",
    "save",
    "schema",
    "scores",
    "table",
}
_DIRECTORIES = {"data_dir", "run_dir"}


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        if self.prog.endswith(f" {ledger.NAME}") and "invalid choice" in message:
            message += f"; to show a ledger: {self.prog} show FILE"
        self.exit(2, f"{self.prog}: {' '.join(message.split())} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; bad input is one line on stderr and exit code 2."""
    parser = _build_parser()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    arguments, unknown = parser.parse_known_args(argv)
    command = arguments.parser
    if unknown:
        command.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = partial(_show_warning, command.prog)
            check_options(arguments)
            code: int | None = arguments.run(arguments)
        sys.stdout.flush()
    except (validate.InvalidValueError, validate.InvalidTypeError) as problem:
        command.error(str(problem))
    except RuntimeError as problem:
        from dither.accounting.filter import BudgetExceededError

        if not isinstance(problem, BudgetExceededError):
            raise
        command.error(str(problem))
    except BrokenPipeError:
        # The reader has gone. What Python flushes at exit must go somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as problem:
        sys.stderr.write(f"{command.prog}: {problem}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"{command.prog}: stopped\n")
        return 130
    return code or 0


def _build_parser() -> _Parser:
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
    completion = commands.add_parser(
        "completion",
        help="print a completion script for a shell",
        allow_abbrev=False,
        description="Print a script that completes commands, options and values in a shell.",
    )
    completion.add_argument(
        "shell",
        choices=("bash", "zsh", "fish", "tcsh"),
        help='for example, in ~/.bashrc: eval "$(dither completion bash)"',
    )
    completion.set_defaults(run=_print_completion, parser=completion, root=parser)
    return parser


def _show_warning(program: str, message: Warning | str, *_: object) -> None:
    """Show a warning as one line, without its source code."""
    sys.stderr.write(f"{program}: warning: {message}\n")


def _print_completion(arguments: argparse.Namespace) -> None:
    import shtab

    kinds = dict.fromkeys(_FILES, shtab.FILE) | dict.fromkeys(_DIRECTORIES, shtab.DIRECTORY)
    _mark_paths(arguments.root, kinds)
    sys.stdout.write(shtab.complete(arguments.root, shell=arguments.shell) + "\n")


def _mark_paths(parser: argparse.ArgumentParser, kinds: dict[str, Any]) -> None:
    """Mark the options that are files or directories, by the attribute that shtab reads."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _mark_paths(command, kinds)
        elif action.dest in kinds:
            action.complete = kinds[action.dest]  # type: ignore[attr-defined]
