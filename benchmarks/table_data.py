"""The tables of `benchmarks.tables`, each with its public schema.

Real tables are read from scikit-learn or from ``$DITHER_DATA``; their schemas are the files in
``benchmarks/schemas``. Synthetic tables are drawn from a seed, 10,000 test records each.
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.model_selection import train_test_split

from dither.data.files import directory

SCHEMAS = Path(__file__).with_name("schemas")
Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Table:
    """Training and test records with their target, and what is public about them."""

    train: pd.DataFrame
    test: pd.DataFrame
    schema: dict[str, Any]

    @property
    def classes(self) -> list[str] | None:
        """The classes of the target; None if it is a number."""
        classes: list[str] | None = self.schema["target"].get("classes")
        return classes

    def targets(self) -> tuple[Array, Array]:
        """Return the targets of both parts: indices of classes, or numbers."""
        column = self.schema["target"]["column"]
        y, test_y = self.train[column], self.test[column]
        if self.classes is None:
            return y.to_numpy(float), test_y.to_numpy(float)
        index = {name: i for i, name in enumerate(self.classes)}
        return y.map(index).to_numpy(int), test_y.map(index).to_numpy(int)


def _schema(name: str) -> dict[str, Any]:
    return tomllib.loads((SCHEMAS / f"{name}.toml").read_text(encoding="utf-8"))


def _split(frame: pd.DataFrame, schema: dict[str, Any], seed: int) -> Table:
    strata = frame[schema["target"]["column"]] if "classes" in schema["target"] else None
    train, test = train_test_split(frame, test_size=0.2, random_state=seed, stratify=strata)
    return Table(train.reset_index(drop=True), test.reset_index(drop=True), schema)


def _read(path: str, schema: dict[str, Any]) -> pd.DataFrame:
    columns = schema["columns"].items()
    texts = {name: str for name, column in columns if column["kind"] == "category"}
    return pd.read_csv(directory() / path, dtype=texts, keep_default_na=False, na_values=[""])


def _bundled(name: str, seed: int) -> Table:
    if name == "diabetes":
        frame = load_diabetes(as_frame=True, scaled=False).frame
        frame = frame.rename(columns={"target": "progression"})
        frame["sex"] = frame["sex"].astype(int).astype(str)
        return _split(frame, _schema(name), seed)
    reader = {"breast-cancer": load_breast_cancer, "wine": load_wine, "digits": load_digits}[name]
    data = reader(as_frame=True)
    frame = data.data.copy()
    frame["class"] = np.asarray(data.target_names).astype(str)[data.target]
    if name == "digits":
        pixel = {"kind": "number", "bounds": [0, 16]}
        schema = {
            "confirmed": True,
            "target": {"column": "class", "classes": [str(i) for i in range(10)]},
            "columns": dict.fromkeys(data.feature_names, pixel),
        }
        return _split(frame, schema, seed)
    return _split(frame, _schema(name), seed)


def _usual_split(name: str, _seed: int) -> Table:
    schema = _schema(name)
    train, test = (_read(f"{name}/{part}.csv.gz", schema) for part in ("train", "test"))
    return Table(train, test, schema)


def _diamonds(seed: int) -> Table:
    schema = _schema("diamonds")
    return _split(_read("diamonds/diamonds.csv.gz", schema), schema, seed)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _labels(score: Array, share: float, rng: np.random.Generator) -> Array:
    """Draw classes with P(yes) = σ(score + intercept); its mean is ``share``."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _sigmoid(score + middle).mean() < share else (low, middle)
    return np.where(rng.random(score.size) < _sigmoid(score + low), "yes", "no")


def _synthetic(
    X: Array, target: Array, train: int, *, categories: tuple[Array, ...] = (), missing: Array
) -> Table:
    """Return a table of numbers x0, x1, … from −4 to 4, and of categories c0, c1, ….

    Args:
        X: the numbers, clipped to −4 … 4.
        target: "yes" and "no", or numbers.
        train: how many of the records are for training.
        categories: codes, one array per column.
        missing: which of the numbers are missing.
    """
    cells = np.where(missing, np.nan, np.clip(X, -4.0, 4.0).round(3))
    frame = pd.DataFrame(cells, columns=[f"x{i}" for i in range(X.shape[1])])
    columns: dict[str, Any] = {}
    for i, name in enumerate(frame.columns):
        columns[name] = {"kind": "number", "bounds": [-4, 4]}
        if missing[:, i].any():
            columns[name]["missing"] = 0
    for i, codes in enumerate(categories):
        frame[f"c{i}"] = [f"v{code}" for code in codes]
        values = [f"v{code}" for code in range(codes.max() + 1)]
        columns[f"c{i}"] = {"kind": "category", "values": values}
    frame["target"] = target
    is_class = target.dtype.kind == "U"
    about = {"classes": ["no", "yes"]} if is_class else {"bounds": [-10, 10]}
    schema = {"confirmed": True, "target": {"column": "target", **about}, "columns": columns}
    return Table(frame[:train], frame[train:].reset_index(drop=True), schema)


def _missing(shape: tuple[int, int], columns: int, rng: np.random.Generator) -> Array:
    """Return which cells are missing: a tenth of the first columns'."""
    gone = np.zeros(shape, bool)
    gone[:, :columns] = rng.random((shape[0], columns)) < 0.1
    return gone


def _linear(train: int, features: int, share: float, seed: int) -> Table:
    """Linear effects of falling size, correlated numbers, missing cells in two columns."""
    rng = np.random.default_rng(seed)
    n = train + 10_000
    X = np.sqrt(0.8) * rng.standard_normal((n, features)) + np.sqrt(0.2) * rng.standard_normal(
        (n, 1)
    )
    effects = 0.8 ** np.arange(features) * rng.choice([-1.0, 1.0], features)
    target = _labels(X @ effects, share, rng)
    return _synthetic(X, target, train, missing=_missing(X.shape, 2, rng))


def _curved(regression: bool, seed: int) -> Table:
    """Effects that rise and fall: bowls, waves, steps and peaks; no line explains them."""
    rng = np.random.default_rng(seed)
    n = 30_000
    X = rng.uniform(-4.0, 4.0, (n, 10))
    score = (
        0.25 * X[:, 0] ** 2
        + 1.5 * np.sin(1.5 * X[:, 1])
        + 1.5 * (np.abs(X[:, 2]) < 1.0)
        + 2.0 * np.exp(-((X[:, 3] - 1.0) ** 2))
        - 1.0 * np.abs(X[:, 4])
        + 0.4 * X[:, 5]
        + 1.0 * (X[:, 6] > 2.0)
    )
    noise = rng.standard_normal(n)
    target = score - score.mean() + noise if regression else _labels(score, 0.2, rng)
    return _synthetic(X, target, 20_000, missing=_missing(X.shape, 2, rng))


def _categories(seed: int) -> Table:
    """Three columns of 50 values, few of them frequent, and five numbers."""
    rng = np.random.default_rng(seed)
    n = 30_000
    shares = 1.0 / np.arange(1, 51)
    codes = tuple(rng.choice(50, n, p=shares / shares.sum()) for _ in range(3))
    effects = rng.standard_normal((3, 50))
    X = rng.standard_normal((n, 5))
    score = sum(effects[i][codes[i]] for i in range(3)) + X @ np.array([0.8, -0.6, 0.4, 0.2, 0.0])
    target = _labels(np.asarray(score), 0.2, rng)
    return _synthetic(X, target, 20_000, categories=codes, missing=_missing(X.shape, 1, rng))


def _small(seed: int) -> Table:
    """2,000 records: eight numbers, two categories of five values."""
    rng = np.random.default_rng(seed)
    n = 12_000
    X = rng.standard_normal((n, 8))
    codes = tuple(rng.integers(5, size=n) for _ in range(2))
    effects = rng.standard_normal((2, 5))
    score = X @ (0.8 ** np.arange(8)) + effects[0][codes[0]] + effects[1][codes[1]]
    target = _labels(score, 0.3, rng)
    return _synthetic(X, target, 2_000, categories=codes, missing=_missing(X.shape, 1, rng))


TABLES: dict[str, Callable[[int], Table]] = {
    "wine": partial(_bundled, "wine"),
    "diabetes": partial(_bundled, "diabetes"),
    "breast cancer": partial(_bundled, "breast-cancer"),
    "digits": partial(_bundled, "digits"),
    "small": _small,
    "linear, 1 %": partial(_linear, 20_000, 16, 0.01),
    "linear, 5 %": partial(_linear, 20_000, 16, 0.05),
    "linear, 10 %": partial(_linear, 20_000, 16, 0.1),
    "linear, 50 %": partial(_linear, 20_000, 16, 0.5),
    "curved": partial(_curved, False),
    "curved regression": partial(_curved, True),
    "many categories": _categories,
    "adult": partial(_usual_split, "adult"),
    "diamonds": _diamonds,
    "census income": partial(_usual_split, "census-income"),
}
