"""The methods that `benchmarks.tables` compares: a table in, predictions for its test part out.

scikit-learn without privacy, and the peers, get what the schema says with encodings of their own,
which know nothing of dither: numbers from −1 to 1 by their public bounds, categories as codes or
one-hot.
"""

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.peers import Peer, peer
from benchmarks.table_data import Table
from dither.estimators import default_estimator
from dither.schema import Schema

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Task:
    """A table, the budget and the seed of one fit; ε is None without privacy."""

    table: Table
    epsilon: float | None
    seed: int

    @property
    def delta(self) -> float:
        """1e-5 from 20,000 records on, else 1/(10·n)."""
        n = len(self.table.train)
        return 1e-5 if n >= 20_000 else 0.1 / n

    @property
    def is_regression(self) -> bool:
        """Whether the target is a number."""
        return self.table.classes is None


Fit = Callable[[Task], tuple[Array, float]]


@dataclass(frozen=True, eq=False)
class Coded:
    """A table as numbers.

    Numbers lie in −1 … 1 by their bounds (of their logarithm, where the schema says so); missing
    ones are NaN. Categories are codes, the last one for missing cells and unknown values.

    Attributes:
        train: training records.
        test: test records.
        names: of the columns.
        sizes: codes per column, 0 for numbers.
        indicators: numbers whose missing cells the schema marks.
    """

    train: Array
    test: Array
    names: list[str]
    sizes: list[int]
    indicators: list[int]

    @property
    def norm(self) -> float:
        """The largest norm of a one-hot record."""
        return math.sqrt(len(self.sizes))

    def one_hot(self, X: Array, *, full: bool = True) -> Any:
        """Return the numbers with 0 for missing cells, indicators and one-hot codes, sparse.

        Without ``full`` the first and the last code of a column have no feature, so that no
        feature is a sum of others.
        """
        numbers = [j for j, size in enumerate(self.sizes) if size == 0]
        blocks = [np.nan_to_num(X[:, numbers]), np.isnan(X[:, self.indicators])]
        for j, size in enumerate(self.sizes):
            codes = np.arange(size) if full else np.arange(1, size - 1)
            blocks.append(X[:, [j]] == codes)
        return sparse.hstack([sparse.csr_array(block, dtype=float) for block in blocks], "csr")


@lru_cache(maxsize=1)
def coded(table: Table) -> Coded:
    """Return a table as numbers, by its schema alone."""
    columns = {n: c for n, c in table.schema["columns"].items() if c["kind"] != "ignored"}
    X, test_X = (
        np.column_stack([_coded_cells(frame[name], column) for name, column in columns.items()])
        for frame in (table.train, table.test)
    )
    return Coded(
        X,
        test_X,
        list(columns),
        [len(column["values"]) + 1 if "values" in column else 0 for column in columns.values()],
        [j for j, column in enumerate(columns.values()) if "missing" in column],
    )


def _coded_cells(cells: Any, column: dict[str, Any]) -> Array:
    if "values" in column:
        index = {value: code for code, value in enumerate(column["values"])}
        return np.asarray(cells.map(index).fillna(len(index)), float)
    curve = np.log1p if column.get("scale") == "log" else np.asarray
    low, high = curve(column["bounds"])
    inside = np.clip(cells.to_numpy(float), *column["bounds"])
    return np.asarray(2.0 * (curve(inside) - low) / (high - low) - 1.0)


def _timed(model: Any, X: Any, y: Array, test_X: Any) -> tuple[Array, float]:
    start = time.perf_counter()
    model.fit(X, y)
    seconds = time.perf_counter() - start
    predict = getattr(model, "predict_proba", None) or model.predict
    return np.asarray(predict(test_X)), seconds


def base_rate(task: Task) -> tuple[Array, float]:
    """Predict the shares of the classes in the training records, or the targets' mean."""
    y, test_y = task.table.targets()
    shares = y.mean() if task.is_regression else np.bincount(y) / len(y)
    return np.broadcast_to(shares, (len(test_y), *np.shape(shares))), 0.0


def plain_linear(task: Task) -> tuple[Array, float]:
    """Fit scikit-learn's logistic regression or ridge, numbers standardised, categories one-hot."""
    data = coded(task.table)
    numbers = slice(0, data.sizes.count(0))
    scaling = ("numbers", StandardScaler(with_mean=False), numbers)
    model = make_pipeline(
        ColumnTransformer([scaling], remainder="passthrough"),
        Ridge() if task.is_regression else LogisticRegression(max_iter=2000),
    )
    X, test_X = data.one_hot(data.train), data.one_hot(data.test)
    return _timed(model, X, task.table.targets()[0], test_X)


def plain_boosting(task: Task) -> tuple[Array, float]:
    """Fit scikit-learn's gradient boosting with its defaults."""
    data = coded(task.table)
    kind = HistGradientBoostingRegressor if task.is_regression else HistGradientBoostingClassifier
    model = kind(categorical_features=np.array(data.sizes) > 0, random_state=task.seed)
    return _timed(model, data.train, task.table.targets()[0], data.test)


@dataclass
class Peers:
    """The servers of the peers, each started at its first use."""

    stack: ExitStack
    _started: dict[str, Peer] = field(default_factory=dict)

    def _server(self, library: str) -> Peer:
        if library not in self._started:
            self._started[library] = self.stack.enter_context(peer(library))
        return self._started[library]

    def diffprivlib(self, task: Task) -> tuple[Array, float]:
        """Fit diffprivlib's logistic or linear regression on the one-hot table; its δ is 0."""
        data, y = coded(task.table), task.table.targets()[0]
        X, test_X = (
            data.one_hot(part, full=not task.is_regression).toarray()
            for part in (data.train, data.test)
        )
        settings: dict[str, Any] = {"epsilon": task.epsilon, "random_state": task.seed}
        if task.is_regression:
            bounds_y = task.table.schema["target"]["bounds"]
            settings |= {"bounds_X": [-1.0, 1.0], "bounds_y": bounds_y}
            return self._server("diffprivlib").fit(
                "diffprivlib.models.LinearRegression", settings, X, y, test_X
            )
        settings |= {"data_norm": data.norm, "max_iter": 1000}
        return self._server("diffprivlib").fit(
            "diffprivlib.models.LogisticRegression", settings, X, y, test_X
        )

    def private_ebm(self, task: Task) -> tuple[Array, float]:
        """Fit the private EBM of interpret with its defaults and all its public bounds.

        It refuses missing numbers: they become 0, and their indicators are columns of their own.
        """
        data, y = coded(task.table), task.table.targets()[0]
        X, test_X = (
            np.column_stack([np.nan_to_num(part), np.isnan(part[:, data.indicators])])
            for part in (data.train, data.test)
        )
        numbers = [name for name, size in zip(data.names, data.sizes, strict=True) if not size]
        kinds = ["nominal" if size else "continuous" for size in data.sizes]
        settings: dict[str, Any] = {
            "epsilon": task.epsilon,
            "delta": task.delta,
            "random_state": task.seed,
            "n_jobs": 1,
            "feature_names": [*data.names, *(f"no {data.names[j]}" for j in data.indicators)],
            "feature_types": [*kinds, *("nominal" for _ in data.indicators)],
            "privacy_bounds": {name: [-1.0, 1.0] for name in numbers},
        }
        kind = "Classifier"
        if task.is_regression:
            kind = "Regressor"
            low, high = task.table.schema["target"]["bounds"]
            settings |= {"privacy_target_min": low, "privacy_target_max": high}
        return self._server("interpret").fit(
            f"interpret.privacy.DPExplainableBoosting{kind}", settings, X, y, test_X
        )


def _dither(kind: str, task: Task) -> tuple[Array, float]:
    """Fit a model of dither with its defaults, from the table and its schema alone."""
    table, column = task.table, task.table.schema["target"]["column"]
    model: Any = default_estimator(
        Schema.from_dict(table.schema), len(table.train), model=kind, random_state=task.seed,
        epsilon=task.epsilon or math.inf, delta=task.delta,
    )  # fmt: skip
    train, test = (part.drop(columns=column) for part in (table.train, table.test))
    predicted, seconds = _timed(model, train, table.train[column], test)
    if table.classes is None:
        return predicted, seconds
    return predicted[:, [list(model.classes_).index(name) for name in table.classes]], seconds


PLAIN: dict[str, Fit] = {
    "base rate": base_rate,
    "linear, not private": plain_linear,
    "boosting, not private": plain_boosting,
}
DITHER: dict[str, Fit] = {
    "dither": partial(_dither, "auto"),
    "dither linear": partial(_dither, "linear"),
    "dither GAM": partial(_dither, "gam"),
    "dither MLP": partial(_dither, "mlp"),
}
