"""``dither demo``: five ways to train on digits at the same ε, and what to type next."""

import json
import math
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.errors import error_line

from dither import cli
from dither.cli import main
from dither.cli.demo_ways import ways
from dither.data import Examples, Split, load
from dither.data.loading import load_digits
from dither.planning import Plan

NETWORK, LINEAR = "dither, a network", "dither, a linear model"
OPACUS, PAPER = "DP-SGD, Opacus' settings", "ADP-SGD, the paper's settings"
WAYS = ["no privacy", NETWORK, LINEAR, OPACUS, PAPER]


def plan_of(name: str, epsilon: float) -> Plan:
    """Return the plan of a way to train on digits."""
    split = load("digits")
    way = next(way for way in ways(split.train, split.train, epsilon) if way.name == name)
    arguments: Any = getattr(way.run, "args", ())
    return next(each for each in arguments if isinstance(each, Plan))


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    def some(part: Examples, count: int) -> Examples:
        return Examples(part.inputs[:count], part.targets[:count], part.classes)

    split = load_digits()
    assert split.test is not None
    few = Split(some(split.train, 100), some(split.test, 50))
    monkeypatch.setattr("dither.data.loading.load_digits", lambda: few)
    monkeypatch.setattr("dither.training.rule._COMPUTE", 500.0)  # of which few steps follow


@pytest.mark.usefixtures("small_demo")
def test_every_way_is_trained_with_every_seed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "demo.png"
    assert main(["demo", "--json", "--seeds", "2", "--plot", str(picture)]) == 0
    found = json.loads(capsys.readouterr().out)["ways"]
    assert list(found) == WAYS
    for name, way in found.items():
        one, two = way["accuracies"]
        assert way["mean"] == pytest.approx((one + two) / 2)
        assert way["standard_deviation"] == pytest.approx(abs(one - two) / math.sqrt(2))
        assert way["epsilon"] is None if name == WAYS[0] else 0.98 <= way["epsilon"] <= 1.0
    assert found[WAYS[0]]["mean"] > 60.0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("small_demo")
def test_the_text_ends_with_what_to_type(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["demo", "--seeds", "1", "--epsilon", "2"]) == 0
    out = capsys.readouterr().out
    assert all(f"│ {name} " in out for name in WAYS)
    claim = out.index("The model is (ε = ")
    assert len(out[claim:].partition("\n\n")[0].splitlines()) <= 4
    typed = [line.strip() for line in out[claim:].splitlines() if line.startswith("  dither ")]
    assert len(typed) == 2
    seen: list[object] = []
    for command in cli._COMMANDS:
        monkeypatch.setattr(command, "run", seen.append)
    assert [main(shlex.split(line)[1:]) for line in typed] == [0, 0]
    assert [getattr(each, "epsilon", None) for each in seen] == [None, 2]


def test_opacus_has_the_settings_of_its_example() -> None:
    made = plan_of(OPACUS, 1.0)  # nearest to (1.16, 1e-5): -n=15 --lr=.25 -c=1.5 -b=240
    assert (made.batch_size, made.steps, made.clip_norm) == (240, 90, 1.5)
    assert made.steps == math.ceil(15 * made.dataset_size / 240)
    assert np.unique(made.stepsizes) == 0.25
    assert np.unique(made.noise_multipliers).size == 1
    assert plan_of(OPACUS, 8.0).steps == math.ceil(45 * made.dataset_size / 240)


def test_the_paper_has_its_step_sizes_and_matched_noise() -> None:
    made = plan_of(PAPER, 1.0)
    assert (made.batch_size, made.steps, made.clip_norm) == (256, 675, 2.5)
    t = np.arange(1, made.steps + 1)
    np.testing.assert_allclose(made.stepsizes, 1.0 / np.sqrt(20 + t), rtol=1e-12)
    squared = made.stepsizes * made.noise_multipliers**2
    np.testing.assert_allclose(squared, squared[0], rtol=1e-9)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--seeds", "0"], "seeds must be"),
        (["--epsilon", "-1"], "epsilon must be"),
        (["--plot", "demo.txt"], "plot must"),
    ],
)
def test_bad_options_are_one_line(
    option: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in error_line(["demo", *option], capsys)


@pytest.mark.evidence
def test_what_the_documentation_says_of_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["ways"]
    without, network, linear, opacus, paper = (found[name]["mean"] for name in WAYS)
    assert without - 4.0 > max(network, linear, paper)
    assert min(network, linear, paper) > opacus + 3.0
