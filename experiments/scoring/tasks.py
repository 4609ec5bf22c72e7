"""The tasks: on some the rule was developed, on others it is scored.

A task is a model, records to train with, and a number of record-gradients (batch size × steps) that
every competitor may spend. ``validation`` are other records of the training file, with which
nobody trains: the grid chooses by them. ``test`` are records of the test file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import make_classification
from sklearn.metrics import r2_score, roc_auc_score
from torch import Tensor, nn
from torch.nn import functional

from dither.data import load
from dither.training.models import cnn as preset_cnn
from experiments.reproduction.features import cache
from experiments.scoring import models, tables

Examples = tuple[Tensor, Tensor]
_HELD_OUT = 5_000  # records for the choice of a grid, and records to test with
_TOKENS, _LENGTH, _LANGUAGES = 16, 16, 4


class Parts(NamedTuple):
    """The records of a task."""

    train: Examples
    validation: Examples
    test: Examples


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        name: of the task.
        title: in tables and pictures.
        data: the name of the data, for `read`.
        records: n, how many records to train with.
        compute: the number of record-gradients of one training.
        build: makes the model.
        opacus: which of Opacus' examples is the nearest, for `competitors.OPACUS`.
        loss: for `dither.train`.
        metric: "accuracy", "AUC" or "R²".
    """

    name: str
    title: str
    data: str
    records: int
    compute: int
    build: Callable[[], nn.Module]
    opacus: str
    loss: str = "cross_entropy"
    metric: str = "accuracy"

    def parts(self) -> Parts:
        """Return the records."""
        return read(self.data, self.records)

    def score(self, model: nn.Module, examples: Examples) -> float:
        """Return the metric in points, from 0 to 100; an R² below 0 is 0."""
        inputs, targets = examples
        with torch.no_grad():
            outputs = torch.cat([model(part) for part in inputs.split(1000)]).nan_to_num()
        if self.metric == "accuracy":
            return 100.0 * float((outputs.argmax(1) == targets).double().mean())
        if self.metric == "AUC":
            margin = (outputs[:, 1] - outputs[:, 0]).nan_to_num()
            return 100.0 * float(roc_auc_score(targets.numpy(), margin.numpy()))
        found = outputs[:, 0].double().clamp(-1e3, 1e3)
        return 100.0 * max(0.0, float(r2_score(targets.numpy(), found.numpy())))


@lru_cache(maxsize=3)
def read(data: str, records: int) -> Parts:
    """Return n records to train with, and those of the two other parts; they are cached on disk.

    Which records these are is drawn once, with a fixed seed.
    """
    path = cache() / "recipe" / f"{data}-{records}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn = _draw(data, records)
        arrays: dict[str, Any] = {
            f"{i}{j}": drawn[i][j].numpy() for i in range(3) for j in range(2)
        }
        written = path.with_suffix(f".{np.random.default_rng().integers(2**62)}.npz")
        np.savez(written, **arrays)
        written.replace(path)
    with np.load(path) as kept:
        train, validation, test = (
            (torch.from_numpy(kept[f"{i}0"]), torch.from_numpy(kept[f"{i}1"])) for i in range(3)
        )
    return Parts(train, validation, test)


def _draw(data: str, records: int) -> Parts:
    inputs, targets, test_inputs, test_targets = _READERS[data]()
    rng = np.random.default_rng(24)
    order, test = (torch.from_numpy(rng.permutation(len(each))) for each in (inputs, test_inputs))
    chosen, other, test = order[:records], order[records:][:_HELD_OUT], test[:_HELD_OUT]
    return Parts(
        (inputs[chosen], targets[chosen]),
        (inputs[other], targets[other]),
        (test_inputs[test], test_targets[test]),
    )


def _images(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    both = load(name)
    if both.test is None:
        raise ValueError(f"{name} must have test records")
    return both.train.inputs, both.train.targets, both.test.inputs, both.test.targets


def _cifar() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return CIFAR-10 (JPEG) at half the resolution, which makes convolutions four times faster."""
    inputs, targets, test_inputs, test_targets = _images("cifar10")
    small, test_small = (
        4.0 * (functional.avg_pool2d(each, 2) - 0.5) for each in (inputs, test_inputs)
    )
    return small, targets, test_small, test_targets


def _table(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inputs, targets, test_inputs, test_targets = map(torch.from_numpy, tables.read(name))
    return inputs, targets, test_inputs, test_targets


def _clusters() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a synthetic table: clusters of four classes in 20 columns, about ±1 wide."""
    X, y = make_classification(
        20_000, 20, n_informative=10, n_classes=4, n_clusters_per_class=2, random_state=24
    )
    inputs, targets = torch.from_numpy(X / 3.0).float().clamp(-1.0, 1.0), torch.from_numpy(y)
    return inputs[5000:], targets[5000:], inputs[:5000], targets[:5000]


def _sequences() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return synthetic sentences of four languages that differ in which token follows which."""
    rng = np.random.default_rng(24)
    targets = rng.integers(_LANGUAGES, size=20_000)
    follows = rng.dirichlet(np.full(_TOKENS, 0.3), size=(_LANGUAGES, _TOKENS)).cumsum(axis=2)
    tokens = rng.integers(_TOKENS, size=(len(targets), _LENGTH))
    for t in range(1, _LENGTH):
        drawn = rng.random(len(targets))[:, None] > follows[targets, tokens[:, t - 1]]
        tokens[:, t] = drawn.sum(axis=1).clip(max=_TOKENS - 1)
    inputs, labels = torch.from_numpy(tokens), torch.from_numpy(targets)
    return inputs[5000:], labels[5000:], inputs[:5000], labels[:5000]


_READERS: dict[str, Callable[[], tuple[Tensor, Tensor, Tensor, Tensor]]] = {
    "digits": partial(_images, "digits"),
    "mnist": partial(_images, "mnist"),
    "fashion-mnist": partial(_images, "fashion-mnist"),
    "cifar10": _cifar,
    "cifar10-full": partial(_images, "cifar10"),
    "adult": partial(_table, "adult"),
    "census-income": partial(_table, "census-income"),
    "diamonds": partial(_table, "diamonds"),
    "clusters": _clusters,
    "sequences": _sequences,
}
_token_transformer = partial(models.token_transformer, _TOKENS, _LENGTH, _LANGUAGES)
_tanh_cnn, _relu_cnn = partial(models.cnn, nn.Tanh), partial(models.cnn, nn.ReLU)
_FASHION = "Fashion-MNIST"

_DEVELOPMENT = (
    Task("digits-linear", "digits, linear", "digits", 1150, 60_000,
         partial(models.linear, 64, 10), "mnist"),
    Task("digits-mlp", "digits, MLP", "digits", 1150, 60_000,
         partial(models.mlp, 64, 64, 10, activation=nn.Tanh), "mnist"),
    Task("digits-cnn", "digits, CNN", "digits", 1150, 40_000, models.digits_cnn, "mnist"),
    Task("digits-wide", "digits of 24 × 24, MLP", "digits", 1150, 60_000,
         lambda: nn.Sequential(nn.Upsample(scale_factor=3), models.mlp(576, 64, 64, 10)), "mnist"),
    Task("digits-gru", "digits' rows, GRU", "digits", 1150, 60_000,
         partial(models.rows, "gru", 8, 8), "lstm"),
    Task("digits-lstm", "digits' rows, LSTM", "digits", 1150, 60_000,
         partial(models.rows, "lstm", 8, 8), "lstm"),
    Task("digits-transformer", "digits' rows, transformer", "digits", 1150, 60_000,
         partial(models.rows, "transformer", 8, 8), "bert"),
    Task("clusters-deep", "synthetic table, six layers", "clusters", 10_000, 200_000,
         partial(models.mlp, 20, 64, 64, 64, 64, 64, 4), "adult"),
    Task("clusters-mlp", "synthetic table, MLP", "clusters", 10_000, 200_000,
         partial(models.mlp, 20, 64, 4, activation=nn.Tanh), "adult"),
    Task("sequences-transformer", "synthetic sequences, transformer", "sequences", 10_000, 30_000,
         _token_transformer, "bert"),
    Task("sequences-gru", "synthetic sequences, GRU", "sequences", 10_000, 50_000,
         partial(models.token_gru, _TOKENS, _LANGUAGES), "lstm"),
    Task("fashion-cnn", f"{_FASHION}, tanh CNN", "fashion-mnist", 10_000, 50_000,
         _tanh_cnn, "mnist"),
    Task("fashion-resnet", f"{_FASHION}, small ResNet", "fashion-mnist", 10_000, 50_000,
         models.small_resnet, "cifar"),
    Task("fashion-preset", f"{_FASHION}, --model cnn", "fashion-mnist", 10_000, 50_000,
         partial(preset_cnn, (1, 28, 28), 10), "mnist"),
    Task("cifar-preset", "CIFAR-10 (JPEG), --model cnn", "cifar10-full", 45_000, 250_000,
         partial(preset_cnn, (3, 32, 32), 10), "cifar"),
)  # fmt: skip
_HELDOUT = (
    Task("cifar-resnet", "CIFAR-10 (JPEG), ResNet", "cifar10", 10_000, 25_000,
         models.resnet, "cifar"),
    Task("fashion-vit", f"{_FASHION}, ViT", "fashion-mnist", 10_000, 30_000, models.vit, "bert"),
    Task("mnist-lstm", "MNIST rows, LSTM", "mnist", 10_000, 40_000,
         partial(models.rows, "lstm", 7, 112), "lstm"),
    Task("mnist-cnn", "MNIST, ReLU CNN", "mnist", 10_000, 40_000, _relu_cnn, "mnist"),
    Task("fashion-mlp", f"{_FASHION}, MLP", "fashion-mnist", 10_000, 200_000,
         partial(models.mlp, 784, 64, 64, 10), "mnist"),
    Task("adult-mlp", "Adult, MLP", "adult", 25_000, 300_000,
         partial(models.mlp, 107, 64, 2), "adult"),
    Task("census-mlp", "census income, MLP", "census-income", 30_000, 300_000,
         partial(models.mlp, 510, 64, 2), "adult", metric="AUC"),
    Task("diamonds-mlp", "diamonds, MLP", "diamonds", 30_000, 300_000,
         partial(models.mlp, 26, 64, 64, 1), "adult", "squared_error", "R²"),
)  # fmt: skip
GROUPS = {"development": _DEVELOPMENT, "heldout": _HELDOUT}
TASKS = {task.name: task for group in GROUPS.values() for task in group}
