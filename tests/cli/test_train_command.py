"""``dither train``: from data to a model and its privacy statement."""

import json
import math
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.cli.errors import error_line

import dither
from dither import Plan
from dither.cli import main
from dither.data import load
from dither.schedules import Linear, Warmup
from dither.training import MODELS

RECORDS = 60
DIGITS = ["train", "--steps", "6", "--batch-size", "16", "--model", "linear"]

# Functions for --model, in a module of one's own.
MODELS_OF_MINE = """
from torch import nn

def small(shape, classes):
    print("called with", shape, classes)
    return nn.Sequential(nn.Linear(shape[0], 4), nn.ReLU(), nn.Linear(4, classes))

def normed(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], 4), nn.BatchNorm1d(4), nn.Linear(4, classes))

class Mixing(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs - inputs.mean(0))

def mixing(shape, classes):
    return Mixing(shape[0], classes)

def nothing(shape, classes):
    pass

def word(shape, classes):
    return "a model"

def narrow(shape, classes):
    return nn.Linear(3, classes)

def unfit(shape, classes):
    return nn.Linear(shape[0], 7)

def asking(shape):
    return nn.Linear(shape[0], 2)

number = 3
"""


def own(name: str = "own.npz", *, steps: int = 4) -> list[str]:
    """Return a quick command for data of one's own."""
    return [
        "train", "--data", name, "--steps", str(steps), "--batch-size", "20", "--model", "linear",
        "--noise", "uniform",
    ]  # fmt: skip


def arrays(
    path: Path,
    *,
    seed: int = 1,
    records: int = RECORDS,
    columns: int = 4,
    classes: tuple[int, ...] = (3, 8),
) -> Path:
    """Write records whose first column gives the class."""
    values = np.random.default_rng(seed).normal(size=(records, columns)).round(4)
    numbers = np.arange(records) % len(classes)
    values[:, 0] += 5.0 * numbers
    np.savez(path, x=values, y=np.array(classes)[numbers])
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with data and models of one's own, and without a standard set."""
    torch.manual_seed(1)
    for name in ("own.npz", "public.npz"):
        arrays(tmp_path / name)
    (tmp_path / "models_of_mine.py").write_text(MODELS_OF_MINE, encoding="utf-8")
    (tmp_path / "unfinished_models.py").write_text("x = (", encoding="utf-8")
    for name in ("models_of_mine", "unfinished_models"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delenv("DITHER_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(argv) == 0
    captured = capsys.readouterr()
    # On a slow machine progress is shown.
    assert all(line.startswith("training: ") for line in captured.err.splitlines())
    return captured.out


def as_json(argv: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what a command prints as JSON, which knows neither NaN nor Infinity."""

    def refuse(word: str) -> float:
        raise AssertionError(word)

    found: dict[str, Any] = json.loads(run([*argv, "--json"], capsys), parse_constant=refuse)
    return found


def made_of(argv: list[str], capsys: pytest.CaptureFixture[str]) -> Plan:
    """Run a command, and return the plan that it leaves in the folder of the run."""
    run([*argv, "--quiet", "--run-dir", "run"], capsys)
    return Plan.from_json(Path("run/plan.json").read_text(encoding="utf-8"))


def stop(*_: object, **__: object) -> None:
    raise AssertionError("this should not have been called")


def rows(out: str) -> dict[str, list[str]]:
    """Return the rows of the table that was printed, by their first cell."""
    lines = [line for line in out.splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    return {first: rest for first, *rest in cells}


def test_digits_are_learnt(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    before = {path.name for path in folder.iterdir()}
    out = run(["train", "--steps", "6"], capsys)
    assert out.startswith("setting        value ")
    assert re.search(r"^delta +6.954e-05 +1/\(10·n\)$", out, re.MULTILINE)
    assert re.search(r"^steps +6 +given$", out, re.MULTILINE)
    assert "test accuracy" in out
    found = rows(out)
    assert list(found) == ["uniform"]
    epsilon, accuracy, loss = map(float, found["uniform"])
    assert 2.98 <= epsilon <= 3.0
    assert 0.0 <= accuracy <= 1.0
    assert loss > 0.0
    assert "The model is (ε = " in out
    assert "n = 1,438" in out
    assert "SEEDED" not in out
    assert {path.name for path in folder.iterdir()} == before


def test_json_and_text_of_a_seeded_run_are_the_same_and_say_that_it_is_seeded(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    before = {path.name for path in folder.iterdir()}
    argv = [*DIGITS, "--seed", "3"]
    text = run(argv, capsys)
    found = as_json([*argv, "--plot", "runs.png", "--run-dir", "run"], capsys)
    assert list(found) == ["run", "recipe", "statement"]
    assert (found["recipe"]["steps"], found["recipe"]["reasons"]["steps"]) == (6, "given")
    _, accuracy, loss = rows(text)["uniform"]
    assert f"{found['run']['metrics']['accuracy']:.4f}" == accuracy
    assert f"{found['run']['metrics']['loss']:.4f}" == loss
    assert found["run"]["metrics"]["accuracy"] > 0.1  # which is what guessing gives
    assert found["run"]["steps"] == 6
    assert found["run"]["epsilon"] <= 3.0
    assert found["statement"] in text
    assert "SEEDED with 3:" in found["statement"]
    assert found["run"]["plan"][:16] in found["statement"]
    # The picture and the folder of the run are there, and nothing else is.
    assert {path.name for path in folder.iterdir()} == {*before, "runs.png", "run"}
    assert (folder / "runs.png").read_bytes().startswith(b"\x89PNG")
    check_run_folder(folder / "run", found["run"])


def check_run_folder(run_dir: Path, summary: dict[str, Any]) -> None:
    names = {path.name for path in run_dir.iterdir()}
    kept = {"checkpoint.safetensors", "ledger.sqlite", "ledger.sqlite.mark", "run.json"}
    written = {"plan.json", "recipe.json", "history.jsonl", "result.json", "model.safetensors"}
    assert names == kept | written | {"model.json"}
    plan = Plan.from_json((run_dir / "plan.json").read_text(encoding="utf-8"))
    assert plan.fingerprint == summary["plan"]
    assert plan.bound.epsilon == summary["epsilon"]
    result = json.loads((run_dir / "result.json").read_text(encoding="utf-8"))
    assert result["metrics"] == summary["metrics"]
    assert result["seed"] == 3
    lines = (run_dir / "history.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert json.loads(lines[-1])["metrics"] == summary["metrics"]
    model, test = MODELS["linear"]((1, 8, 8), 10), load("digits").test
    assert test is not None
    model.load_state_dict(load_file(run_dir / "model.safetensors"))
    with torch.no_grad():
        right = model(test.inputs).argmax(1) == test.targets
    assert float(right.double().mean()) == pytest.approx(summary["metrics"]["accuracy"])
    loaded = dither.load(run_dir)
    predicted = loaded.predict(test.inputs.numpy()) == np.array(test.classes)[test.targets]
    assert predicted.mean() == pytest.approx(summary["metrics"]["accuracy"])
    assert (loaded.privacy.epsilon, loaded.privacy.is_upper_bound) == (summary["epsilon"], True)


def test_without_a_seed_every_run_is_another(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*own(), "--public-test", "public.npz"]
    one, two = as_json(argv, capsys), as_json(argv, capsys)
    assert one["run"]["plan"] == two["run"]["plan"]
    assert one["run"]["metrics"]["loss"] != two["run"]["metrics"]["loss"]
    assert one["statement"] == two["statement"]
    assert "SEEDED" not in one["statement"]


@pytest.mark.parametrize("seed", ["0", "-7", "123456789012345678901234567890"])
def test_any_whole_number_is_a_seed(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*own(), "--public-test", "public.npz", "--seed", seed]
    one, two = as_json(argv, capsys), as_json(argv, capsys)
    assert one == two
    assert f"SEEDED with {seed}:" in " ".join(one["statement"].split())


def test_quiet_is_one_line_with_the_claim_and_what_was_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = run([*own(), "--quiet"], capsys)
    assert out.count("\n") == 1
    assert re.match(r"\(ε = \S+, δ = 0.00167\)-differentially private", out)
    assert "accuracy" not in out
    out = run([*own(), "--quiet", "--public-test", "public.npz"], capsys)
    assert out.count("\n") == 1
    measured = r", test accuracy [01]\.\d{4}, test loss \d+\.\d{4}; NOT PROVEN: the set of classes "
    assert re.search(measured, out)
    assert out.endswith(
        f"taken as public: the number of records, n = {RECORDS}, counted in the data\n"
    )


def test_a_picture_is_all_that_plot_writes(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    before = {path.name for path in folder.iterdir()}
    out = run([*own(), "--plot", "runs.png"], capsys)
    assert out.endswith("The figure is in runs.png.\n")
    assert (folder / "runs.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in folder.iterdir()} == {*before, "runs.png"}


@pytest.mark.parametrize(
    ("plot", "message"),
    [
        ("runs.txt", "plot must end in one of .pdf, .png, .svg, got 'runs.txt'"),
        ("no/such/runs.png", "plot must be in an existing directory, got 'no/such/runs.png'"),
    ],
)
def test_a_bad_place_for_the_picture_is_refused_before_anything_is_read(
    plot: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dither.data.load", stop)
    monkeypatch.setattr("dither.training.train", stop)
    assert message in error_line([*own(), "--plot", plot], capsys)


def test_a_folder_in_use_is_refused_and_stays_as_it_is(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "result.json").write_text("mine", encoding="utf-8")
    for name in ("run", "own.npz"):
        line = error_line([*own(), "--quiet", "--run-dir", name], capsys)
        assert f"must be new or empty, got '{name}': --resume continues it" in line
    assert [path.name for path in (folder / "run").iterdir()] == ["result.json"]
    assert (folder / "run" / "result.json").read_text(encoding="utf-8") == "mine"
    assert load(folder / "own.npz").train.classes == ("3", "8")


def test_a_new_folder_is_made_with_those_above_it(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    run([*own(), "--quiet", "--run-dir", "runs/of/mine"], capsys)
    assert (folder / "runs" / "of" / "mine" / "model.safetensors").stat().st_size > 0


def test_the_options_make_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*own(), "--schedule", "linear:start=1,end=0.5", "--warmup", "2", "--noise", "matched"]
    argv += ["--epsilon", "2", "--delta", "1e-4", "--clip-norm", "0.25", "--sampling", "fixed"]
    argv += ["--clipping", "flat"]
    assert made_of(argv, capsys) == dither.plan(
        epsilon=2.0,
        delta=1e-4,
        dataset_size=RECORDS,
        batch_size=20,
        steps=4,
        clip_norm=0.25,
        stepsizes=Warmup(Linear(1.0, 0.5), 2),
        noise="matched",
        sampling="fixed",
    )


def test_epochs_are_counted_in_records(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--batch-size", "25", "--model", "linear", "--noise", "uniform", "--epochs", "1.5"]
    plan = made_of(["train", "--data", "own.npz", *argv], capsys)
    assert plan.steps == math.ceil(1.5 * RECORDS / 25)


def test_fixed_sampling_is_in_the_statement(capsys: pytest.CaptureFixture[str]) -> None:
    out = run([*own(), "--sampling", "fixed"], capsys)
    assert re.search(r"^sampling +fixed +given$", out, re.MULTILINE)
    assert "replace one record" in " ".join(out.split())
    assert "20 distinct records" in " ".join(out.split())


def test_correlated_noise_is_in_the_statement(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    argv = ["train", "--model", "linear", "--steps", "24", "--batch-size", "20", "--epsilon", "8"]
    run_dir = tmp_path / "run"
    argv += ["--sampling", "cyclic"]
    assert main([*argv, "--noise", "correlated", "--run-dir", str(run_dir)]) == 0
    captured = capsys.readouterr()
    assert "warning" not in captured.err
    made = Plan.from_json((run_dir / "plan.json").read_text(encoding="utf-8"))
    assert (made.sampling, made.bands > 1) == ("cyclic", True)
    out = " ".join(captured.out.split())
    assert f"assigned to one of {made.bands} subsets" in out
    assert "optimizer momentum" in out
    argv[argv.index("20")] = "1438"  # all records
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main([*argv, "--noise", "correlated"]) == 0
    captured = capsys.readouterr()
    assert "dither train: warning: correlated noise gains nothing over optimal noise here" in (
        captured.err
    )
    assert "subsets" not in captured.out
    table = captured.out.split("Training:")[0]
    assert re.search(r"^noise +Optimal.* gains nothing over optimal noise here$", table, re.M)
    assert "│ Optimal" in table
    assert "│ correlated" not in table


def test_a_full_batch_is_in_the_statement(capsys: pytest.CaptureFixture[str]) -> None:
    out = " ".join(run([*own(), "--batch-size", str(RECORDS)], capsys).split())
    assert "all records" in out


def test_optimizers_averages_and_the_noise_change_the_model(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    seen = {}
    for k, options in enumerate(
        ("", "--optimizer sgd", "--learning-rate 0.5", "--averaging ema", "--averaging tail")
    ):
        run([*own(), "--quiet", "--seed", "3", "--run-dir", str(k), *options.split()], capsys)
        weights = load_file(folder / str(k) / "model.safetensors")
        seen[options] = tuple(weights["1.weight"].flatten().tolist())
    assert len(set(seen.values())) == 5


def test_a_share_of_the_budget_chooses_the_learning_rate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = as_json([*own(), "--tune", "0.3"], capsys)
    assert found["recipe"]["tune"] == 0.3
    assert "steps chose the learning rate, and are included in ε" in found["statement"].replace(
        "\n", " "
    )


def test_by_default_the_private_model_is_trained_alone(capsys: pytest.CaptureFixture[str]) -> None:
    out = run([*DIGITS, "--noise", "matched"], capsys)
    assert list(rows(out)) == ["matched"]
    assert "no clipping" not in out


@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
def test_models_by_name(name: str, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    argv = ["train", "--steps", "1", "--batch-size", "8", "--noise", "uniform"]
    run([*argv, "--model", name, "--quiet", "--run-dir", "run"], capsys)
    weights = load_file(folder / "run" / "model.safetensors")
    assert weights.keys() == MODELS[name]((1, 8, 8), 10).state_dict().keys()


def test_a_model_of_ones_own_is_called_with_shape_and_classes(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    path = [*sys.path]
    argv = [*own(), "--model", "models_of_mine:small", "--quiet", "--run-dir", "run"]
    out = run(argv, capsys)
    assert out.startswith("called with (4,) 2\n")
    assert sys.path == path
    weights = load_file(folder / "run" / "model.safetensors")
    assert {*weights} == {"0.weight", "0.bias", "2.weight", "2.bias"}


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_of_private_data_nothing_is_printed_but_what_is_public(
    form: tuple[str, ...], capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """Other records and labels, and another true n: the same words to the last letter."""
    said, written = [], []
    path = folder / "private.npz"
    for seed, records, classes in ((1, RECORDS, (313, 838)), (2, 47, (414, 939))):
        data = load(arrays(path, seed=seed, records=records, classes=classes)).train
        x, y = data.inputs.numpy(), np.array(classes)[data.targets.numpy()]
        # A test part beside the records was not declared public.
        np.savez(path, x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
        argv = [*own(path.name), "--dataset-size", "50", "--run-dir", f"run{seed}", *form]
        said.append(run(argv, capsys))
        names = ("plan.json", "recipe.json", "history.jsonl", "result.json")
        written.append([(folder / f"run{seed}" / name).read_text("utf-8") for name in names])
    assert said[0] == said[1]
    assert written[0] == written[1]
    everything = said[0] + "".join(written[0]).replace('"metrics": {}', "")
    for word in ("313", "47", "60", "no clipping", "optimal"):
        assert not re.search(rf"\b{word}\b", everything)
    assert "accuracy" not in everything.replace("No accuracy: give public records", "")
    assert "loss" not in everything


def test_without_public_records_it_says_why_there_is_no_accuracy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = run(own(), capsys)
    assert list(rows(out)) == ["uniform"]
    assert "No accuracy: give public records to evaluate on with --public-test." in out
    assert as_json(own(), capsys)["run"]["metrics"] == {}


def test_public_records_are_measured_with_their_classes_by_name(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    arrays(folder / "private.npz", records=300)
    both = load(arrays(folder / "both.npz", seed=9)).train
    # Only one class: on its own it would be class 0.
    ones = both.targets == 1
    np.savez(folder / "eights.npz", x=both.inputs[ones], y=np.full(int(ones.sum()), 8))
    argv = ["train", "--data", "private.npz", "--model", "linear", "--noise", "uniform"]
    argv += ["--steps", "60", "--batch-size", "100", "--epsilon", "50", "--seed", "1"]
    found = {
        name: as_json([*argv, "--public-test", name], capsys)["run"]["metrics"]
        for name in ("both.npz", "eights.npz")
    }
    assert found["both.npz"]["accuracy"] > 0.9
    assert found["eights.npz"]["accuracy"] > 0.9
    out = run([*own(), "--public-test", "both.npz"], capsys)
    assert list(rows(out)) == ["uniform"]
    assert "No accuracy" not in out
    assert "test accuracy" in out


def test_what_is_infinite_or_no_number_is_null(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    np.savez(folder / "gaps.npz", x=np.full((1, 4), 3e38), y=[3])
    found = as_json([*own(), "--seed", "1", "--public-test", "gaps.npz"], capsys)
    assert found["run"]["metrics"]["loss"] is None


def test_n_may_be_another_number_under_poisson_sampling_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = run([*own(), "--dataset-size", "70"], capsys)
    assert re.search(r"^dataset_size +70 +given$", out, re.MULTILINE)
    line = error_line([*own(), "--dataset-size", "70", "--sampling", "fixed", "--quiet"], capsys)
    assert "the data must have the plan's dataset_size, 70 records, under fixed sampling" in line


def test_the_variable_says_where_the_standard_sets_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DITHER_DATA", "there")
    assert "in 'there/mnist', 'there/MNIST/raw'" in error_line(["train", "--data", "mnist"], capsys)


def test_interrupting_it_is_no_failure_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dither.training.train", interrupted)
    assert main([*own(), "--quiet"]) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "dither train: stopped\n"


def test_a_folder_that_cannot_be_made_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*own(), "--quiet", "--run-dir", "own.npz/run"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "own.npz/run" in captured.err


def test_the_help_tells_every_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as exit_:
        main(["train", "--help"])
    assert exit_.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    for option, default in (
        ("data", "(default: digits)"), ("epsilon", "default: 1 for a table, else 3"),
        ("model", "(default: auto)"),
    ):  # fmt: skip
        described = out.rpartition(f" --{option} ")[2].partition(" --")[0]
        assert default in described, option
    assert "dither chooses what is not given" in out
    assert "a seeded run is not private to anyone who can guess the seed" in out
    assert "$DITHER_DATA" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--epsilon -1", "epsilon must be a positive, finite number, got -1"),
        ("--epsilon nan", "epsilon must be a positive, finite number, got nan"),
        ("--epsilon much", "argument --epsilon: must be a number, got 'much'"),
        ("--delta 2", "delta must be strictly between 0 and 1, got 2"),
        ("--delta 0", "delta must be strictly between 0 and 1, got 0"),
        ("--batch-size 61", "batch_size must be at most dataset_size = 60, got 61"),
        ("--batch-size 2.5", "batch_size must be"),
        ("--batch-size 0", "batch_size must be"),
        ("--dataset-size 19", "batch_size must be at most dataset_size = 19, got 20"),
        ("--dataset-size many", "argument --dataset-size: must be a number, got 'many'"),
        ("--clip-norm 0", "clip_norm must be a positive, finite number, got 0"),
        ("--clip-norm inf", "clip_norm must be a positive, finite number, got inf"),
        ("--noise pink", "argument --noise: invalid choice: 'pink'"),
        ("--sampling shuffle", "argument --sampling: invalid choice: 'shuffle'"),
        ("--schedule bumpy", "schedule must be one of constant, cosine"),
        ("--schedule linear:start=1", "schedule linear needs end"),
        ("--warmup 0", "warmup must be"),
        ("--steps 0", "steps must be"),
        ("--steps 1e9", "steps must be at most 100,000,000"),
        ("--epochs 2", "argument --epochs: not allowed with argument --steps"),
        ("--epochs 30", "argument --epochs: not allowed with argument --steps"),
        ("--seed 1.5", "seed must be"),
        ("--seed nan", "seed must be"),
        ("--seed x", "argument --seed: must be a number, got 'x'"),
        ("--optimizer lion", "argument --optimizer: invalid choice: 'lion'"),
        ("--averaging mean", "argument --averaging: invalid choice: 'mean'"),
        ("--tune 0.6", "tune must be at most 0.5, got 0.6"),
        ("--public-test none.npz", "'none.npz' was not found: looked for 'none.npz' and 'data/"),
        ("--public-test own.npz", "public_test must be another file than the private data"),
        ("--public-test digits", "must have classes of the training records, got '0'"),
        ("--public-test sevens.npz", "must have classes of the training records, got '7'"),
        ("--public-test wide.npz", "shape of the training records, (4,), got (6,)"),
        ("--data none.npz", "'none.npz' was not found: looked for 'none.npz' and 'data/none.npz'"),
        ("--data mnist --data-dir here", "mnist was not found: looked for"),
        ("--data mnist --data-dir here", "in 'here/mnist', 'here/MNIST/raw'; set DITHER_DATA"),
        ("--data mnist", "in 'data/mnist', 'data/MNIST/raw'; set DITHER_DATA or --data-dir"),
        ("--data digits --public-test own.npz", "public_test is for data of your own: digits has"),
        ("--data own.csv", "schema must be given for a table, got 'own.csv' alone: begin one with"),
        (
            "--schema schema.toml",
            "schema is for tables, .csv, .csv.gz, .parquet, got 'schema",
        ),
        ("--holdout 0.1", "holdout is for tables, .csv, .csv.gz, .parquet, got 0.1 for 'own.npz'"),
        ("--model gam", "model must be one of cnn, linear, mlp or MODULE:FUNCTION, got 'gam'"),
        ("--data digits --classes 0,1", "classes is for data of your own: digits has"),
        ("--classes 0", "classes must be two or more different names, got '0'"),
        ("--classes 7,9", "classes must include every class of the records, got '7, 9' without 2"),
        ("--model tree", "model must be one of cnn, linear, mlp or MODULE:FUNCTION, got 'tree'"),
        ("--model :small", "model must be one of cnn, linear, mlp or MODULE:FUNCTION, got"),
        ("--model .mine:small", "model must be one of cnn, linear, mlp or MODULE:FUNCTION, got"),
        (
            "--model nowhere_to_be:found",
            "model must be importable, got 'nowhere_to_be:found'",
        ),
        ("--model models_of_mine:large", "has no attribute 'large'"),
        ("--model models_of_mine:", "model must be importable, got 'models_of_mine:'"),
        ("--model unfinished_models:x", "was never closed (unfinished_models.py, line 1)"),
        ("--model models_of_mine:number", "must be a function, got 'models_of_mine:number': 3"),
        (
            "--model models_of_mine:narrow",
            "must take records of shape (4,), got 'models_of_mine:na",
        ),
        (
            "--model models_of_mine:unfit",
            "must return 2 numbers per record, shape (2, 2)",
        ),
        (
            "--model models_of_mine:asking",
            "must take records of shape (4,), got 'models_of_mine:as",
        ),
        ("--model models_of_mine:nothing", "model must be a Module, got None"),
        ("--model models_of_mine:word", "model must be a Module, got 'a model'"),
        ("--model models_of_mine:normed", "1 (BatchNorm1d) normalises over the records"),
        ("--model models_of_mine:mixing", "model must treat every record by itself"),
        ("--model cnn", "must have images of channels × height × width"),
        ("--plotting runs.png", "unrecognized arguments: --plotting runs.png"),
        ("--device gpu", "invalid choice: 'gpu'"),
    ],
)
def test_bad_input_is_one_line(
    options: str, message: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    arrays(folder / "sevens.npz", classes=(3, 7))
    arrays(folder / "wide.npz", columns=6)
    before = {path.name for path in folder.iterdir()}
    # Planning with q = 1 takes no time; what was given last counts.
    argv = [*own(), "--batch-size", str(RECORDS), "--quiet", "--run-dir", "run"]
    argv += ["--batch-size", "20"] if "size" in options else []
    assert message in error_line([*argv, *options.split()], capsys)
    assert {path.name for path in folder.iterdir()} == before


def test_public_records_have_finite_numbers(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    np.savez(folder / "holes.npz", x=[[0.0, 1.0, 2.0, np.nan]], y=[3])
    told = error_line([*own(), "--public-test", "holes.npz"], capsys)
    assert "public_test must have finite numbers only, got 'holes.npz'" in told


def test_what_was_read_off_stays_read_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert "NOT PROVEN" in run([*own(), "--run-dir", "run"], capsys)
    known = ["--classes", "3,8", "--dataset-size", str(RECORDS)]
    assert "NOT PROVEN" in run([*own(), *known, "--run-dir", "run", "--resume"], capsys)


@pytest.mark.filterwarnings("default:the dataset has another number")
def test_warnings_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*own(), "--quiet", "--dataset-size", str(5 * RECORDS)]) == 0
    told = capsys.readouterr().err
    assert told.startswith("dither train: warning: the dataset has another number of records")
    assert told.count("\n") == 1


def test_a_gpu_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    line = error_line(["train", "--device", "cuda"], capsys)
    assert "device must be cpu where torch finds no GPU, got 'cuda'" in line
