"""Whole epochs of private training: dither against a plain PyTorch loop and three modes of Opacus.

MNIST with the CNN of the clipping benchmark, 256 records per step, all in one run on two threads,
alternating epochs, medians; then, on five models, a step against its parts called by hand.
Run by ``make bench`` (or ``python -m benchmarks.training``), with MNIST in ``$DITHER_DATA``; writes
a record and a picture.
"""

import json
import time
import warnings
from collections.abc import Callable
from copy import deepcopy
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.progress import track
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import dither
from benchmarks.clipping_models import CASES, case, losses, mnist_cnn
from benchmarks.recording import RESULTS, record
from dither import Plan, release
from dither.data import load
from dither.randomness import Source
from dither.reports import save_figure

EPOCHS, THREADS, BATCH, STEPS, WARM = 5, 2, 256, 30, 5
RECORDS = 15_360  # a quarter of MNIST: sixty steps per epoch
Epoch = Callable[[], None]


def plain(inputs: Tensor, targets: Tensor) -> Epoch:
    """A plain loop over shuffled batches of the tensors in memory."""
    model = mnist_cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def epoch() -> None:
        for index in torch.randperm(len(inputs)).split(BATCH):
            optimizer.zero_grad()
            losses(model(inputs[index]), targets[index]).mean().backward()
            optimizer.step()

    return epoch


def private(inputs: Tensor, targets: Tensor) -> Epoch:
    """A loop of one's own with dither."""
    model = mnist_cnn()
    steps = len(inputs) // BATCH
    plan = Plan.from_noise_multipliers(
        [1.0] * steps * (EPOCHS + 1), delta=1e-5, dataset_size=len(inputs), batch_size=BATCH
    )
    run = dither.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), plan, (inputs, targets)
    )
    batches = run.batches()

    def epoch() -> None:
        for _ in range(steps):
            x, y = next(batches)
            run.backward(losses(run.model(x), y))
            run.optimizer.step()
            run.optimizer.zero_grad()

    return epoch


def opacus(inputs: Tensor, targets: Tensor, mode: str) -> Epoch:
    """Opacus' own loop: Poisson sampling, one of its ways to the gradients, noise, clipping."""
    from opacus import PrivacyEngine

    model = mnist_cnn()
    engine = PrivacyEngine()
    criterion = torch.nn.CrossEntropyLoss()
    given: dict[str, Any] = {"criterion": criterion} if mode == "ghost" else {}
    made = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(inputs, targets), batch_size=BATCH),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode=mode,
        **given,
    )
    if mode == "ghost":
        module, optimizer, criterion, loader = made
    else:
        module, optimizer, loader = made

    def epoch() -> None:
        for x, y in loader:
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            optimizer.step()

    return epoch


METHODS: dict[str, Callable[[Tensor, Tensor], Epoch]] = {
    "plain": plain,
    "dither": private,
    "Opacus hooks": lambda x, y: opacus(x, y, "hooks"),
    "Opacus functorch": lambda x, y: opacus(x, y, "functorch"),
    "Opacus ghost": lambda x, y: opacus(x, y, "ghost"),
}


def epochs() -> dict[str, Any]:
    """Time complete epochs, every method in turn; the first epoch of each is not timed."""
    train = load("mnist").train
    inputs, targets = train.inputs[:RECORDS].clone(), train.targets[:RECORDS].clone()
    ready = {name: build(inputs, targets) for name, build in METHODS.items()}
    times: dict[str, list[float]] = {name: [] for name in ready}
    for turn in track(range(EPOCHS + 1), "epochs", transient=True):
        for name, epoch in ready.items():
            start = time.perf_counter()
            epoch()
            if turn:
                times[name].append(time.perf_counter() - start)
    seconds = {name: median(values) for name, values in times.items()}
    best = min(value for name, value in seconds.items() if name.startswith("Opacus"))
    return {
        "seconds an epoch": {name: round(value, 3) for name, value in seconds.items()},
        "times plain": {name: round(v / seconds["plain"], 2) for name, v in seconds.items()},
        "times faster than Opacus' best": round(best / seconds["dither"], 2),
    }


def overhead(name: str) -> dict[str, Any]:
    """Return what a step of a loop of one's own costs, against its parts called by hand.

    The parts are `clipped_sum`, `release` and the optimizer's step on the same batch; both are
    timed in turn, and so is a plain step. The first step, with its checks, is that of new models.
    """
    setting = case(name)
    size = len(setting.inputs)
    plan = Plan.from_noise_multipliers(
        [1.0] * (STEPS + WARM), delta=1e-5, dataset_size=size, batch_size=size
    )
    data = setting.inputs, setting.targets

    def prepared() -> tuple[dither.training.Private, Callable[[], None]]:
        model = deepcopy(setting.model)
        run = dither.make_private(model, torch.optim.SGD(model.parameters(), lr=0.01), plan, data)
        batches = run.batches()

        def step() -> None:
            x, y = next(batches)
            run.backward(losses(run.model(x), y))
            run.optimizer.step()
            run.optimizer.zero_grad()

        return run, step

    by_hand, plain_model = deepcopy(setting.model), deepcopy(setting.model)
    by_hand_optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.01)
    plain_optimizer = torch.optim.SGD(plain_model.parameters(), lr=0.01)
    index = torch.arange(size)

    def parts() -> None:
        x, y = (each.index_select(0, index) for each in data)
        total = dither.clipping.clipped_sum(by_hand, losses, x, y, clip_norm=1.0)
        noisy = release.release(
            total, clip_norm=1.0, noise_multiplier=1.0, batch_size=size,
            stream=Source().stream("noise", 0),
        )  # fmt: skip
        for key, parameter in by_hand.named_parameters():
            parameter.grad = noisy.gradients[key]
        by_hand_optimizer.step()
        by_hand_optimizer.zero_grad()

    def plain_step() -> None:
        x, y = (each.index_select(0, index) for each in data)
        losses(plain_model(x), y).mean().backward()
        plain_optimizer.step()
        plain_optimizer.zero_grad()

    first = [_seconds(prepared()[1]) for _ in range(5)]
    run, step = prepared()
    times: dict[str, list[float]] = {"loop": [], "parts": [], "plain": []}
    for turn in range(STEPS + WARM):
        for key, call in (("loop", step), ("parts", parts), ("plain", plain_step)):
            seconds = _seconds(call)
            if turn >= WARM:
                times[key].append(seconds)
    run.close()
    loop, by_parts, plain_one = (median(times[key]) for key in ("loop", "parts", "plain"))
    return {
        "milliseconds": round(1000.0 * loop, 2),
        "times its parts": round(loop / by_parts, 2),
        "times plain": round(loop / plain_one, 2),
        "first step, times plain": round(median(first) / plain_one, 2),
    }


def _seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def draw(found: dict[str, Any]) -> Figure:
    """Draw the times relative to a plain epoch."""
    figure = Figure(figsize=(5.5, 3.8), layout="constrained")
    axes = figure.subplots()
    times = found["times plain"]
    colours = ["#999999", "#0072b2", "#e69f00", "#d55e00", "#cc79a7"]
    axes.bar_label(axes.bar(list(times), list(times.values()), color=colours), fmt="%.2f")
    axes.set(title="an epoch of MNIST / a plain one; lower is better")
    axes.tick_params(axis="x", rotation=20)
    return figure


def main() -> None:
    """Measure everything, print a summary, and write the record and the picture."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    found = epochs()
    results = {
        "setting": f"{THREADS} threads, {RECORDS:,} records of MNIST, batches of {BATCH}, epochs "
        f"alternating, median of {EPOCHS}",
        "epochs": found,
        "steps": {name: overhead(name) for name in track(list(CASES), "steps", transient=True)},
    }
    record("training", "python -m benchmarks.training", ("torch", "opacus"), results)
    save_figure(draw(found), RESULTS / "training.png")
    print(json.dumps(results, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=UserWarning)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    main()
