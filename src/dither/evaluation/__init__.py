"""Paid evaluation: how good a model is on private records, measured with noise.

`evaluate` makes one Gaussian release of a holdout and computes all metrics, with intervals, from
it. `train_holdout_split` draws the holdout so that of training and evaluation only the larger cost
counts. `RowsPerUser` says how many rows users have, with noise or from public knowledge.
"""

from dither.evaluation.cells import CalibrationBin, OperatingPoint
from dither.evaluation.estimates import Estimate
from dither.evaluation.evaluating import evaluate
from dither.evaluation.evaluation import Evaluation
from dither.evaluation.row_counts import RowsPerUser
from dither.evaluation.split import new_split, train_holdout_split

__all__ = [
    "CalibrationBin",
    "Estimate",
    "Evaluation",
    "OperatingPoint",
    "RowsPerUser",
    "evaluate",
    "new_split",
    "train_holdout_split",
]
