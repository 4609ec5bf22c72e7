"""``dither audit``, and ``dither train --canaries``."""

import json
from pathlib import Path

import pytest
from tests.cli.refusals import complaint

import dither
from dither.cli import main
from dither.release import add_noise

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


def test_a_claim_that_is_refuted_is_exit_code_1(
    plan: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dither.release.add_noise", lambda values, scale, stream: add_noise(values, 0.3, stream)
    )
    assert main(["audit", "--plan", plan, *FAST]) == 1
    text = capsys.readouterr().out
    assert "VIOLATED" in text
    assert "ABOVE the curve" in text
    assert main(["audit", "--plan", plan, "--json", *FAST]) == 1
    assert json.loads(capsys.readouterr().out)["breach"]["true_positives"] > 0.5


def test_without_a_plan_it_is_that_of_train(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--attack", "one-run", "--trials", "200", "--seed", "1"]) == 0
    assert "ε ≤ 3" in capsys.readouterr().out
    assert main(["train", "--alone", "--quiet", "--run-dir", "usual"]) == 0
    from dither.cli.audit import _usual

    saved = dither.Plan.from_json(Path("usual/plan.json").read_text(encoding="utf-8"))
    assert saved.fingerprint == _usual().fingerprint


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


def test_a_run_with_canaries_goes_on_with_the_same_ones() -> None:
    assert main([*TRAIN, "--canaries", "50"]) == 0
    first = json.loads(Path("run/canaries.json").read_text(encoding="utf-8"))
    assert main([*TRAIN, "--canaries", "50", "--resume"]) == 0
    assert json.loads(Path("run/canaries.json").read_text(encoding="utf-8")) == first


def test_lost_steps_are_attacked_too(capsys: pytest.CaptureFixture[str]) -> None:
    """What a run has paid for is in its ledger, and may be more than its plan."""
    from dither.ledger import Ledger

    assert main(TRAIN) == 0
    made = dither.Plan.from_json(Path("run/plan.json").read_text(encoding="utf-8"))
    ledger = Ledger("run")
    (name,) = ledger.runs
    assert list(ledger.runs[name].spent) == made.noise_multipliers.tolist()
    ledger.close()
    from dither.cli.audit import _made

    assert _made(Path("run"), made) == made
    other = dither.Plan.from_noise_multipliers(
        made.noise_multipliers * 2.0, delta=1e-5, dataset_size=made.dataset_size, batch_size=128
    )
    assert _made(Path("run"), other).noise_multipliers.tolist() == made.noise_multipliers.tolist()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--plan", "none.json"], "plan must be a file that exists"),
        (["--plan", "a", "--run-dir", "b"], "not allowed with argument"),
        (["--run-dir", "none"], "plan must be a file that exists"),
        (["--run-dir", "none", "--attack", "one-run"], "run_dir must be of a run with canaries"),
        (["--attack", "guess"], "invalid choice: 'guess'"),
        (["--confidence", "2"], "confidence must be"),
        (["--trials", "7"], "trials must be at least 100, got 7"),
        (["--trials", "1.5"], "trials must be"),
        (["--seed", "1.5"], "seed must be a whole number"),
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
        (
            ["--canaries", "9", "--run-dir", "r", "--sampling", "fixed"],
            "canaries need sampling poisson",
        ),
    ],
)
def test_bad_canaries(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in complaint(["train", "--alone", "--epochs", "1", *argv], capsys)
    assert not Path("r").exists()


def test_a_run_that_reacts_or_is_damaged_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad").mkdir()
    Path("bad/canaries.json").write_text("{", encoding="utf-8")
    Path("bad/plan.json").write_text("up to 5 steps", encoding="utf-8")
    assert "canaries.json must be JSON" in complaint(
        ["audit", "--run-dir", "bad", "--attack", "one-run"], capsys
    )
    assert "plan must be" in complaint(["audit", "--run-dir", "bad"], capsys)
