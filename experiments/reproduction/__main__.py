"""Run the paper's experiments: a name, "all", "list", or "report"."""

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import experiments
from dither.validate import InvalidValueError, count
from experiments.reproduction import commands
from experiments.reproduction.catalogue import EXPERIMENTS
from experiments.reproduction.experiment import PROFILES


def main(argv: Sequence[str] | None = None) -> int:
    """List, run or report; return the exit code."""
    parser = _build_parser()
    arguments = parser.parse_args(argv)
    try:
        text = _run(arguments)
    except InvalidValueError as problem:
        parser.error(str(problem))
    except (BrokenProcessPool, KeyboardInterrupt):
        sys.stderr.write("stopped; finished runs are saved, continue with --resume\n")
        return 1
    sys.stdout.write(text + "\n")
    return 0


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m experiments.reproduction", description=__doc__)
    names = ["list", "report", "all", *EXPERIMENTS]
    parser.add_argument("what", metavar="NAME", choices=names, help=", ".join(names))
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        default="small",
        help='"smoke" ends in two minutes, "small" in an evening, "full" is the paper\'s grid',
    )
    parser.add_argument("--seeds", type=int, help="how many, 0 … N−1 (default: the profile's)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once")
    parser.add_argument(
        "--resume", action="store_true", help="continue with the runs in the directory"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="directory of runs and report (default: experiments/records/PROFILE)",
    )
    parser.add_argument(
        "--data-dir", help="directory of the standard sets (default: $DITHER_DATA, else ./data)"
    )
    parser.add_argument(
        "--paper",
        type=Path,
        default=os.environ.get("DITHER_PAPER") or None,
        help="directory with the paper's tables as CSV (default: $DITHER_PAPER, if set)",
    )
    return parser


def _run(arguments: argparse.Namespace) -> str:
    profile = PROFILES[arguments.profile]
    seeds = range(profile.seeds if arguments.seeds is None else count(seeds=arguments.seeds))
    records = Path(experiments.__file__).parent / "records"
    directory = arguments.out or records / profile.name
    if arguments.what == "list":
        return commands.list_experiments(profile, seeds)
    if arguments.what == "report":
        return commands.report_runs(directory, profile, seeds, arguments.paper)
    if arguments.data_dir is not None:
        os.environ["DITHER_DATA"] = arguments.data_dir  # the processes that train read it there
    return commands.run_experiments(
        list(EXPERIMENTS) if arguments.what == "all" else [arguments.what],
        profile,
        seeds,
        directory=directory,
        jobs=count(jobs=arguments.jobs),
        resume=arguments.resume,
        paper=arguments.paper,
    )


if __name__ == "__main__":
    sys.exit(main())
