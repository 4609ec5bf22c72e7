"""scikit-learn estimators: private models without a training loop.

>>> from dither.estimators import PrivateLogisticRegression
>>> PrivateLogisticRegression(epsilon=2.0)
PrivateLogisticRegression(epsilon=2.0)
"""

from dither.estimators.choosing import default_estimator
from dither.estimators.defaults import Defaults, defaults
from dither.estimators.gam import PrivateGAMClassifier, PrivateGAMRegressor
from dither.estimators.leaks import PrivacyLeakWarning
from dither.estimators.linear import (
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateSVC,
)
from dither.estimators.loading import load
from dither.estimators.modules import (
    PrivateClassifier,
    PrivateMLPClassifier,
    PrivateMLPRegressor,
    PrivateRegressor,
)
from dither.estimators.search import PrivateSearchCV
from dither.estimators.shapes import Shape
from dither.schema import SchemaEncoder

__all__ = [
    "Defaults",
    "PrivacyLeakWarning",
    "PrivateClassifier",
    "PrivateGAMClassifier",
    "PrivateGAMRegressor",
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivateMLPClassifier",
    "PrivateMLPRegressor",
    "PrivateRegressor",
    "PrivateSVC",
    "PrivateSearchCV",
    "SchemaEncoder",
    "Shape",
    "default_estimator",
    "defaults",
    "load",
]
