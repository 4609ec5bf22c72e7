"""Claim: at the same proven (ε, δ), correlated noise trains better models than optimal noise.

Uniform, optimal and correlated noise at δ = 1e-5 with clip norm 1, step sizes that fall to a
thousandth along a cosine, SGD, the last iterate:

- logistic regression on the pixels of Fashion-MNIST and MNIST, 600 steps of 256 records, without
  and with momentum 0.9, which optimal and correlated noise then know of;
- a linear model on 1,000 projected scattering features of CIFAR-10, which use no data;
- the CNN of ``reproduction.network`` with 26,010 parameters on Fashion-MNIST, likewise;
- equal compute: logistic regression on Fashion-MNIST with 153,600 record-gradients in all, in
  batches of 64 to 3,840.

Records are sampled as the plan says: cyclically with correlated noise, else by Poisson sampling.
For each of these and each noise the rate is the best of the same grid, measured on the last 10,000
training records after training on the others; then five seeds on all of them, measured on the test
set. The choice itself is not counted, as is usual when methods are compared on public data.

Run by ``make experiments`` (or ``python -m experiments.correlated``) with the data in
``$DITHER_DATA``: about two hours of one core, and ten minutes for the features of CIFAR-10, which
are kept in ``$DITHER_CACHE``. Every run is saved as it ends, and a second call goes on where the
first was left. Writes correlated.json and correlated.png to records/.
"""

import argparse
import json
import math
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import rich.progress
import torch
from benchmarks.recording import origin
from matplotlib.figure import Figure
from torch import Tensor

import dither
from dither.data import load
from dither.noise import Correlated, Optimal
from dither.progress import Progress
from dither.reports import save_figure
from dither.schedules import Cosine
from dither.training import TrainResult, softmax_loss, train_linear
from experiments.reproduction.features import FeatureSet, features, prepare
from experiments.reproduction.network import cnn

RECORDS = Path(__file__).parent / "records"
RUNS, RESULT = RECORDS / "correlated.jsonl", RECORDS / "correlated.json"
COMMAND = "python -m experiments.correlated"

NOISES = ("uniform", "optimal", "correlated")
SEEDS = range(5)
DELTA, CLIP_NORM, HELD_OUT = 1e-5, 1.0, 10_000
RECORD_GRADIENTS = 256 * 600
FEATURES = FeatureSet("cifar10", dimension=1000, length=10.0, shuffled=True)
"""About as long as the pixels of Fashion-MNIST."""

RATES = {
    "linear": tuple(8.0 * 2.0 ** (k / 2.0) for k in range(-2, 5)),
    "beside": tuple(8.0 * 2.0 ** (k / 2.0) for k in range(-4, 3)),
    "compute": tuple(8.0 * 2.0**k for k in range(-3, 4)),
    "cnn": tuple(4.0 * 2.0 ** (k / 2.0) for k in range(-1, 4)),
}
"""The first step's size, which with momentum is spread over later ones; for equal compute, times
√(m/256)."""
TRIALS = 2
"""How many seeds choose the rate."""


@dataclass(frozen=True)
class Setting:
    """What the noises are compared on.

    Attributes:
        dataset: its name.
        model: "linear" or "cnn".
        epsilon: ε.
        batch_size: m.
        steps: T.
        momentum: of the optimizer.
        grid: which of `RATES` are tried.
    """

    dataset: str
    model: str
    epsilon: float
    batch_size: int = 256
    steps: int = 600
    momentum: float = 0.0
    grid: str = "linear"

    @property
    def rates(self) -> tuple[float, ...]:
        """The rates that are tried."""
        return tuple(rate * math.sqrt(self.batch_size / 256) for rate in RATES[self.grid])


@dataclass(frozen=True)
class Run:
    """One training run: a trial on the held-out records, or a seed on the test set."""

    setting: Setting
    noise: str
    rate: float
    seed: int
    is_trial: bool


LINEAR = tuple(
    Setting("fashion-mnist", "linear", epsilon, momentum=momentum)
    for momentum, epsilon in product((0.0, 0.9), (0.5, 1.0, 3.0))
)
CNN = tuple(
    Setting("fashion-mnist", "cnn", epsilon, momentum=momentum, grid="cnn")
    for momentum, epsilon in ((0.9, 1.0), (0.0, 1.0), (0.9, 0.5))
)
BESIDE = tuple(
    Setting(dataset, "linear", epsilon, grid="beside")
    for dataset, epsilon in product(("mnist", "cifar10"), (1.0, 3.0))
)
COMPUTE = tuple(
    Setting("fashion-mnist", "linear", 1.0, m, RECORD_GRADIENTS // m, grid="compute")
    for m in (64, 256, 1024, 3840)
)
SETTINGS = {"linear": LINEAR, "cnn": CNN, "beside": BESIDE, "compute": COMPUTE}


@lru_cache(maxsize=1)
def data(dataset: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return inputs and classes for training, and for testing."""
    if dataset == "cifar10":
        held = features(FEATURES)
        return held.train, held.train_targets, held.test, held.test_targets
    split = load(dataset)
    test: Any = split.test
    return split.train.inputs, split.train.targets, test.inputs, test.targets


def parts(run: Run) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what a run trains on and is measured on: of a trial, training records only."""
    inputs, targets, test_inputs, test_targets = data(run.setting.dataset)
    if not run.is_trial:
        return inputs, targets, test_inputs, test_targets
    kept = len(inputs) - HELD_OUT
    return inputs[:kept], targets[:kept], inputs[kept:], targets[kept:]


@cache
def planned(setting: Setting, noise: str, dataset_size: int) -> dither.Plan:
    """Return the plan with step sizes that begin at 1: the noise is the same for all rates."""
    momentum = setting.momentum
    noises: dict[str, Any] = {
        "uniform": "uniform",
        "optimal": Optimal(momentum=momentum),
        "correlated": Correlated(momentum=momentum),
    }
    with warnings.catch_warnings():
        # Where correlation does not pay, the plan is that of optimal noise.
        warnings.filterwarnings("ignore", "correlated noise gains nothing", UserWarning)
        plan: dither.Plan = dither.plan(
            epsilon=setting.epsilon,
            delta=DELTA,
            dataset_size=dataset_size,
            batch_size=setting.batch_size,
            steps=setting.steps,
            clip_norm=CLIP_NORM,
            stepsizes=Cosine(1.0, 1e-3),
            noise=noises[noise],
        )
    return plan


def measure(run: Run) -> dict[str, Any]:
    """Train, and return the accuracy, what was planned and the time of the training."""
    torch.set_num_threads(1)
    inputs, targets, test_inputs, test_targets = parts(run)
    plan = planned(run.setting, run.noise, len(inputs))
    train = _train_cnn if run.setting.model == "cnn" else _train_linear
    begin = time.perf_counter()
    result = train(run, plan, inputs, targets, (test_inputs, test_targets))
    return {
        "accuracy": result.metrics["accuracy"],
        "epsilon": result.bound.epsilon,
        "bands": plan.bands,
        "noise_multiplier": float(plan.noise_multipliers[0]),
        "seconds": round(time.perf_counter() - begin, 2),
    }


def _train_cnn(
    run: Run, plan: dither.Plan, inputs: Tensor, targets: Tensor, test: tuple[Tensor, Tensor]
) -> TrainResult:
    torch.manual_seed(run.seed)
    momentum = run.setting.momentum
    return dither.train(
        cnn(),
        (inputs, targets),
        plan,
        optimizer=lambda parameters: torch.optim.SGD(
            parameters, lr=run.rate * (1.0 - momentum), momentum=momentum
        ),
        evaluate=dither.Public(test),
        every=run.setting.steps,
        progress=False,
        seed=run.seed,
    )


def _train_linear(
    run: Run, plan: dither.Plan, inputs: Tensor, targets: Tensor, test: tuple[Tensor, Tensor]
) -> TrainResult:
    scaled = dither.Plan.from_noise_multipliers(
        plan.noise_multipliers,
        delta=DELTA,
        dataset_size=plan.dataset_size,
        batch_size=plan.batch_size,
        clip_norm=plan.clip_norm,
        stepsizes=run.rate * plan.stepsizes,
        correlation=plan.correlation,
    )
    return train_linear(
        inputs.flatten(1),
        softmax_loss(targets.numpy(), 10),
        scaled,
        outputs=10,
        constant=1.0,
        momentum=run.setting.momentum,
        averaging=None,
        evaluate=dither.Public((test[0].flatten(1), test[1])),
        every=run.setting.steps,
        seed=run.seed,
    )


def trials(setting: Setting) -> list[Run]:
    """Return the runs that choose the rates of a setting."""
    return [
        Run(setting, noise, rate, seed, is_trial=True)
        for noise, rate, seed in product(NOISES, setting.rates, range(TRIALS))
    ]


def finals(setting: Setting, known: dict[Run, dict[str, Any]]) -> list[Run]:
    """Return five seeds of the best rate of every noise."""
    found = []
    for noise in NOISES:

        def score(rate: float, noise: str = noise) -> float:
            own = [r for r in trials(setting) if (r.noise, r.rate) == (noise, rate)]
            return mean(float(known[run]["accuracy"]) for run in own)

        best = max(setting.rates, key=score)
        found += [Run(setting, noise, best, seed, is_trial=False) for seed in SEEDS]
    return found


def read() -> dict[Run, dict[str, Any]]:
    """Return the runs that were saved."""
    if not RUNS.exists():
        return {}
    known = {}
    for line in RUNS.read_text(encoding="utf-8").splitlines():
        saved = json.loads(line)
        run = saved.pop("run")
        known[Run(Setting(**run.pop("setting")), **run)] = saved
    return known


def complete(runs: Iterable[Run], title: str) -> dict[Run, dict[str, Any]]:
    """Do what is not done yet, and save each run as it ends."""
    known = read()
    missing = [run for run in runs if run not in known]
    if any(run.setting.dataset == "cifar10" for run in missing):
        with rich.progress.Progress() as bar:
            prepare(FEATURES, bar)
    RECORDS.mkdir(exist_ok=True)
    with Progress(title, max(len(missing), 1)) as progress:
        for run in missing:
            found = known[run] = measure(run)
            with RUNS.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"run": asdict(run), **found}) + "\n")
            progress.update(None, lambda run=run, found=found: _text(run, found))  # type: ignore[misc]
    return known


def _text(run: Run, found: dict[str, Any]) -> str:
    own = run.setting
    return (
        f"{own.dataset} {own.model} m = {own.batch_size} ε = {own.epsilon:g} {run.noise} "
        f"rate {run.rate:.3g}: {100.0 * found['accuracy']:.2f} %, {found['seconds']:.0f} s"
    )


def table(settings: Sequence[Setting], known: dict[Run, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per setting: every noise, and how far correlated is ahead of optimal noise.

    Accuracies are in percent, with standard errors over the seeds; runs of one seed begin with the
    same model, so that the standard error of the difference is that of the seeds' differences.
    """
    rows = []
    for setting in settings:
        runs = finals(setting, known)
        values = {n: [100.0 * known[r]["accuracy"] for r in runs if r.noise == n] for n in NOISES}
        ahead = [a - b for a, b in zip(values["correlated"], values["optimal"], strict=True)]
        row: dict[str, Any] = asdict(setting)
        for noise in NOISES:
            first = next(run for run in runs if run.noise == noise)
            row[noise] = {
                **_summary(values[noise]),
                "rate": round(first.rate, 3),
                "is_at_edge": first.rate in (setting.rates[0], setting.rates[-1]),
                **{key: known[first][key] for key in ("epsilon", "bands", "noise_multiplier")},
            }
        rows.append({**row, "ahead": _summary(ahead)})
    return rows


def _summary(values: list[float]) -> dict[str, float]:
    return {
        "mean": round(mean(values), 3),
        "error": round(stdev(values) / math.sqrt(len(values)), 3),
    }


def markdown(tables: dict[str, list[dict[str, Any]]]) -> str:
    """Return the tables as they are in docs/experiments.md."""
    header = "| | m | T | ε | uniform | optimal | correlated | bands | ahead of optimal |"
    lines = [header, "| --- |" + " ---: |" * 8]
    for row in (row for rows in tables.values() for row in rows):
        name = f"{row['dataset']}, {row['model']}" + (", momentum" if row["momentum"] else "")
        numbers = [_entry(row[noise]) for noise in NOISES]
        lines.append(
            f"| {name} | {row['batch_size']:,} | {row['steps']:,} | {row['epsilon']:g} | "
            f"{' | '.join(numbers)} | {row['correlated']['bands']} | {_entry(row['ahead'], '+')} |"
        )
    return "\n".join(lines) + "\n"


def _entry(found: dict[str, float], sign: str = "") -> str:
    return f"{found['mean']:{sign}.2f} ± {found['error']:.2f}"


def draw(tables: dict[str, list[dict[str, Any]]]) -> Figure:
    """Draw accuracy against ε, with and without momentum and of the CNN, and against m."""
    figure = Figure(figsize=(14.0, 3.8), layout="constrained")
    linear = tables["linear"]
    panels = (
        ("logistic regression", [row for row in linear if not row["momentum"]], "epsilon", "ε"),
        ("with momentum 0.9", [row for row in linear if row["momentum"]], "epsilon", "ε"),
        ("CNN, momentum 0.9", [row for row in tables["cnn"] if row["momentum"]], "epsilon", "ε"),
        (
            "equal compute, ε = 1",
            tables["compute"],
            "batch_size",
            "m",
        ),
    )
    looks = (("#E69F00", "--"), ("#D55E00", ":"), ("#0072B2", "-"))
    for axes, (title, rows, key, label) in zip(figure.subplots(1, 4), panels, strict=True):
        own = sorted(rows, key=lambda row: float(row[key]))
        for noise, (colour, line) in zip(NOISES, looks, strict=True):
            axes.errorbar(
                [row[key] for row in own],
                [row[noise]["mean"] for row in own],
                [row[noise]["error"] for row in own],
                color=colour, linestyle=line, marker="o", capsize=3.0, label=noise,
            )  # fmt: skip
        axes.set(title=title, xlabel=label, ylabel="test accuracy, %", xscale="log")
        axes.set_xticks([row[key] for row in own], [f"{row[key]:g}" for row in own])
        axes.minorticks_off()
        axes.legend()
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Choose, measure, write the record and the picture, print the tables."""
    parser = argparse.ArgumentParser(prog=COMMAND)
    parser.add_argument("--only", nargs="*", choices=tuple(SETTINGS), default=list(SETTINGS))
    chosen = parser.parse_args(arguments).only
    known = read()
    for name in chosen:
        complete([run for own in SETTINGS[name] for run in trials(own)], f"choosing, {name}")
        known = read()
        wanted = [run for own in SETTINGS[name] for run in finals(own, known)]
        known = complete(wanted, f"measuring, {name}")
    tables = {name: table(SETTINGS[name], known) for name in chosen}
    print(markdown(tables))
    if set(chosen) != set(SETTINGS):
        return
    record = {
        **origin(COMMAND, ("torch", "numpy")),
        "seeds": list(SEEDS),
        "source": Path(__file__).read_text(encoding="utf-8"),
        "results": tables,
    }
    RESULT.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    save_figure(draw(tables), RECORDS / "correlated.png")


if __name__ == "__main__":
    main()
