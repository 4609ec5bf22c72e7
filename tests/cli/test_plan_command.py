import json
import math
from pathlib import Path

import pytest
from tests.cli.errors import error_line

import dither
from dither import Plan
from dither.cli import main
from dither.cli.options import NOISES

QUICK = ["--steps", "60", "--batch-size", "2000", "--schedule", "step:start=1,factor=0.5,every=20"]

EQUAL = "--noise-multiplier 1 --sample-rate 0.1 --steps 3 --delta 1e-5"


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(argv) == 0
    return capsys.readouterr().out


def test_plan_compares_saves_and_draws(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved, picture = tmp_path / "plan.json", tmp_path / "plan.png"
    argv = ["plan", *QUICK, "--save", str(saved), "--plot", str(picture), "--noise", "matched"]
    argv += ["--clipping", "automatic"]
    out = run(argv, capsys)
    assert "relative to uniform" in out
    assert "matched plan" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "plan.png"]
    made = Plan.from_json(saved.read_text(encoding="utf-8"))
    expected = dither.plan(
        epsilon=1.0,
        delta=1e-5,
        dataset_size=60_000,
        batch_size=2000,
        steps=60,
        stepsizes=dither.schedules.parse(QUICK[-1]),
        noise="matched",
        clipping="automatic",
    )
    assert made == expected
    account = run(["account", str(saved)], capsys)
    # Rounded up: what is printed is claimed.
    assert f"{math.ceil(made.bound.epsilon * 1e5) / 1e5:.5g}" in account


def test_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    out = json.loads(run(["plan", "--json", *QUICK, "--epsilon", "2"], capsys))
    assert out["steps"] == 60
    assert out["uniform"]["relative_to_uniform"] == 1.0
    assert out["optimal"]["relative_to_uniform"] < 1.0
    for name in ("uniform", "matched", "optimal"):
        assert 1.99 <= out[name]["epsilon_pld"] <= 2.0


# Few strong steps: correlated noise is found in less than a second.
STRONG = ["--steps", "40", "--dataset-size", "10000", "--batch-size", "50", "--epsilon", "8"]
STRONG += ["--schedule", "constant:stepsize=1"]


def test_correlated_noise_is_compared_saved_and_accounted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved, picture = tmp_path / "plan.json", tmp_path / "plan.svg"
    argv = ["plan", *STRONG, "--json", "--noise", "correlated", "--sampling", "cyclic"]
    out = json.loads(run([*argv, "--save", str(saved), "--plot", str(picture)], capsys))
    made = Plan.from_json(saved.read_text(encoding="utf-8"))
    assert (made.sampling, made.bands) == ("cyclic", out["correlated"]["bands"])
    assert made.fingerprint == out["correlated"]["fingerprint"]
    assert made.bands > 1 == out["optimal"]["bands"]
    assert out["uniform"]["variance_relative_to_uniform"] == 1.0
    ratios = [out[name]["variance_relative_to_uniform"] for name in ("correlated", "optimal")]
    assert ratios[0] < 0.7 < ratios[1]
    for key in ("noise_that_reaches_the_parameters", "relative_to_uniform"):
        assert out["correlated"][key] is None
        assert out["optimal"][key] > 0.0
    assert "correlated" in picture.read_text(encoding="utf-8")
    account = json.loads(run(["account", str(saved), "--json"], capsys))
    assert account["pld"]["epsilon"] == made.bound.epsilon
    assert (account["sampling"], account["bands"]) == ("cyclic", made.bands)
    cycles = f"cyclic sampling in {made.bands} subsets: {-(-40 // made.bands)} cycles"
    assert cycles in run(["account", str(saved)], capsys)


def test_where_correlated_noise_gains_nothing_one_line_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    saved = tmp_path / "plan.json"
    argv = ["plan", "--steps", "20", "--dataset-size", "1000", "--batch-size", "1000"]
    assert main([*argv, "--noise", "correlated", "--save", str(saved)]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("gains nothing over optimal noise here") == 1
    assert "correlated: optimal" in captured.out
    assert "The optimal plan is in" in captured.out
    assert "warning" not in captured.err
    made = Plan.from_json(saved.read_text(encoding="utf-8"))
    assert (made.sampling, made.bands, made.correlation) == ("poisson", 1, None)


def test_batches_of_a_fixed_size_have_no_correlated_noise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["plan", "--steps", "20", "--dataset-size", "1000", "--batch-size", "1000"]
    out = json.loads(run([*argv, "--sampling", "fixed", "--json"], capsys))
    assert {"uniform", "matched", "optimal"} == {*out} & {*NOISES}


def test_account_of_cycles(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["account", "--noise-multiplier", "1.1", "--sample-rate", "0.01", "--json"]
    argv += ["--steps", "999", "--delta", "1e-5", "--sampling", "cyclic", "--bands", "4"]
    out = json.loads(run(argv, capsys))
    bound = dither.epsilon([1.1] * 250, sample_rate=0.04, delta=1e-5)
    assert out["pld"]["epsilon"] == bound.epsilon
    assert (out["sampling"], out["bands"]) == ("cyclic", 4)


def test_account_of_equal_steps(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["account", "--noise-multiplier", "1.1", "--sample-rate", "0.01"]
    argv += ["--steps", "1000", "--delta", "1e-5"]
    out = json.loads(run([*argv, "--json"], capsys))
    bound = dither.epsilon([1.1] * 1000, sample_rate=0.01, delta=1e-5)
    assert out["pld"] == {
        "epsilon": bound.epsilon,
        "lower": bound.lower,
        "is_upper_bound": True,
    }
    assert not out["gdp"]["is_upper_bound"]
    table = run(argv, capsys)
    for name in ("pld", "rdp", "gdp", "theorem", "advanced"):
        assert name in table


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("plan --epsilon 0", "epsilon must be a positive, finite number, got 0"),
        ("plan --delta 2", "delta must be strictly between 0 and 1, got 2"),
        ("plan --noise cosine", "argument --noise: invalid choice: 'cosine'"),
        ("plan --sampling shuffle", "argument --sampling: invalid choice: 'shuffle'"),
        ("plan --save no/such/folder.json", "save must be in an existing directory"),
        ("plan --save .", "save must be in an existing directory, got '.'"),
        ("plan --save /dev/null", "save must be a file that can be written, got '/dev/null'"),
        ("plan --plot plan.txt", "plot must end in one of"),
        (
            "plan --noise correlated --sampling fixed",
            "sampling must be poisson or cyclic for correlated noise, got 'fixed'",
        ),
        (
            "plan --sampling cyclic",
            "sampling must be poisson or fixed unless --noise correlated is given, got 'cyclic'",
        ),
        ("account broken.json --bands 3", "account takes a plan (and --delta), or"),
        (f"account {EQUAL} --bands 3", "takes --bands with --sampling cyclic, and with no other"),
        (f"account {EQUAL} --sampling cyclic", "takes --bands with --sampling cyclic, and with no"),
        (
            f"account {EQUAL} --sampling cyclic --bands 11",
            "bands must be at most 1/sample_rate = 10, got 11",
        ),
        (f"account {EQUAL} --sampling cyclic --bands 0", "bands must be an integer of at least 1"),
        ("account .", "plan must be a file that exists and can be read, got '.'"),
        (
            "account nothing.json",
            "plan must be a file that exists and can be read, got 'nothing.json'",
        ),
        ("account broken.json", "plan must be JSON"),
        ("account binary.json", "plan must be a JSON file"),
        ("account --steps 3", "account needs a plan, or also --noise-multiplier, --sample-rate"),
        ("account broken.json --steps 3", "account takes a plan (and --delta), or"),
        (
            "account --noise-multiplier 0 --sample-rate 0.1 --steps 3 --delta 1e-5",
            "noise_multiplier must be a positive, finite number, got 0",
        ),
        (
            "account --noise-multiplier 1 --sample-rate 2 --steps 3 --delta 1e-5",
            "sample_rate must be above 0 and at most 1, got 2",
        ),
    ],
)
def test_bad_input_is_one_line(
    argv: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    monkeypatch.chdir(tmp_path)
    assert message in error_line(argv.split(), capsys)
    assert len(list(tmp_path.iterdir())) == 2
