import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from tests.cli.errors import error_line

from dither import noise, schedules, theory
from dither.cli import main


def run(*argv: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["theory", *argv]) == 0
    return capsys.readouterr().out


def test_json_is_what_the_library_computes(capsys: pytest.CaptureFixture[str]) -> None:
    argv = (
        "--json --schedule linear:start=2,end=0.5 --epochs 3 --dataset-size 1000 --batch-size 64 "
        "--clip-norm 1.5 --dimension 50 --smoothness 2 --initial-gap 4 --epsilon 0.5 --delta 1e-4"
    )
    out = json.loads(run(*argv.split(), capsys=capsys))
    eta = schedules.Linear(2.0, 0.5).stepsizes(47)
    alpha = noise.Matched().alphas(eta)
    assert out["setting"]["steps"] == 47
    problem = theory.Problem(50, 2.0, 4.0, 1.5, 1000, 64)
    sigma = theory.adp_sigma(
        alpha, clip_norm=1.5, dataset_size=1000, batch_size=64, epsilon=0.5, delta=1e-4
    )
    matched = out["matched"]
    assert matched["sigma"] == sigma
    assert matched["improvement"] == pytest.approx(theory.improvement(eta), rel=1e-14)
    bound = theory.utility_bound(problem, eta, alphas=alpha, epsilon=0.5, delta=1e-4)
    assert matched["utility_bound"] == bound.total
    assert matched["first_noise_multiplier"] == pytest.approx(alpha[0] * sigma * 64 / 1.5)
    assert out["uniform"]["improvement"] == 1.0
    assert matched["condition_holds"] is bool(
        theory.adp_condition(alpha, dataset_size=1000, batch_size=64, epsilon=0.5, delta=1e-4)
    )


def test_table_and_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "theory.png"
    out = run("--steps", "500", "--warmup", "10", "--plot", str(picture), capsys=capsys)
    assert "M_dp/M" in out
    assert "condition does not hold" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["theory.png"]
    assert "condition holds" in run("--epsilon", "1", capsys=capsys)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("theory --steps 0", "steps must be"),
        ("theory --steps -4", "steps must be"),
        ("theory --steps 2.5", "steps must be"),
        ("theory --steps many", "argument --steps: must be a number, got 'many'"),
        ("theory --schedule square", "schedule must be one of constant"),
        ("theory --schedule constant:stepsize=nan", "stepsize must be a positive, finite number"),
        ("theory --delta 1", "delta must be strictly between 0 and 1, got 1"),
        ("theory --delta 0", "delta must be strictly between 0 and 1, got 0"),
        ("theory --epsilon -1", "epsilon must be a positive, finite number, got -1"),
        ("theory --epsilon nan", "epsilon must be a positive, finite number, got nan"),
        ("theory --epochs inf", "epochs must be a positive, finite number, got inf"),
        ("theory --batch-size 60000", "batch_size must be at most dataset_size = 50000, got 60000"),
        ("theory --epochs 1 --batch-size 60000", "batch_size must be at most dataset_size"),
        ("theory --steps 5 --epochs 5", "not allowed with argument"),
        ("theory --plot here.txt", "plot must end in one of .pdf, .png, .svg, got 'here.txt'"),
        ("theory --plot no/such/folder.png", "plot must be in an existing directory"),
        ("theory --plot nosuch.png/", "plot must"),
        ("theory --epsilon 1e300", "epsilon must be between 1e-50 and 1e50, got 1e+300"),
        (
            "theory --epsilon 1e-50 --clip-norm 1e50 --dimension 1e50 --smoothness 1e50"
            " --schedule constant:stepsize=1e50",
            "the setting must be within floating point, got utility bound",
        ),
        ("theory --steps 1e30", "steps must be at most 100,000,000, got 1e+30"),
        ("theory --epochs 1e9", "steps must be at most 100,000,000"),
        ("theory --nonsense 3", "unrecognized arguments: --nonsense 3"),
        ("theory --step 3", "unrecognized arguments: --step 3"),
        ("thoery", "invalid choice: 'thoery'"),
        ("", "the following arguments are required: COMMAND"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    argv: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if "nosuch" in argv:
        (tmp_path / "nosuch.png").mkdir()
        before = ["nosuch.png"]
    else:
        before = []
    assert message in error_line(argv.split(), capsys)
    assert [path.name for path in tmp_path.iterdir()] == before


def test_a_full_disk_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", fail)
    assert main(["theory", "--plot", str(tmp_path / "figure.png")]) == 1
    assert capsys.readouterr().err == "dither theory: [Errno 28] No space left on device\n"


def test_a_reader_that_goes_away_is_no_news() -> None:
    command = [sys.executable, "-m", "dither", "theory", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 1


def test_python_m_dither_works_on_a_terminal_without_greek() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "dither", "theory"],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert b"M_dp/M" in answer.stdout


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--help"], ["theory", "--help"], ["--version"]):
        with pytest.raises(SystemExit) as exit_:
            main(argv)
        assert exit_.value.code == 0
    assert "0.1.0" in capsys.readouterr().out
