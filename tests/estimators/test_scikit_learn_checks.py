"""scikit-learn's own checks of what an estimator must do."""

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from dither.estimators import (
    PrivateClassifier,
    PrivateGAMClassifier,
    PrivateGAMRegressor,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMLPClassifier,
    PrivateMLPRegressor,
    PrivateRegressor,
    PrivateSearchCV,
    PrivateSVC,
)

FAST: dict[str, Any] = {"epsilon": 10.0, "steps": 20, "noise": "uniform"}
ESTIMATORS = [
    PrivateLogisticRegression(**FAST),
    PrivateSVC(**FAST),
    PrivateLinearRegression(**FAST),
    PrivateGAMClassifier(**FAST),
    PrivateGAMRegressor(**FAST),
    PrivateMLPClassifier((16,), **FAST),
    PrivateMLPRegressor((16,), **{**FAST, "steps": 60}),
    PrivateClassifier(nn.Linear, **FAST),
    PrivateRegressor(nn.Linear, **FAST),
    PrivateSearchCV(PrivateLogisticRegression(**FAST), {"clip_norm": [0.2]}, epsilon=10.0),
]


def expected_failures(estimator: Any) -> dict[str, str]:
    weighted = "holds without noise only, and for weights within max_weight"
    failures = {
        f"check_sample_weight_equivalence_on_{kind}_data": weighted for kind in ("dense", "sparse")
    }
    if isinstance(estimator, PrivateClassifier | PrivateRegressor):
        reason = "a module computes in its own precision, whose last bits depend on the batch"
        failures["check_methods_subset_invariance"] = reason
        failures["check_class_weight_classifiers"] = "20 steps are too few without feature bounds"
    return failures


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failures, xfail_strict=False)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)
