"""The records of the small profile that are in the repository."""

from collections import Counter
from pathlib import Path

import pytest
from experiments.reproduction.catalogue import EXPERIMENTS, KINDS
from experiments.reproduction.experiment import PROFILES
from experiments.reproduction.store import Store

import experiments

SMALL = Store(Path(experiments.__file__).parent / "records" / "small", KINDS)
SEEDS = range(PROFILES["small"].seeds)


def test_every_record_says_where_it_comes_from() -> None:
    lines = SMALL.lines()
    assert lines
    for line in lines:
        assert line["command"].startswith("dither reproduce ")
        assert "--profile small" in line["command"]
        assert len(line["commit"]) == 40
        assert line["seconds"] > 0.0
        assert {"python", "dither", "torch", "numpy", "kymatio"} <= set(line["versions"])
        assert len(line["steps"]) == len(line["accuracies"])
        assert all(0.0 <= accuracy <= 100.0 for accuracy in line["accuracies"])


def test_no_run_is_there_twice_and_each_belongs_to_an_experiment() -> None:
    known = SMALL.read()
    assert len(known) == len(SMALL.lines())
    wanted = {
        run
        for experiment in EXPERIMENTS.values()
        for run in experiment.runs(PROFILES["small"], SEEDS, known)
    }
    assert set(known) <= wanted
    assert max(Counter(run.kind for run in known).values()) > 100


@pytest.mark.parametrize("noise", ["matched", "optimal"])
def test_calibrated_noises_really_cost_what_uniform_noise_costs(noise: str) -> None:
    by_place: dict[tuple[object, ...], dict[tuple[str, str], float]] = {}
    for line in SMALL.lines():
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
