"""The 1,797 handwritten digits of 8 × 8 pixels that come with scikit-learn."""

import torch

from dither.data.examples import Examples, Split
from dither.validate import InvalidValueError


def load_digits() -> Split:
    """Return the digits scaled to [0, 1]; every fifth record is for testing."""
    try:
        from sklearn import datasets
    except ModuleNotFoundError:
        raise InvalidValueError(
            "digits needs scikit-learn, which is not installed: pip install scikit-learn"
        ) from None
    digits = datasets.load_digits()
    inputs = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    targets = torch.tensor(digits.target, dtype=torch.int64)
    fifth = torch.arange(len(targets)) % 5 == 4
    classes = tuple(str(digit) for digit in range(10))
    return Split(
        train=Examples(inputs[~fifth], targets[~fifth], classes),
        test=Examples(inputs[fifth], targets[fifth], classes),
    )
