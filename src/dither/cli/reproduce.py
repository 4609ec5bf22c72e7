"""Run the paper's experiments: a name, "all", "list", or "report"."""

import argparse
import importlib.util
import os
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import dither
from dither import validate

NAME = "reproduce"
HELP = "run the paper's experiments, resume them, and write a report"

_ROOT = Path(dither.__file__).parents[2]
_PAPER_VARIABLE = "DITHER_PAPER"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("what", metavar="NAME", help='"list", "report", "all", or an experiment')
    parser.add_argument(
        "--profile",
        default="small",
        help='"smoke" ends in two minutes, "small" in an evening, "full" is the paper\'s grid',
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=argparse.SUPPRESS,
        help="how many, 0 … N−1 (default: the profile's)",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once")
    parser.add_argument(
        "--resume", action="store_true", help="continue with the runs in the directory"
    )
    parser.add_argument(
        "--out", type=Path, default=argparse.SUPPRESS,
        help="directory of runs and report (default: the repository's experiments/records/PROFILE)",
    )  # fmt: skip
    parser.add_argument(
        "--data-dir",
        default=argparse.SUPPRESS,
        help="directory of the standard sets; default: $DITHER_DATA, else ./data",
    )
    parser.add_argument(
        "--paper",
        type=Path,
        default=argparse.SUPPRESS,
        help=f"directory with the paper's tables as CSV (default: ${_PAPER_VARIABLE}, if set)",
    )


def run(arguments: argparse.Namespace) -> int:
    """List, run or report."""
    _find_experiments()
    from experiments.reproduction import commands
    from experiments.reproduction.catalogue import EXPERIMENTS
    from experiments.reproduction.experiment import PROFILES

    what = validate.choice(["all", "list", "report", *EXPERIMENTS], name=arguments.what)
    profile = PROFILES[validate.choice(PROFILES, profile=arguments.profile)]
    seeds = range(validate.count(seeds=getattr(arguments, "seeds", profile.seeds)))
    directory = getattr(arguments, "out", _ROOT / "experiments" / "records" / profile.name)
    if what == "list":
        sys.stdout.write(commands.list_experiments(profile, seeds) + "\n")
        return 0
    paper = getattr(arguments, "paper", os.environ.get(_PAPER_VARIABLE) or None)
    if what == "report":
        sys.stdout.write(commands.report_runs(directory, profile, seeds, paper) + "\n")
        return 0
    if hasattr(arguments, "data_dir"):
        os.environ["DITHER_DATA"] = arguments.data_dir  # the processes that train read it there
    names = list(EXPERIMENTS) if what == "all" else [what]
    jobs = validate.count(jobs=arguments.jobs)
    try:
        text = commands.run_experiments(
            names,
            profile,
            seeds,
            directory=directory,
            jobs=jobs,
            resume=arguments.resume,
            paper=paper,
        )
    except BrokenProcessPool:
        sys.stderr.write(
            "dither reproduce: a training process was killed, perhaps for lack of memory; finished "
            "runs are saved, continue with --resume\n"
        )
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("dither reproduce: finished runs are saved, continue with --resume\n")
        raise
    sys.stdout.write(text + "\n")
    return 0


def _find_experiments() -> None:
    """Make the experiments importable; they are in the repository, not in the package."""
    if not (_ROOT / "experiments" / "reproduction").is_dir():
        raise validate.InvalidValueError(
            "reproduce needs the repository's experiments/, which an installed package does not "
            f"have; looked in {str(_ROOT)!r}"
        )
    if importlib.util.find_spec("kymatio") is None:
        raise validate.InvalidValueError(
            "reproduce needs kymatio, which is not installed; in the repository, run "
            "pip install -c constraints.txt '.[reproduce]'"
        )
    if str(_ROOT) not in sys.path:
        sys.path.insert(0, str(_ROOT))
