"""Small models for a first run: linear, an MLP, and a CNN that treats every record by itself."""

from collections.abc import Callable, Sequence
from math import prod

from torch import nn

from dither.validate import InvalidValueError, count

Shape = Sequence[int]


def linear(shape: Shape, classes: int) -> nn.Module:
    """Logistic regression on the flattened inputs.

    >>> linear((1, 8, 8), 10)[1]
    Linear(in_features=64, out_features=10, bias=True)
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), count(classes=classes)))


def mlp(shape: Shape, classes: int) -> nn.Module:
    """One hidden layer of 128 units with tanh, whose bounded outputs suit clipped gradients."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(prod(shape), 128), nn.Tanh(), nn.Linear(128, count(classes=classes))
    )


def cnn(shape: Shape, classes: int) -> nn.Module:
    """Two convolutions and a hidden layer, with tanh; for images of at least 8 × 8."""
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise InvalidValueError(
            f"model cnn must have images of channels × height × width, at least 8 × 8, got records "
            f"of shape {tuple(shape)}"
        )
    channels, height, width = shape
    kernel, stride = (8, 2) if min(height, width) >= 24 else (3, 1)
    layers: list[nn.Module] = [
        nn.Conv2d(channels, 16, kernel, stride, padding=kernel // 2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1 if stride == 2 else 2),
        nn.Conv2d(16, 32, 4 if stride == 2 else 3, stride),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(4 if stride == 2 else 2),
        nn.Flatten(),
    ]
    side = 4 if stride == 2 else 2
    return nn.Sequential(
        *layers, nn.Linear(32 * side * side, 32), nn.Tanh(), nn.Linear(32, count(classes=classes))
    )


MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {"cnn": cnn, "linear": linear, "mlp": mlp}
