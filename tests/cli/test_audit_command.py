"""``dither audit``, and ``dither train --canaries``."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.errors import error_line

import dither
from dither import Plan, validate
from dither.cli import main
from dither.cli.audit import _default_plan
from dither.release import add_noise
from dither.types import SpentSoFar

FAST = ["--trials", "3000", "--seed", "1"]
TRAIN = ["train", "--epochs", "2", "--seed", "1", "--quiet", "--run-dir", "run"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run with 100 canaries that has ended."""
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    assert main([*TRAIN[:-1], str(run_dir), "--canaries", "100"]) == 0
    return run_dir


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    """A copy of `trained` that a test may change."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


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
    for words in ("claimed", "ε ≤ 3", "audited", "if Gaussian", "below the allowed curve", "3,000"):
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
        "dither.release.add_noise", lambda sums, scale, *others: add_noise(sums, 0.3, *others)
    )
    assert main(["audit", "--plan", plan, *FAST]) == 3
    text = capsys.readouterr().out
    assert "VIOLATED" in text
    assert "ABOVE the allowed curve" in text
    assert main(["audit", "--plan", plan, "--json", *FAST]) == 3
    assert json.loads(capsys.readouterr().out)["breach"]["true_positives"] > 0.5


def test_without_a_plan_it_is_that_of_train(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def no_training(_: object, __: object, recipe: dither.Recipe, **___: object) -> None:
        seen.append(recipe.plan())
        raise validate.InvalidValueError("enough")

    monkeypatch.setattr("dither.training.train", no_training)
    assert "enough" in error_line(["train", "--quiet"], capsys)
    plan = _default_plan()
    (planned,) = seen
    # The clip norm follows from the weights, which are random.
    assert np.array_equal(planned.noise_multipliers, plan.noise_multipliers)
    assert (planned.clipping, planned.bound) == (plan.clipping, plan.bound)
    attacked: list[dither.Plan] = []

    def no_attack(plan: dither.Plan, **_: object) -> None:
        attacked.append(plan)
        raise validate.InvalidValueError("enough")

    monkeypatch.setattr("dither.audit.audit", no_attack)
    assert "enough" in error_line(["audit"], capsys)
    assert [each.bound for each in attacked] == [plan.bound]


def test_a_run_and_its_canaries(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--run-dir", "run", *FAST]) == 0
    assert "3,000" in capsys.readouterr().out
    assert main(["audit", "--run-dir", "run", "--attack", "one-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trials"] == 100
    assert found["claimed"]["epsilon"] == pytest.approx(3.0, rel=0.01)
    saved = json.loads((run_dir / "canaries.json").read_text(encoding="utf-8"))
    assert 25 < sum(saved["included"]) < 75


@pytest.mark.filterwarnings("ignore:.*is a copy")
def test_a_resumed_run_has_the_same_canaries(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = (run_dir / "canaries.json").read_text(encoding="utf-8")
    assert main([*TRAIN, "--canaries", "100", "--resume"]) == 0
    assert (run_dir / "canaries.json").read_text(encoding="utf-8") == first
    capsys.readouterr()
    for other in ([], ["--canaries", "200"]):
        line = error_line([*TRAIN, *other, "--resume"], capsys)
        assert "canaries must be the number that the run began with, 100, got" in line


def test_canaries_cannot_be_added_later(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_dir / "canaries.json").unlink()
    line = error_line([*TRAIN, "--canaries", "150", "--resume"], capsys)
    assert "canaries must be the number that the run began with, none, got 150" in line
    assert not (run_dir / "canaries.json").exists()


def test_a_run_that_is_refused_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    dither.ledger.Ledger("full.sqlite").cap(epsilon=0.01, delta=1e-5)
    argv = [*TRAIN, "--canaries", "150", "--ledger", "full.sqlite"]
    assert "above the cap" in error_line(argv, capsys)
    assert not Path("run").exists()


def test_canaries_are_new_in_every_run(run_dir: Path) -> None:
    argv = ["train", "--steps", "2", "--noise", "uniform", "--quiet"]
    assert main([*argv, "--canaries", "100", "--run-dir", "other"]) == 0
    one, two = (
        json.loads(Path(name, "canaries.json").read_text(encoding="utf-8"))["included"]
        for name in ("run", "other")
    )
    assert one != two


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
    assert "must be of a run that has ended" in error_line(
        ["audit", "--run-dir", "run", "--attack", "one-run"], capsys
    )
    assert main(["audit", "--run-dir", "run", "--json", *FAST]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == "10 of 45"
    assert found["claimed"]["epsilon"] < 2.9
    assert "is claimed so far, and an attacker" in found["verdict"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("canaries.json", "[1", "canaries.json must be complete"),
        ("run.json", "", "run.json must be complete"),
        ("run.json", '{"run": "nobody", "ledger": null}', "a run that has taken a step"),
        ("plan.json", "{}", "plan must have the fields"),
        ("audit.json", "{", "audit.json must be complete"),
    ],
)
def test_damaged_run_directories(
    name: str, text: str, words: str, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_dir / name).write_text(text, encoding="utf-8")
    assert words in error_line(["audit", "--run-dir", "run", "--attack", "one-run"], capsys)


def correlated_plan() -> Plan:
    return Plan.from_noise_multipliers(
        [1.0] * 7, delta=1e-5, dataset_size=100, batch_size=20, correlation=[1.0, 0.6]
    )


@pytest.mark.parametrize("attack", ["white-box", "final-model", "one-run"])
def test_a_plan_of_correlated_noise(attack: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("plan.json").write_text(correlated_plan().to_json(), encoding="utf-8")
    trials = ["--trials", "200", "--seed", "1"] if attack == "one-run" else FAST
    assert main(["audit", "--plan", "plan.json", "--attack", attack, "--json", *trials]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_violated"] is False
    assert found["steps"] == "7"
    assert 0.0 < found["lower"] < found["claimed"]["epsilon"]


def user_plan() -> Plan:
    made = Plan.from_noise_multipliers([3.0] * 4, delta=1e-5, dataset_size=100, batch_size=20)
    return made.for_users(5)


@pytest.mark.parametrize(("given", "rows"), [([], 5), (["--canary-rows", "1"], 1)])
def test_canaries_are_users_where_a_plan_protects_users(
    given: list[str], rows: int, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("plan.json").write_text(user_plan().to_json(), encoding="utf-8")
    assert main(["audit", "--plan", "plan.json", "--json", *FAST, *given]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["canary_rows"] == rows
    assert "per user is claimed" in found["verdict"]
    assert main(["audit", "--plan", "plan.json", *FAST, *given]) == 0
    text = f"3,000 users with {rows} row{'s' * (rows > 1)} each"
    assert text in capsys.readouterr().out


def test_the_steps_that_were_spent_protect_users_too() -> None:
    from dither.cli.audit import _spent_plan
    from dither.ledger import Ledger

    made = user_plan()
    Path("run").mkdir()
    Path("run/run.json").write_text('{"run": "users", "ledger": null}', encoding="utf-8")
    ledger = Ledger("run")
    account = ledger.register(made, name="users")
    account.begin(0, 3.0)
    account.finish(0, 3.0)
    found, claimed = _spent_plan(Path("run"), made)
    ledger.close()
    assert (found.steps, found.rows_per_user, claimed.unit) == (1, 5, "user")


def test_cycles_that_were_spent_are_attacked() -> None:
    from dither.cli.audit import _spent_plan
    from dither.ledger import Ledger

    made = correlated_plan()
    Path("run").mkdir()
    Path("run/run.json").write_text('{"run": "cycles", "ledger": null}', encoding="utf-8")
    ledger = Ledger("run")
    account = ledger.register(made, name="cycles")
    for cycle in range(made.charges.size):
        account.begin(cycle, 1.0)
        account.finish(cycle, 1.0)
        found, claimed = _spent_plan(Path("run"), made)
        if cycle < 3:
            assert (found.steps, found.correlation) == (2 * (cycle + 1), made.correlation)
            assert claimed == SpentSoFar.of(found.bound, found.bound.epsilon)
    assert (found, claimed) == (made, made.bound)
    account.end()
    ledger.close()


def test_lost_steps_are_attacked_too() -> None:
    """What a run has paid for is in its ledger, and may be more than its plan's steps."""
    from dither.cli.audit import _spent_plan
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
    found, claimed = _spent_plan(Path("run"), made)
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
    found, claimed = _spent_plan(Path("run"), made)
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
        (["--seed", "1.5"], "seed must be"),
        (["--plot", "a.doc"], "plot must end in one of"),
    ],
)
def test_bad_input(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in error_line(["audit", *argv], capsys)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--canaries", "100"], "canaries need a run directory, --run-dir"),
        (["--canaries", "0", "--run-dir", "r"], "canaries must be"),
        (["--canaries", "20", "--run-dir", "r"], "canaries must be at least 100, got 20"),
        (
            ["--canaries", "100", "--run-dir", "r", "--sampling", "fixed"],
            "canaries need poisson sampling",
        ),
    ],
)
def test_bad_canaries(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in error_line(["train", "--epochs", "1", *argv], capsys)
    assert not Path("r").exists()


def test_a_run_without_canaries_and_a_reactive_one(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["audit", "--run-dir", "run", "--attack", "one-run"]
    assert "trials does not apply" in error_line([*argv, *FAST], capsys)
    (run_dir / "canaries.json").unlink()
    assert "run_dir must be of a run with canaries" in error_line(argv, capsys)
    (run_dir / "plan.json").write_text("up to 5 steps", encoding="utf-8")
    assert "plan must be" in error_line(["audit", "--run-dir", "run"], capsys)
