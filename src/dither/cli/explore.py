"""Plan interactively: a local page with sliders, curves and a plan to save."""

import argparse
import sys
import webbrowser

from dither.cli.options import number

NAME = "explore"
HELP = "plan interactively in the browser, on this machine only"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--port", type=number, default=0, help="port on 127.0.0.1; 0 is any free one"
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def run(arguments: argparse.Namespace) -> None:
    """Serve until Ctrl-C."""
    from dither.explorer import Explorer

    explorer = Explorer(arguments.port)
    try:
        sys.stdout.write(f"{explorer.address}\nPress Ctrl-C to stop.\n")
        sys.stdout.flush()
        if not arguments.no_browser:
            webbrowser.open(explorer.address)
        explorer.serve()
    finally:
        explorer.close()
