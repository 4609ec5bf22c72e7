"""Tables as tensors: categories one-hot, numbers scaled to [-1, 1] by bounds that are public."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dither.data import directory

Array = NDArray[np.float32]
Bounds = Mapping[str, tuple[float, float]]

# Not from the records: what age, hours, weeks and money of a year can be, as the data's
# description says. Money is taken as log(1 + x).
_ADULT: Bounds = {
    "age": (0.0, 100.0),
    "education_num": (1.0, 16.0),
    "capital_gain": (0.0, 100_000.0),
    "capital_loss": (0.0, 5_000.0),
    "hours_per_week": (0.0, 100.0),
}
_CENSUS: Bounds = {
    "age": (0.0, 100.0),
    "wage_per_hour": (0.0, 10_000.0),
    "capital_gains": (0.0, 100_000.0),
    "capital_losses": (0.0, 5_000.0),
    "dividends": (0.0, 100_000.0),
    "persons_worked_for_employer": (0.0, 6.0),
    "weeks_worked": (0.0, 52.0),
}
_DIAMONDS: Bounds = {
    "carat": (0.0, 5.0),
    "depth": (40.0, 80.0),
    "table": (40.0, 100.0),
    "x": (0.0, 12.0),
    "y": (0.0, 12.0),
    "z": (0.0, 8.0),
}
_PRICES = (300.0, 20_000.0)
_MONEY = {
    "capital_gain", "capital_loss", "wage_per_hour", "capital_gains", "capital_losses", "dividends",
}  # fmt: skip


def read(name: str) -> tuple[Array, NDArray[Any], Array, NDArray[Any]]:
    """Return inputs and targets to train with, and inputs and targets to test with.

    Args:
        name: "adult", "census-income" or "diamonds", whose targets are numbers in [-1, 1].
    """
    if name == "diamonds":
        return _read_diamonds()
    bounds = {"adult": _ADULT, "census-income": _CENSUS}[name]
    parts = [_csv(name, part).drop(columns=["fnlwgt", "instance_weight"], errors="ignore")
             for part in ("train", "test")]  # fmt: skip
    labels = [part.pop("income").str.startswith(">").to_numpy(np.int64) for part in parts]
    inputs = encode(parts, bounds)
    return inputs[0], labels[0], inputs[1], labels[1]


def _read_diamonds() -> tuple[Array, NDArray[Any], Array, NDArray[Any]]:
    table = _csv("diamonds", "diamonds")
    table = table.iloc[np.random.default_rng(0).permutation(len(table))]
    low, high = (math.log(price) for price in _PRICES)
    prices = (np.log(table.pop("price").to_numpy(np.float64)) - low) / (high - low)
    targets = (2.0 * prices.clip(0.0, 1.0) - 1.0).astype(np.float32)
    (inputs,) = encode([table], _DIAMONDS)
    return inputs[:-10_000], targets[:-10_000], inputs[-10_000:], targets[-10_000:]


def _csv(folder: str, name: str) -> Any:
    path = Path(directory()) / folder / f"{name}.csv.gz"
    return pd.read_csv(path, keep_default_na=False, low_memory=False)


def encode(parts: Iterable[Any], bounds: Bounds) -> list[Array]:
    """Return tables as numbers: columns with bounds scaled, all others one-hot.

    The categories are those of the first table; they are taken as public, like a codebook.
    """
    parts = list(parts)
    columns: list[list[Array]] = [[] for _ in parts]
    for name in parts[0].columns:
        categories = None if name in bounds else sorted(parts[0][name].astype(str).unique())
        for place, part in enumerate(parts):
            if categories is None:
                columns[place].append(_scale(part[name].to_numpy(np.float64), name, bounds[name]))
            else:
                values = part[name].astype(str).to_numpy()[:, None]
                columns[place].append((values == np.array(categories)).astype(np.float32))
    return [np.concatenate(each, axis=1) for each in columns]


def _scale(values: NDArray[np.float64], name: str, bounds: tuple[float, float]) -> Array:
    low, high = bounds
    if name in _MONEY:
        values, low, high = np.log1p(values), math.log1p(low), math.log1p(high)
    scaled = 2.0 * (values - low) / (high - low) - 1.0
    return scaled.clip(-1.0, 1.0).astype(np.float32)[:, None]
