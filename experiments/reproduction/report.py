"""All that is known of a profile as one markdown page with pictures."""

from collections.abc import Sequence
from pathlib import Path

from dither.reports import save_figure
from experiments.reproduction.catalogue import EXPERIMENTS, KINDS
from experiments.reproduction.experiment import Profile
from experiments.reproduction.paper import Paper
from experiments.reproduction.store import Store

_NOTE = (
    "CIFAR-10 (JPEG) is re-encoded as JPEG, about 900 bytes an image, which costs some accuracy; "
    "a linear head on data-independent scattering features, randomly projected, stands where the "
    "paper has convolutions pre-trained on CIFAR-100. So levels differ from the paper's, and gaps "
    "are what is compared. Accuracies are in percent: mean ± standard deviation over seeds; gaps "
    "are paired by seed: mean ± standard error."
)


def write_report(folder: Path, profile: Profile, seeds: Sequence[int], paper: Paper | None) -> Path:
    """Write report.md and its pictures into the folder of the runs; return where."""
    store = Store(folder, KINDS)
    known = store.read()
    seconds = sum(line["seconds"] for line in store.lines())
    parts = [
        f"# The paper's experiments, profile {profile.name}\n",
        f"{len(known):,} runs, {seconds / 3600.0:.1f} hours of one core in all, seeds "
        f"{', '.join(map(str, seeds))}. {_NOTE}\n",
    ]
    if paper is None:
        parts.append("The paper's own numbers are not here: no folder with its CSV was given.\n")
    folder.mkdir(parents=True, exist_ok=True)
    for experiment in EXPERIMENTS.values():
        wanted = list(dict.fromkeys(experiment.runs(profile, seeds, known)))
        done = sum(run in known for run in wanted)
        section = experiment.section(profile, seeds, known, paper)
        parts.append(f"## {experiment.title}\n")
        parts.append(f"`dither reproduce {experiment.name}`: {done} of {len(wanted)} runs.\n")
        parts.append(section.text)
        for name, figure in section.figures.items():
            save_figure(figure, folder / name)
    path = folder / "report.md"
    path.write_text("\n".join(parts), encoding="utf-8")
    return path
