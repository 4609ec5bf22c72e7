"""Plan by hand: a page on this machine with sliders, curves and the plan to take away."""

import argparse
import contextlib
import signal
import sys
import webbrowser
from collections.abc import Iterator

from dither.cli.options import number

NAME = "explore"
HELP = "plan by hand in the browser, on this machine only"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--port", type=number, default=0, help="where to listen on 127.0.0.1; 0 is any that is free"
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def run(arguments: argparse.Namespace) -> None:
    """Serve until Ctrl-C."""
    from dither.explorer import Explorer

    with _ended_like_ctrl_c():
        explorer = Explorer(arguments.port)
        try:
            sys.stdout.write(f"{explorer.address}\nCtrl-C ends it.\n")
            sys.stdout.flush()
            if not arguments.no_browser:
                webbrowser.open(explorer.address)
            explorer.serve()
        finally:
            explorer.close()


@contextlib.contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """Let a closed terminal and a plain kill end what runs here as Ctrl-C does.

    A signal that is ignored already, as nohup does it, stays ignored.
    """
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
