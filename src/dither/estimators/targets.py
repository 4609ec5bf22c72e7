"""From y to what a loss takes: classes by their numbers, values in the units of training."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets

from dither.estimators.frame import bounds_of
from dither.estimators.leaks import Leaks
from dither.estimators.scaling import check_scaling
from dither.types import FloatArray
from dither.validate import InvalidValueError


def classes_of(y: Any, classes: Any, leaks: Leaks) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the classes, ascending, and the number of every record's class among them.

    Args:
        y: one label per record.
        classes: all labels that there can be; None takes them from y, which is a leak.
        leaks: where to note that.
    """
    check_classification_targets(y)
    if classes is None:
        leaks.add("the classes were", "give all that there can be, as classes=[…]")
    known = np.unique(y if classes is None else _labels(classes))
    if known.size < 2:
        raise InvalidValueError(
            "y must have samples of at least 2 classes, or classes name at least 2: got "
            f"{known.size} class"
        )
    try:
        numbers = np.minimum(np.searchsorted(known, y), known.size - 1)
        are_known = bool(np.all(known[numbers] == y))
    except TypeError:  # numbers and text
        are_known = False
    if not are_known:
        raise InvalidValueError("y must have no labels but those in classes, got others")
    return known, numbers.astype(np.int64)


def _labels(classes: Any) -> NDArray[Any]:
    labels = np.asarray(list(classes))
    is_number = labels.dtype.kind == "f"
    if labels.ndim != 1 or (is_number and not np.isfinite(labels).all()):
        raise InvalidValueError(
            f"classes must be a list of labels, none of them missing, got {str(classes)[:80]}"
        )
    return labels


@final
@dataclass(frozen=True)
class TargetFrame:
    """Where the targets of a regression lie, by public knowledge.

    Attributes:
        middle: of the bounds.
        reach: from there to them.
    """

    middle: float
    reach: float

    def scaled(self, y: FloatArray) -> FloatArray:
        """Return the targets with −1 … 1 for the bounds; what is outside is moved to them."""
        return np.clip((y - self.middle) / self.reach, -1.0, 1.0)


def target_frame_of(y: FloatArray, target_bounds: Any, leaks: Leaks) -> TargetFrame:
    """Return the frame that the argument describes; for None the data's own, which is a leak."""
    if target_bounds is None:
        leaks.add(
            "the least and largest targets were",
            "give them as target_bounds=(least, largest) from public knowledge",
        )
        least, largest = float(np.min(y)), float(np.max(y))
    else:
        least, largest = map(float, bounds_of((), target_bounds=target_bounds))
        check_scaling(y[:, None], leaks, of="targets")
    reach = largest / 2.0 - least / 2.0
    return TargetFrame(least / 2.0 + largest / 2.0, reach if reach > 0.0 else 1.0)
