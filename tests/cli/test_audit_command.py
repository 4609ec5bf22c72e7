"""``dither audit``, and ``dither train --canaries``."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.refusals import complaint

import dither
from dither import validate
from dither.cli import main
from dither.cli.audit import _ATTACKS, _usual
from dither.release import add_noise
from dither.types import SpentSoFar

FAST = ["--trials", "3000", "--seed", "1"]
TRAIN = ["train", "--alone", "--epochs", "2", "--seed", "1", "--quiet", "--run-dir", "run"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def plan(tmp_path: Path) -> str:
    """A saved plan."""
    made = dither.plan(epsilon=3.0, delta=1e-5, dataset_size=100, batch_size=100, steps=5)
    (tmp_path / "plan.json").write_text(made.to_json(), encoding="utf-8")
    return "plan.json"


def test_the_attacks_are_the_librarys() -> None:
    assert _ATTACKS == dither.audit.ATTACKS


@pytest.mark.parametrize("attack", ["white-box", "final-model"])
def test_a_plan_is_not_refuted(plan: str, attack: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--plan", plan, "--attack", attack, "--plot", "roc.png", *FAST]) == 0
    text = capsys.readouterr().out
    for words in ("claimed", "ε ≤ 3", "audited", "if it is Gaussian", "below the curve", "3,000"):
        assert words in text
    assert "Not refuted: ε ≤ 3 at δ = 1e-05 is claimed, and an attacker who sees" in text
    assert Path("roc.png").stat().st_size > 0


def test_as_json(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--plan", plan, "--json", *FAST]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["claimed"] == {"epsilon": pytest.approx(3.0, rel=0.01), "delta": 1e-5}
    assert 0.5 < found["lower"] < 3.0
    assert found["trials"] == 3000
    assert found["right"] <= found["guesses"]
    assert found["breach"] is None
    assert found["is_violated"] is False


def test_a_claim_that_is_refuted_is_exit_code_3(
    plan: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dither.release.add_noise", lambda values, scale, stream: add_noise(values, 0.3, stream)
    )
    assert main(["audit", "--plan", plan, *FAST]) == 3
    text = capsys.readouterr().out
    assert "VIOLATED" in text
    assert "ABOVE the curve" in text
    assert main(["audit", "--plan", plan, "--json", *FAST]) == 3
    assert json.loads(capsys.readouterr().out)["breach"]["true_positives"] > 0.5


def test_without_a_plan_it_is_that_of_train(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["audit", "--attack", "one-run", "--trials", "200", "--seed", "1"]) == 0
    assert "ε ≤ 3" in capsys.readouterr().out
    seen: list[dither.Plan] = []

    def no_training(_: object, __: object, plan: dither.Plan, **___: object) -> None:
        seen.append(plan)
        raise validate.InvalidValueError("enough")

    monkeypatch.setattr("dither.training.train", no_training)
    assert "enough" in complaint(["train", "--alone", "--quiet"], capsys)
    assert seen == [_usual()]


def test_a_run_and_its_canaries(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--canaries", "100"]) == 0
    capsys.readouterr()
    assert main(["audit", "--run-dir", "run", *FAST]) == 0
    assert "3,000" in capsys.readouterr().out
    assert main(["audit", "--run-dir", "run", "--attack", "one-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trials"] == 100
    assert found["claimed"]["epsilon"] == pytest.approx(3.0, rel=0.01)
    kept = json.loads(Path("run/canaries.json").read_text(encoding="utf-8"))
    assert 25 < sum(kept["included"]) < 75


def kept() -> dict[str, object]:
    """What is known of the canaries, but for the file that the model is in."""
    found = json.loads(Path("run/canaries.json").read_text(encoding="utf-8"))
    return {name: value for name, value in found.items() if name != "model"}


def test_a_run_with_canaries_goes_on_with_the_same_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*TRAIN, "--canaries", "150"]) == 0
    first = kept()
    assert main([*TRAIN, "--canaries", "150", "--resume"]) == 0
    assert kept() == first
    capsys.readouterr()
    for other in ([], ["--canaries", "200"]):
        said = complaint([*TRAIN, *other, "--resume"], capsys)
        assert "canaries must be as the run began, with 150, got" in said
    assert kept() == first


def test_canaries_cannot_come_later(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(TRAIN) == 0
    capsys.readouterr()
    said = complaint([*TRAIN, "--canaries", "150", "--resume"], capsys)
    assert "canaries must be as the run began, without any, got 150" in said
    assert not Path("run/canaries.json").exists()


def test_nothing_is_left_of_a_run_that_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    dither.ledger.Ledger("full.sqlite").cap(epsilon=0.01, delta=1e-5)
    argv = [*TRAIN, "--canaries", "150", "--ledger", "full.sqlite"]
    assert "above the cap" in complaint(argv, capsys)
    assert not Path("run").exists()


def test_canaries_are_new_in_every_run() -> None:
    found = []
    for name in ("a", "b"):
        argv = ["train", "--alone", "--epochs", "1", "--quiet", "--canaries", "100"]
        assert main([*argv, "--run-dir", name]) == 0
        found.append(json.loads(Path(name, "canaries.json").read_text(encoding="utf-8")))
    assert found[0]["included"] != found[1]["included"]


def test_a_run_with_canaries_that_is_not_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(self: object, private: object, average: object) -> None:
        if getattr(private, "step", 0) >= 10:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dither.training.run_directory.RunDirectory.save", killed)
        assert main([*TRAIN, "--canaries", "100", "--checkpoint-every", "5"]) == 130
    capsys.readouterr()
    assert "must have a run that is over" in complaint(
        ["audit", "--run-dir", "run", "--attack", "one-run"], capsys
    )
    assert main(["audit", "--run-dir", "run", "--json", *FAST]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == "10 of 23"
    assert found["claimed"]["epsilon"] < 2.9
    assert "is claimed so far, and an attacker" in found["verdict"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("canaries.json", "{}", "canaries.json must say how many canaries"),
        ("canaries.json", "[1]", "canaries.json must be whole"),
        ("canaries.json", '{"count": 100, "seed": "x"}', "canaries.json must say how many"),
        ("run.json", "null", "run.json must be whole"),
        ("run.json", '{"run": "nobody", "ledger": null}', "must have a run that has taken a step"),
        ("model.safetensors", "x", "must have the scores of the model that is beside it"),
        ("plan.json", "{}", "plan must have the fields"),
    ],
)
def test_damaged_folders(
    name: str, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TRAIN, "--canaries", "100"]) == 0
    capsys.readouterr()
    Path("run", name).write_text(text, encoding="utf-8")
    assert words in complaint(["audit", "--run-dir", "run", "--attack", "one-run"], capsys)


def test_damaged_scores(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--canaries", "100"]) == 0
    capsys.readouterr()
    path = Path("run/canaries.json")
    kept = json.loads(path.read_text(encoding="utf-8"))
    for change, words in (
        ({"scores": ["a"] * 100}, "scores must be numbers"),
        ({"scores": [1.0]}, "scores must be one for each of the coins"),
        ({"included": [2] * 100}, "included must be true or false"),
    ):
        path.write_text(json.dumps({**kept, **change}), encoding="utf-8")
        assert words in complaint(["audit", "--run-dir", "run", "--attack", "one-run"], capsys)


def test_another_plan_than_the_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(TRAIN) == 0
    capsys.readouterr()
    path = Path("run/plan.json")
    made = dither.Plan.from_json(path.read_text(encoding="utf-8"))
    other = dither.Plan.from_noise_multipliers(
        made.noise_multipliers / 2.0, delta=1e-5, dataset_size=1438, batch_size=128
    )
    path.write_text(other.to_json(), encoding="utf-8")
    assert "plan.json must be the plan that the run began with" in complaint(
        ["audit", "--run-dir", "run"], capsys
    )


def test_lost_steps_are_attacked_too() -> None:
    """What a run has paid for is in its ledger, and may be more than its plan's steps."""
    from dither.cli.audit import _made
    from dither.ledger import Ledger

    made = dither.plan(epsilon=1.0, delta=1e-5, dataset_size=100, batch_size=20, steps=6)
    Path("run").mkdir()
    about = {"run": "lost", "ledger": None}
    Path("run/run.json").write_text(json.dumps(about), encoding="utf-8")
    ledger = Ledger("run")
    account = ledger.register(made, name="lost")
    first = [float(z) for z in made.noise_multipliers]
    for step, z in enumerate(first[:3]):
        account.begin(step, z)
        account.finish(step, z)
    found, claimed = _made(Path("run"), made)
    assert found.noise_multipliers.tolist() == first[:3]
    assert found.stepsizes.tolist() == made.stepsizes[:3].tolist()
    assert claimed == SpentSoFar.of(found.bound, found.bound.epsilon)
    assert claimed.epsilon < made.bound.epsilon
    later = np.array([*first[:3], *(1.6 * z for z in first)])
    account.change("another plan", later)
    for step, z in enumerate(later[3:].tolist(), start=3):
        account.begin(step, z)
        account.finish(step, z)
    account.end()
    ledger.close()
    found, claimed = _made(Path("run"), made)
    assert found.noise_multipliers.tolist() == later.tolist()
    assert claimed == made.bound


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--plan", "none.json"], "plan must be a file that exists"),
        (["--plan", "a", "--run-dir", "b"], "not allowed with argument"),
        (["--run-dir", "none"], "plan must be a file that exists"),
        (["--run-dir", "none", "--attack", "one-run"], "plan must be a file that exists"),
        (["--plan", "a" * 300], "plan must be a file that exists"),
        (["--run-dir", __file__], "plan must be a file that exists"),
        (["--attack", "guess"], "invalid choice: 'guess'"),
        (["--confidence", "2"], "confidence must be"),
        (["--trials", "7"], "trials must be at least 100, got 7"),
        (["--trials", "1.5"], "trials must be"),
        (["--seed", "1.5"], "seed must be an integer"),
        (["--plot", "a.doc"], "plot must end in one of"),
    ],
)
def test_bad_input(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in complaint(["audit", *argv], capsys)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--canaries", "10"], "canaries need a folder to be kept in, --run-dir"),
        (["--canaries", "0", "--run-dir", "r"], "canaries must be"),
        (["--canaries", "20", "--run-dir", "r"], "canaries must be at least 100, got 20"),
        (
            ["--canaries", "100", "--run-dir", "r", "--sampling", "fixed"],
            "canaries need sampling poisson",
        ),
    ],
)
def test_bad_canaries(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in complaint(["train", "--alone", "--epochs", "1", *argv], capsys)
    assert not Path("r").exists()


def test_a_run_without_canaries_and_one_that_reacts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(TRAIN) == 0
    capsys.readouterr()
    argv = ["audit", "--run-dir", "run", "--attack", "one-run"]
    assert "run_dir must be of a run with canaries" in complaint(argv, capsys)
    assert "trials is for attacks that are made now" in complaint([*argv, *FAST], capsys)
    Path("run/plan.json").write_text("up to 5 steps", encoding="utf-8")
    assert "plan must be" in complaint(["audit", "--run-dir", "run"], capsys)
