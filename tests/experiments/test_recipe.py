"""The evidence for the recipe in miniature: search, records, tables, and one real training."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.scoring import competitors, grid, summary
from experiments.scoring.competitors import Result, Run
from experiments.scoring.grid import Grid, climb
from experiments.scoring.store import Store
from experiments.scoring.tasks import GROUPS, TASKS, Task
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from experiments import recipe

TASK = replace(TASKS["digits-linear"], compute=2_000)
RECIPE = {"batch_size": 100, "steps": 20, "averaging": None, "learning_rate": 1.0}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DITHER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(TASKS, TASK.name, TASK)
    grid._start.cache_clear()


def surface(run: Run) -> Result:
    """Score a run without training it: the best of the grid is flat 0.1, Adam, 0.2."""
    if run.setting is None:
        points = {"recipe": 89.0, "defaults": 85.0, "opacus": 70.0, "tuned": 89.5}[run.competitor]
        return Result(points + 0.1 * run.seed, run.epsilon, RECIPE, 0.0)
    setting = run.setting
    best = {"adam": 0.2, "momentum": 3.0, "sgd": 30.0}[setting.optimizer]
    points = 90.0 - 2.0 * abs(math.log(setting.learning_rate / best))
    points -= 3.0 * (setting.optimizer != "adam") + 2.0 * (setting.clip_norm != 0.1)
    return Result(points + 0.1 * run.seed, run.epsilon, {}, 0.0)


def score(directory: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> dict[Run, Result]:
    monkeypatch.setattr(recipe, "train", surface)
    monkeypatch.setattr(recipe, "recipe_of", lambda *_: None)
    monkeypatch.setattr(recipe, "describe", lambda _: RECIPE)
    store = Store(directory / "runs.jsonl")
    options: dict[str, Any] = {"is_frozen": True, "epsilons": [8.0], "jobs": 1, **more}
    return recipe.run_missing([TASK], store, {"commit": "c"}, **options)


def test_every_competitor_is_run_and_the_grid_finds_its_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = score(tmp_path, monkeypatch)
    best = Grid(TASK.name, 8.0, known).best()
    assert best is not None
    assert best.setting is not None
    assert (best.setting.clip_norm, best.setting.optimizer) == (0.1, "adam")
    assert 0.2 / 3**0.3 < best.setting.learning_rate < 0.2 * 3**0.3
    assert {(best.setting.batch_size, best.setting.steps)} == {(100, 20)}

    cell = summary.cell(TASK, 8.0, 5, known)
    assert cell is not None
    assert cell.is_interior
    assert cell.scores["recipe"].mean == pytest.approx(89.3)
    assert cell.regret == pytest.approx(known[replace(best, seed=3)].score - 89.3)
    assert cell.behind_defaults == pytest.approx(-4.0)
    assert "| yes |" in summary.goals([cell])
    better = replace(cell, scores={**cell.scores, "grid": summary.Score(93.0, 0.1)})
    assert summary.goals([better]).count("**no**") == 2
    assert "89.3 ± 0.2" in summary.table([cell])
    assert "tuned" in {run.competitor for run in score(tmp_path, monkeypatch, tuned=True)}


def test_an_interrupted_scoring_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = score(tmp_path, monkeypatch)
    file = tmp_path / "runs.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + len(known)
    file.write_bytes(b"".join(lines[:20]) + lines[20][:30])
    assert score(tmp_path, monkeypatch) == known
    runs = [line for line in map(json.loads, file.read_text().splitlines()) if "run" in line]
    assert len(runs) == len(known)
    assert len(Store(file).headers()) == 2


def test_records_of_another_rule_are_refused_once_it_is_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = score(tmp_path, monkeypatch)
    other = {**RECIPE, "learning_rate": 2.0}
    monkeypatch.setattr(recipe, "describe", lambda _: other)
    monkeypatch.setattr(recipe, "recipe_of", lambda *_: None)
    with pytest.raises(ValueError, match="records must be of one rule"):
        recipe.check_rule([TASK], dict(known), is_frozen=True)
    kept = dict(known)
    recipe.check_rule([TASK], kept, is_frozen=False)
    assert {run.competitor for run in known.keys() - kept.keys()} == {"recipe"}


def test_what_is_scored_must_be_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {"commit": "c", "changed": ["src/dither/training/loop.py"]}
    monkeypatch.setattr(recipe, "origin", lambda *_: dict(changed))
    with pytest.raises(ValueError, match="must be committed"):
        recipe.make_header("command", is_frozen=True)
    assert recipe.make_header("command", is_frozen=False)["commit"] == "c"


@given(st.floats(-5.4, 5.4))
def test_a_search_ends_with_a_lower_score_on_both_sides(peak: float) -> None:
    scores: dict[int, float] = {}
    while places := climb(scores):
        scores |= {place: -abs(place - peak) for place in places}
    best = max(scores, key=lambda place: scores[place])
    assert abs(best - peak) <= 0.5
    assert {best - 1, best + 1} <= scores.keys()


def test_a_training_is_the_same_for_the_same_seed() -> None:
    run = Run(TASK.name, 8.0, "defaults", 1)
    one, two = competitors.train(run), competitors.train(run)
    assert one.score == two.score > 30.0
    assert one.settings == {**one.settings, "batch_size": 128, "steps": 16}
    assert 7.9 < one.epsilon <= 8.0


@pytest.mark.parametrize("competitor", ["recipe", "tuned"])
def test_a_recipe_takes_the_compute_of_the_task(competitor: str) -> None:
    result = competitors.train(Run(TASK.name, 8.0, competitor, 1))
    assert result.score > 30.0
    assert 7.8 < result.epsilon <= 8.0
    settings = json.loads(json.dumps(result.settings))
    assert settings == result.settings
    assert 0.8 * TASK.compute < settings["batch_size"] * settings["steps"] < 1.05 * TASK.compute
    again = competitors.recipe_of(Run(TASK.name, 8.0, "recipe", 1))
    assert (competitors.describe(again) == settings) == (competitor == "recipe")


def test_a_regression_and_rare_classes_are_scored_in_points() -> None:
    class Margin(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return torch.cat([-inputs, inputs], 1)

    inputs = torch.tensor([[0.1], [0.4], [0.35], [0.8]])
    rare = replace(TASK, metric="AUC")
    assert rare.score(Margin(), (inputs, torch.tensor([0, 0, 1, 1]))) == pytest.approx(75.0)
    numbers: Task = replace(TASK, metric="R²")
    assert numbers.score(nn.Identity(), (inputs, inputs[:, 0])) == pytest.approx(100.0)
    assert numbers.score(nn.Identity(), (inputs, -inputs[:, 0])) == 0.0


def test_held_out_tasks_are_enough_and_none_of_their_models_was_developed_on() -> None:
    assert len(GROUPS["heldout"]) >= 8
    developed = {(task.data, str(task.build())) for task in GROUPS["development"]}
    assert not developed & {(task.data, str(task.build())) for task in GROUPS["heldout"]}
