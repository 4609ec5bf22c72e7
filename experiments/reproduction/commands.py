"""The commands of ``python -m experiments.reproduction``: list, run, report."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.recording import origin

from dither.validate import InvalidValueError
from experiments.reproduction.catalogue import EXPERIMENTS, KINDS
from experiments.reproduction.experiment import Profile
from experiments.reproduction.paper import read_paper
from experiments.reproduction.report import write_report
from experiments.reproduction.run import Known, Run
from experiments.reproduction.runner import Runner
from experiments.reproduction.store import Store

_COMMAND = "python -m experiments.reproduction"


def list_experiments(profile: Profile, seeds: Sequence[int]) -> str:
    """Return one line per experiment: name, number of runs before any choice, title."""
    counts = {name: len(_runs([name], profile, seeds, {})) for name in EXPERIMENTS}
    lines = [f"{n:26} {counts[n]:5} runs  {e.title}" for n, e in EXPERIMENTS.items()]
    return "\n".join(lines)


def report_runs(
    directory: Path, profile: Profile, seeds: Sequence[int], paper: str | Path | None
) -> str:
    """Write the report; return its path."""
    if not Store(directory, KINDS).lines():
        raise InvalidValueError(
            f"out must be a directory with finished runs, got {str(directory)!r}: there are none"
        )
    numbers = None if paper is None else read_paper(Path(paper))
    return str(write_report(directory, profile, seeds, numbers))


def run_experiments(
    names: Sequence[str],
    profile: Profile,
    seeds: Sequence[int],
    *,
    directory: Path,
    jobs: int,
    resume: bool,
    paper: str | Path | None,
) -> str:
    """Run what is missing; return the tables."""
    numbers = None if paper is None else read_paper(Path(paper))
    store = Store(directory, KINDS)
    if not resume and (found := len(store.lines())):
        raise InvalidValueError(
            f"out must be a directory without runs unless --resume is given, got "
            f"{str(directory)!r} with {found:,} finished runs"
        )
    what = "all" if list(names) == list(EXPERIMENTS) else " ".join(names)
    options = f"--profile {profile.name} --seeds {len(seeds)}"
    made = origin(f"{_COMMAND} {what} {options}", ("torch", "numpy", "kymatio"))
    known = Runner(store, jobs, made).complete(
        lambda known: _runs(names, profile, seeds, known), "training"
    )
    sections = [
        f"{EXPERIMENTS[name].title}\n\n"
        + EXPERIMENTS[name].section(profile, seeds, known, numbers).text
        for name in names
    ]
    report = f"{_COMMAND} report {options} --out {directory}"
    return "\n\n".join([*sections, f"The pictures are drawn by: {report}"])


def _runs(names: Sequence[str], profile: Profile, seeds: Sequence[int], known: Known) -> list[Run]:
    """Return the runs that these experiments need, each once."""
    wanted = [run for name in names for run in EXPERIMENTS[name].runs(profile, seeds, known)]
    return list(dict.fromkeys(wanted))
