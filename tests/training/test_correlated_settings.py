"""Correlated noise as a setting of recipes and training."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

import dither
from dither import Plan
from dither.ledger import Ledger
from dither.noise import Correlated, Optimal
from dither.reports import run_report
from dither.training import Private, Run
from dither.training.resolve import _with_given_optimizer
from dither.training.run_directory import RunDirectory
from dither.training.statement import statement

RECORDS, STEPS = 400, 24
SETTINGS: dict[str, Any] = {
    "epsilon": 8.0, "delta": 1e-5, "batch_size": 20, "steps": STEPS, "clip_norm": 1.0,
}  # fmt: skip
DATA = torch.randn(RECORDS, 4), torch.randint(2, (RECORDS,))


class StoppedError(Exception):
    """The machine is gone."""


def recipe_of(**settings: Any) -> dither.Recipe:
    return dither.recipe(nn.Linear(4, 2), dataset_size=RECORDS, **SETTINGS, **settings)


def test_the_rule_follows_correlated_noise() -> None:
    made = recipe_of(noise="correlated")
    assert (made.noise, made.sampling, made.optimizer) == ("correlated", "cyclic", "momentum")
    assert recipe_of(noise=Correlated(bands=2)).optimizer == "momentum"
    assert recipe_of(noise="correlated", sampling="poisson").sampling == "cyclic"
    assert recipe_of(noise="correlated", optimizer="adam").optimizer == "adam"
    other = recipe_of()
    assert (other.noise, other.sampling, other.optimizer) == ("uniform", "poisson", "adam")


def test_the_design_is_for_the_momentum_of_sgd() -> None:
    plans = {
        name: recipe_of(noise="correlated", optimizer=name).plan()
        for name in ("momentum", "sgd", "adam")
    }
    assert plans["momentum"] == recipe_of(noise=Correlated(momentum=0.9)).plan()
    assert plans["sgd"] == plans["adam"] == recipe_of(noise=Correlated()).plan()
    assert plans["momentum"] != plans["sgd"]


@pytest.mark.parametrize(
    ("kind", "momentum"),
    [
        (lambda parameters: SGD(parameters, lr=0.1, momentum=0.8), 0.8),
        (lambda parameters: SGD(parameters, lr=0.1), 0.0),
        (lambda parameters: Adam(parameters, lr=0.1), 0.0),
    ],
)
def test_a_given_optimizer_has_its_own_momentum(kind: Any, momentum: float) -> None:
    optimizer: Optimizer = kind(nn.Linear(4, 2).parameters())
    made = _with_given_optimizer(recipe_of(noise="correlated"), optimizer)
    assert made.noise == Correlated(momentum=momentum)
    assert _with_given_optimizer(recipe_of(noise="optimal"), optimizer).noise == "optimal"


@pytest.mark.filterwarnings("ignore:correlated noise gains nothing")
@pytest.mark.parametrize("sampling", [None, "poisson", "cyclic"])
def test_where_correlation_gains_nothing_a_recipe_says_what_its_plan_has(
    sampling: str | None, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "batch_size": 200, "epsilon": 1.0, "noise": "correlated"}
    if sampling is not None:
        settings["sampling"] = sampling
    made = dither.recipe(nn.Linear(4, 2), dataset_size=RECORDS, **settings)
    assert (made.noise, made.sampling) == (Optimal(momentum=0.9), "poisson")
    assert made.reasons["noise"] == "correlated noise gains nothing over optimal noise here"
    plan = made.plan()
    assert isinstance(plan, Plan)
    assert plan.correlation is None
    sgd = dither.recipe(nn.Linear(4, 2), dataset_size=RECORDS, optimizer="sgd", **settings)
    assert (sgd.noise, sgd.sampling) == ("optimal", "poisson")
    for resume in (False, True):
        run = Run(tmp_path / "run", resume=resume)
        result = dither.train(nn.Linear(4, 2), DATA, run=run, progress=False, **settings)
        assert result.recipe is not None
        assert (result.recipe.noise, result.plan) == (made.noise, plan)
    rows = {name: (value, why) for name, value, why in run_report(tmp_path / "run").settings}
    assert rows["noise"] == (repr(made.noise), made.reasons["noise"])
    assert rows["sampling"][0] == "poisson"


def test_bad_combinations_are_refused() -> None:
    for settings, message in (
        ({"noise": "correlated", "sampling": "fixed"}, "sampling must be poisson or cyclic for"),
        ({"noise": "optimal", "sampling": "cyclic"}, "sampling must be poisson or fixed for noise"),
        ({"noise": Correlated(bands=100)}, "bands must be at most n/m = "),
    ):
        with pytest.raises(ValueError, match=message):
            recipe_of(**settings).plan()


def test_an_interrupted_run_goes_on_with_whole_cycles(tmp_path: Path) -> None:
    calls = 0

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 16:
            raise StoppedError
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    given = {**SETTINGS, "noise": Correlated(bands=4), "progress": False, "loss": loss}
    with pytest.raises(StoppedError):
        dither.train(nn.Linear(4, 2), DATA, run=Run(tmp_path / "run", checkpoint_every=5), **given)
    with pytest.warns(UserWarning, match="steps were charged in whole cycles"):
        result = dither.train(
            nn.Linear(4, 2), DATA, run=Run(tmp_path / "run", resume=True), **given
        )
    assert isinstance(result.plan, Plan)
    bands = result.plan.bands
    assert bands == 4
    assert result.bound.epsilon <= SETTINGS["epsilon"]
    [run] = Ledger(tmp_path / "run", create=False).runs.values()
    assert len(run.spent) == result.plan.charges.size > -(-STEPS // bands)
    assert result.steps == STEPS
    text = " ".join(statement(result).split())
    charged = f"{STEPS} steps, charged as {len(run.spent)} cycles of at most {bands} steps."
    assert f"Training: {charged}" in text
    assert f"Training: {charged}" in " ".join(run_report(tmp_path / "run").statement)
    assert f"assigned to one of {bands} subsets" in text
    assert f"Each cycle of {bands} steps is accounted as one step" in text
    assert f"Gaussian noise, correlated within {bands} consecutive steps," in text


@pytest.mark.parametrize(("every", "expected"), [(1, [4, 8, 10]), (4, [4, 8, 10]), (5, [8, 10])])
def test_checkpoints_are_between_cycles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, expected: list[int]
) -> None:
    steps, save = [], RunDirectory.save

    def watched(self: RunDirectory, private: Private, average: Any) -> None:
        steps.append(private.step)
        save(self, private, average)

    monkeypatch.setattr(RunDirectory, "save", watched)
    plan = Plan.from_noise_multipliers(
        [1.0] * 10,
        delta=1e-3,
        dataset_size=RECORDS,
        batch_size=20,
        correlation=(1.0, 0.4, 0.2, 0.1),
    )
    run = Run(tmp_path / "run", checkpoint_every=every)
    dither.train(nn.Linear(4, 2), DATA, plan, run=run, progress=False)
    assert steps == expected


def test_a_resumed_run_keeps_its_plan_unless_the_noise_is_another(tmp_path: Path) -> None:
    given = {**SETTINGS, "progress": False}
    dither.train(nn.Linear(4, 2), DATA, run=Run(tmp_path), noise="correlated", **given)
    again = Run(tmp_path, resume=True)
    result = dither.train(nn.Linear(4, 2), DATA, run=again, noise="correlated", **given)
    assert result.plan == Plan.from_json((tmp_path / "plan.json").read_text(encoding="utf-8"))
    with pytest.raises(ValueError, match="noise must be what the run began with"):
        dither.train(nn.Linear(4, 2), DATA, run=again, noise="optimal", **given)


def test_a_recipe_of_correlated_noise_is_saved() -> None:
    made = recipe_of(noise="correlated")
    assert dither.Recipe.from_json(made.to_json()) == made
    given = recipe_of(noise=Correlated(bands=2))
    assert dither.Recipe.from_json(given.to_json()).noise == repr(given.noise)
    assert dataclasses.replace(made, noise="optimal").noise == "optimal"
