"""Write what is known of a run on one page: what it claims in plain words, how, and how good."""

import argparse
import sys
from pathlib import Path

NAME = "report"
HELP = "one page on a run: its privacy in plain words, noise, accuracy, audit, ledger"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder and where to write."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="the folder of dither train --run-dir")
    parser.add_argument(
        "-o",
        "--output",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="ends in .html, in .json, or in .md, which has tables in place of the pictures; else "
        "report.html in RUN_DIR",
    )


def run(arguments: argparse.Namespace) -> None:
    """Gather, write, and say where it is."""
    from dither.reports import run_report, write_report
    from dither.reports.run.rendering import checked_target

    folder = Path(arguments.run_dir)
    target = Path(getattr(arguments, "output", folder / "report.html"))
    if hasattr(arguments, "output"):
        checked_target(target)
    found = run_report(folder)
    write_report(found, target)
    for alarm in found.alarms:
        sys.stderr.write(f"dither report: warning: {alarm}\n")
    alarms = len(found.alarms)
    told = "" if not alarms else f", with {alarms} warning{'s' if alarms > 1 else ''}"
    sys.stdout.write(f"The report is in {target}{told}.\n")
