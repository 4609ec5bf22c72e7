"""Small tables that a model can learn."""

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits, make_regression

Table = tuple[Any, Any]


@pytest.fixture(scope="session")
def digits() -> Table:
    X, y = load_digits(return_X_y=True)
    return X, y


@pytest.fixture(scope="session")
def lengths() -> Table:
    """A regression with features in −1 … 1 and targets in −1 … 1."""
    X, y = make_regression(800, 5, noise=5.0, random_state=3)
    X, y = np.clip(X / 4.0, -1.0, 1.0), y / np.abs(y).max()
    return X, y
