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
    PrivateSearchCV,
    PrivateSVC,
)

ESTIMATORS = [
    PrivateLogisticRegression(),
    PrivateSVC(),
    PrivateLinearRegression(),
    PrivateMLPClassifier(epsilon=3.0, steps=20),
    PrivateMLPRegressor(epsilon=3.0, steps=20),
    PrivateClassifier(nn.Linear, epsilon=3.0, steps=20),
    PrivateRegressor(nn.Linear, epsilon=3.0, steps=20),
    PrivateSearchCV(PrivateLogisticRegression(steps=40), {"clip_norm": [0.2]}, epsilon=3.0),
    PrivateSearchCV(PrivateLinearRegression(steps=40), {"clip_norm": [0.1]}, epsilon=3.0),
]


def expected_failures(estimator: Any) -> dict[str, str]:
    if isinstance(estimator, PrivateClassifier | PrivateRegressor):
        reason = "a module computes in its own precision, whose last bits depend on the batch"
        return {"check_methods_subset_invariance": reason}
    return {}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failures, xfail_strict=False)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)
