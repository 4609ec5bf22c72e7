"""What the losses of linear models change by with their scores, one row a record."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dither.clipping.linear import LogitGradients


def softmax_residuals(classes: NDArray[np.int64]) -> LogitGradients:
    """Cross-entropy of classes 0 … k−1 with a score each."""
    targets = torch.from_numpy(classes)

    def residuals(scores: Tensor, records: NDArray[np.int64]) -> Tensor:
        r = torch.softmax(scores, dim=1)
        r[torch.arange(len(r)), targets[torch.from_numpy(records)]] -= 1.0
        return r

    return residuals


def logistic_residuals(classes: NDArray[np.int64]) -> LogitGradients:
    """Cross-entropy of two classes, 0 and 1, with one score: the logarithm of the odds of 1."""
    targets = torch.from_numpy(classes)[:, None]
    return lambda scores, records: torch.sigmoid(scores) - targets[torch.from_numpy(records)]


def hinge_residuals(signs: NDArray[np.float64]) -> LogitGradients:
    """Smoothed hinge of targets ±1, one a score: quadratic where the margin is in (½, 3⁄2).

    The loss of a margin u is 0 above 3⁄2, 1 − u below ½, and (3⁄2 − u)²/2 between.
    """
    targets = torch.from_numpy(signs)

    def residuals(scores: Tensor, records: NDArray[np.int64]) -> Tensor:
        y = targets[torch.from_numpy(records)].to(scores.dtype)
        return (1.5 - y * scores).clamp_(0.0, 1.0).mul_(-y)

    return residuals


def squared_residuals(values: NDArray[np.float64]) -> LogitGradients:
    """Half the squared difference to targets, records × outputs."""
    targets = torch.from_numpy(values)
    return lambda scores, records: scores - targets[torch.from_numpy(records)].to(scores.dtype)
