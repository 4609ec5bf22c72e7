"""All that is known of a profile as one markdown page with pictures."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track

from dither.reports import save_figure
from dither.validate import InvalidValueError
from experiments.reproduction.catalogue import EXPERIMENTS, KINDS
from experiments.reproduction.experiment import Profile
from experiments.reproduction.paper import Paper
from experiments.reproduction.store import Store

_NOTE = (
    "CIFAR-10 (JPEG) is re-encoded as JPEG, about 900 bytes per image, which costs some accuracy; "
    "a linear head on data-independent scattering features, randomly projected, stands where the "
    "paper has convolutions pre-trained on CIFAR-100. So levels differ from the paper's, and gaps "
    "are what is compared. Accuracies are in percent: mean ± standard deviation over seeds; gaps "
    "are paired by seed: mean ± standard error."
)


def write_report(
    directory: Path, profile: Profile, seeds: Sequence[int], paper: Paper | None
) -> Path:
    """Write report.md and its pictures into the directory of the runs; return where."""
    store = Store(directory, KINDS)
    known = store.read()
    wanted = {n: dict.fromkeys(e.runs(profile, seeds, known)) for n, e in EXPERIMENTS.items()}
    seconds = {
        run: line["seconds"]
        for run, line in zip(known, store.lines(), strict=True)
        if any(run in runs for runs in wanted.values())
    }
    if not seconds:
        raise InvalidValueError(
            f"out must be a directory with runs of profile {profile.name!r}, got {str(directory)!r}"
        )
    parts = [
        f"# The paper's experiments, profile {profile.name}\n",
        f"{len(seconds):,} runs, {sum(seconds.values()) / 3600.0:.1f} hours of one core in all, "
        f"seeds {', '.join(map(str, seeds))}. {_NOTE}\n",
    ]
    if others := len(known) - len(seconds):
        parts.append(f"{others:,} runs of other profiles or seeds are left out.\n")
    if paper is None:
        parts.append("The paper's own numbers are not here: no directory with its CSV was given.\n")
    figures: dict[str, Figure] = {}
    for name, runs in track(wanted.items(), "drawing", console=Console(stderr=True)):
        experiment = EXPERIMENTS[name]
        done = sum(run in known for run in runs)
        section = experiment.section(profile, seeds, known, paper)
        parts.append(f"## {experiment.title}\n")
        parts.append(f"`python -m experiments.reproduction {name}`: {done} of {len(runs)} runs.\n")
        parts.append(section.text)
        figures |= section.figures
    for file, figure in figures.items():
        save_figure(figure, directory / file)
    path = directory / "report.md"
    path.write_text("\n".join(parts), encoding="utf-8")
    return path
