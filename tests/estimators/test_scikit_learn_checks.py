"""scikit-learn's own checks of what an estimator must do."""

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from dither.estimators import (
    PrivateClassifier,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
    PrivateMLPRegressor,
    PrivateRegressor,
    PrivateSVC,
)

LINEAR = [PrivateLogisticRegression(), PrivateSVC(), PrivateLinearRegression()]
DEEP = [
    PrivateMLPClassifier(steps=40),
    PrivateMLPRegressor(steps=40),
    PrivateClassifier(nn.Linear, steps=40),
    PrivateRegressor(nn.Linear, steps=40),
]


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([*LINEAR, *DEEP])
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)
