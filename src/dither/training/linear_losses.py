"""Losses of linear scores: gradients, and the intercept that the mean target gives."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dither.clipping.contributions import Records
from dither.clipping.linear import LogitGradients


@dataclass(frozen=True, eq=False)
class LinearLoss:
    """A loss of linear scores.

    Attributes:
        gradients: the derivative of the loss with respect to the scores, as `linear_clipped_sum`
            takes it.
        targets: records × columns of norm at most 1, whose mean may be released; None for none.
        intercept: from the mean of the targets and the noise in it to the best constant scores.

    Example:
        >>> y = torch.tensor([[1.0], [0.0]])
        >>> loss = LinearLoss(lambda scores, records: scores - y[records], y)
        >>> loss.intercept(y.mean(dim=0), 0.0)
        tensor([0.5000])
    """

    gradients: LogitGradients
    targets: Tensor | None = None
    intercept: Callable[[Tensor, float], Tensor] = lambda mean, _: mean

    def select(self, records: Tensor) -> Self:
        """Return the loss of some of the records, by their indices, in that order.

        Example:
            >>> y = torch.tensor([[1.0], [0.0]])
            >>> loss = LinearLoss(lambda scores, records: scores - y[records], y)
            >>> loss.select(torch.tensor([1])).gradients(torch.zeros(1, 1), torch.tensor([0]))
            tensor([[0.]])
        """
        return replace(
            self,
            gradients=lambda scores, chosen: self.gradients(scores, records[chosen]),
            targets=None if self.targets is None else self.targets[records],
        )


def log_shares(mean: Tensor, noise: float) -> Tensor:
    """Return the logarithms of class shares; one within the noise counts as the noise.

    Example:
        >>> log_shares(torch.tensor([0.5, -0.1]), 0.5).exp()
        tensor([0.5000, 0.5000])
    """
    shares = mean.clamp(min=max(noise, 1e-6))
    return (shares / shares.sum()).log()


def softmax_loss(classes: NDArray[np.int64], outputs: int) -> LinearLoss:
    """Return the cross-entropy of classes 0 … k−1, with one score per class.

    Example:
        >>> loss = softmax_loss(np.array([0]), 2)
        >>> loss.gradients(torch.zeros(1, 2), np.array([0]))
        tensor([[-0.5000,  0.5000]])
    """
    targets = torch.nn.functional.one_hot(torch.from_numpy(classes), outputs).float()

    def gradients(scores: Tensor, records: Records) -> Tensor:
        return torch.softmax(scores, dim=1).sub_(targets[records])

    def intercept(mean: Tensor, noise: float) -> Tensor:
        logs = log_shares(mean, noise)
        return logs - logs.mean()

    return LinearLoss(gradients, targets, intercept)


def logistic_loss(classes: NDArray[np.int64]) -> LinearLoss:
    """Return the cross-entropy of two classes, 0 and 1, with one logit.

    Example:
        >>> loss = logistic_loss(np.array([1]))
        >>> loss.gradients(torch.zeros(1, 1), np.array([0]))
        tensor([[-0.5000]])
    """
    targets = torch.nn.functional.one_hot(torch.from_numpy(classes), 2).float()

    def gradients(scores: Tensor, records: Records) -> Tensor:
        return torch.sigmoid(scores).sub_(targets[records, 1:])

    def intercept(mean: Tensor, noise: float) -> Tensor:
        return log_shares(mean, noise).diff()

    return LinearLoss(gradients, targets, intercept)


def hinge_loss(signs: NDArray[np.float64]) -> LinearLoss:
    """Return the smoothed hinge loss of targets ±1, one per score.

    The loss of a margin u is 0 above 3⁄2, 1 − u below ½, and (3⁄2 − u)²/2 between.

    Example:
        >>> hinge_loss(np.array([[1.0]])).gradients(torch.zeros(1, 1), np.array([0]))
        tensor([[-1.]])
    """
    targets = torch.from_numpy(signs)

    def gradients(scores: Tensor, records: Records) -> Tensor:
        y = targets[records].to(scores.dtype)
        return (1.5 - y * scores).clamp_(0.0, 1.0).mul_(-y)

    return LinearLoss(gradients)


def squared_loss(values: NDArray[np.float64]) -> LinearLoss:
    """Return half the squared difference to one target per record, from −1 to 1.

    Example:
        >>> squared_loss(np.array([1.0])).gradients(torch.zeros(1, 1), np.array([0]))
        tensor([[-1.]])
    """
    targets = torch.from_numpy(values)[:, None]

    def gradients(scores: Tensor, records: Records) -> Tensor:
        return scores - targets[records].to(scores.dtype)

    def intercept(mean: Tensor, noise: float) -> Tensor:
        # The sum of both is the mean weight of the records, 1 without weights.
        return (mean.diff() / mean.sum().clamp(min=max(noise, 1e-6))).clamp(-1.0, 1.0)

    halves = torch.cat([1.0 - targets, 1.0 + targets], dim=1) / 2.0
    return LinearLoss(gradients, halves.float(), intercept)
