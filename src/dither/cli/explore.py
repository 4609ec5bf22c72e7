"""Plan interactively: a local page with sliders, curves and a plan to save."""

import argparse
import contextlib
import signal
import sys
import webbrowser
from collections.abc import Iterator

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

    with _stop_on_signals():
        explorer = Explorer(arguments.port)
        try:
            sys.stdout.write(f"{explorer.address}\nPress Ctrl-C to stop.\n")
            sys.stdout.flush()
            if not arguments.no_browser:
                webbrowser.open(explorer.address)
            explorer.serve()
        finally:
            explorer.close()


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP act like Ctrl-C; a signal that is ignored (nohup) stays ignored."""
    ends = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {end: signal.getsignal(end) for end in ends}
    for end in ends:
        if before[end] is not signal.SIG_IGN:
            signal.signal(end, signal.default_int_handler)
    try:
        yield
    finally:
        for end, handler in before.items():
            signal.signal(end, handler)
