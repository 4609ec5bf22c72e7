"""Completion of commands, options and values for a shell."""

import argparse
import sys
from typing import Any

NAME = "completion"
HELP = "print what makes a shell complete dither's commands and options"

_FILES = {"data", "ledger", "output", "path", "plan", "plot", "public_test", "save"}
_FOLDERS = {"data_dir", "out", "paper", "run_dir"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the shell."""
    parser.add_argument(
        "shell",
        choices=("bash", "zsh", "fish", "tcsh"),
        help='for example: eval "$(dither completion bash)", in ~/.bashrc',
    )


def run(arguments: argparse.Namespace) -> None:
    """Print the script; files and folders are completed where they are asked for."""
    import shtab

    files, folders = dict.fromkeys(_FILES, shtab.FILE), dict.fromkeys(_FOLDERS, shtab.DIRECTORY)
    _mark(arguments.root, files | folders)
    sys.stdout.write(shtab.complete(arguments.root, shell=arguments.shell) + "\n")


def _mark(parser: argparse.ArgumentParser, places: dict[str, Any]) -> None:
    """Say which values are files and folders: shtab reads that off an attribute."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _mark(command, places)
        elif action.dest in places:
            action.complete = places[action.dest]  # type: ignore[attr-defined]
