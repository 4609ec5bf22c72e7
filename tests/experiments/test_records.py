"""The records of the small profile that are in the repository."""

from collections import Counter
from pathlib import Path
from statistics import mean

import pytest
from experiments.reproduction.catalogue import EXPERIMENTS, KINDS
from experiments.reproduction.experiment import PROFILES
from experiments.reproduction.features import features, prepare
from experiments.reproduction.head import HeadRun
from experiments.reproduction.noises import DELTA, noise_multipliers
from experiments.reproduction.side_by_side import train_side_by_side
from experiments.reproduction.state import StateRun
from experiments.reproduction.store import Store
from rich.progress import Progress

import experiments
from dither import Plan
from dither.data import directory

SMALL = Store(Path(experiments.__file__).parent / "records" / "small", KINDS)
LINES, KNOWN = SMALL.lines(), SMALL.read()
SEEDS = range(PROFILES["small"].seeds)


def test_every_record_has_its_origin() -> None:
    assert LINES
    for line in LINES:
        assert line["command"].startswith("dither reproduce ")
        assert "--profile small" in line["command"]
        assert len(line["commit"]) == 40
        assert line["seconds"] > 0.0
        assert {"python", "dither", "torch", "numpy", "kymatio"} <= set(line["versions"])
        assert len(line["steps"]) == len(line["accuracies"])
        assert all(0.0 <= accuracy <= 100.0 for accuracy in line["accuracies"])


def test_every_run_of_the_profile_is_there_once_and_no_other() -> None:
    known = KNOWN
    assert len(known) == len(LINES)
    wanted = {
        run
        for experiment in EXPERIMENTS.values()
        for run in experiment.runs(PROFILES["small"], SEEDS, known)
    }
    assert set(known) == wanted
    assert max(Counter(run.kind for run in known).values()) > 100


@pytest.mark.parametrize("noise", ["matched", "optimal"])
def test_calibrated_noises_really_cost_what_uniform_noise_costs(noise: str) -> None:
    by_place: dict[tuple[object, ...], dict[tuple[str, str], float]] = {}
    for line in LINES:
        run = line["run"]
        if line["kind"] == "head":
            place = run["schedule"], run["epochs"], run["eps_bar"]
            by_place.setdefault(place, {})[run["noise"], run["accounting"]] = line["epsilon"]
    compared = 0
    for costs in by_place.values():
        if (noise, "real") in costs and ("uniform", "theorem") in costs:
            compared += 1
            target = costs["uniform", "theorem"]
            assert 0.995 * target <= costs[noise, "real"] <= target * (1.0 + 1e-12)
    assert compared >= 4


def accuracy(dataset: str, epsilon: float | None, frequency: float | None = None) -> float:
    """Return the mean over the seeds of what is recorded for the chosen setting."""
    wanted = dataset, frequency, epsilon, False
    found = [
        outcome.last
        for run, outcome in KNOWN.items()
        if isinstance(run, StateRun)
        and (run.setting.dataset, run.setting.frequency, run.epsilon, run.is_trial) == wanted
    ]
    assert len(found) == len(SEEDS)
    return mean(found)


@pytest.mark.parametrize(
    ("dataset", "frequency", "least"),
    [
        ("mnist", None, 98.3),
        ("fashion-mnist", None, 88.5),
        ("cifar10", None, 62.0),
        ("cifar10", 1.0, 66.0),
    ],
)
def test_the_best_private_accuracy_keeps_its_promise(
    dataset: str, frequency: float | None, least: float
) -> None:
    at_one, at_three, without = (accuracy(dataset, e, frequency) for e in (1.0, 3.0, None))
    assert at_one < at_three < without
    assert at_three >= least


def test_privacy_costs_four_points_at_most_on_cifar10s_features() -> None:
    assert accuracy("cifar10", None) - accuracy("cifar10", 3.0) <= 4.0


@pytest.mark.evidence  # all of CIFAR-10's features have to be there, or are computed in minutes
@pytest.mark.skipif(not (directory() / "cifar10").exists(), reason="DITHER_DATA has no cifar10")
@pytest.mark.parametrize("noise", ["uniform", "matched", "optimal"])
def test_the_beginning_of_a_record_comes_out_again(noise: str) -> None:
    head, T = PROFILES["small"].head, PROFILES["small"].head.every
    run = HeadRun(head, "inverse_sqrt", 60, 1.6, 2.5, noise, "theorem", 0)
    begun = Plan.from_noise_multipliers(
        noise_multipliers(run.mechanism)[:T],
        delta=DELTA,
        dataset_size=head.dataset_size,
        batch_size=head.batch_size,
        clip_norm=run.clip_norm,
        stepsizes=run.mechanism.stepsizes()[:T],
    )
    with Progress(disable=True) as bar:
        prepare(run.features, bar)
    again = train_side_by_side(features(run.features), [begun], every=T, seed=run.seed)[0]
    # Another processor may round otherwise: a few of the 10,000 images are near a border.
    assert again.accuracies[0] == pytest.approx(KNOWN[run].accuracies[0], abs=0.1)
