"""Write a report of a run: its claim, what it does not cover, quality, and an appendix."""

import argparse
import sys
from pathlib import Path

NAME = "report"
HELP = "write a report of a run: its claim, what it does not cover, how good the model is"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run directory and the output file."""
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", help="the run directory of dither train --run-dir"
    )
    parser.add_argument(
        "-o",
        "--output",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="a .html or .json file; default: report.html in RUN_DIR",
    )


def run(arguments: argparse.Namespace) -> None:
    """Read the run, write the report, print where it is."""
    from dither.reports import run_report, write_report

    directory = Path(arguments.run_dir)
    target = Path(getattr(arguments, "output", directory / "report.html"))
    report = run_report(directory)
    write_report(report, target)
    for warning in report.warnings:
        sys.stderr.write(f"dither report: warning: {warning}\n")
    count = len(report.warnings)
    warnings = "" if not count else f", with {count} warning{'s' if count > 1 else ''}"
    sys.stdout.write(f"The report is in {target}{warnings}.\n")
