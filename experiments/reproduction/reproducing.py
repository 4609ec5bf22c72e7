"""What ``dither reproduce`` does: list, run, report."""

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


def listed(profile: Profile, seeds: Sequence[int]) -> str:
    """Return a line for each experiment: its name, its runs before any choice, its title."""
    counts = {name: len(_runs([name], profile, seeds, {})) for name in EXPERIMENTS}
    lines = [f"{n:26} {counts[n]:5} runs  {e.title}" for n, e in EXPERIMENTS.items()]
    return "\n".join(lines)


def report(folder: Path, profile: Profile, seeds: Sequence[int], paper: str | Path | None) -> str:
    """Write the report; return where."""
    if not Store(folder, KINDS).lines():
        raise InvalidValueError(
            f"out must be a folder with finished runs, got {str(folder)!r}: there are none"
        )
    numbers = None if paper is None else read_paper(Path(paper))
    return str(write_report(folder, profile, seeds, numbers))


def reproduced(
    names: Sequence[str],
    profile: Profile,
    seeds: Sequence[int],
    *,
    folder: Path,
    jobs: int,
    resume: bool,
    paper: str | Path | None,
) -> str:
    """Do the runs that are missing; return the tables."""
    numbers = None if paper is None else read_paper(Path(paper))
    store = Store(folder, KINDS)
    if not resume and (found := len(store.lines())):
        raise InvalidValueError(
            f"out must be a folder without runs unless --resume is given, got {str(folder)!r} with "
            f"{found:,} finished runs"
        )
    what = "all" if list(names) == list(EXPERIMENTS) else " ".join(names)
    command = f"dither reproduce {what} --profile {profile.name} --seeds {len(seeds)}"
    made = origin(command, ("torch", "numpy", "kymatio"))
    known = Runner(store, jobs, made).complete(
        lambda known: _runs(names, profile, seeds, known), "training"
    )
    sections = [
        f"{EXPERIMENTS[name].title}\n\n"
        + EXPERIMENTS[name].section(profile, seeds, known, numbers).text
        for name in names
    ]
    report = f"dither reproduce report --profile {profile.name} --seeds {len(seeds)} --out {folder}"
    return "\n\n".join([*sections, f"The pictures are drawn by: {report}"])


def _runs(names: Sequence[str], profile: Profile, seeds: Sequence[int], known: Known) -> list[Run]:
    """Return the runs that these experiments need, each once."""
    wanted = [run for name in names for run in EXPERIMENTS[name].runs(profile, seeds, known)]
    return list(dict.fromkeys(wanted))
