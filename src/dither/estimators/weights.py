"""Weights of records: from class weights and sample weights to factors from 0 to 1.

The clipped gradient of record i is multiplied by w_i/w_max, where w_max is public, so that a record
still changes a sum by at most the clip norm.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import _check_sample_weight

from dither.types import FloatArray
from dither.validate import InvalidValueError, positive

_TOLERANCE = 0.01
"""How far from 1 the sum of class shares may be."""


def sample_factors(X: Any, sample_weight: Any, max_weight: float) -> FloatArray | None:
    """Return w_i/w_max for sample weights, each clipped to 0 … w_max; None for None."""
    if sample_weight is None:
        return None
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    return np.asarray(np.minimum(weights / max_weight, 1.0))


def class_factors(
    class_weight: Any, class_shares: Any, labels: Any, classes: NDArray[Any]
) -> FloatArray | None:
    """Return the weight of every class, divided by the largest; None for None.

    Args:
        class_weight: label → weight, "balanced" or None.
        class_shares: label → share, or shares in the order of ``labels``, or None.
        labels: all labels in the caller's order; None is ascending.
        classes: all labels, ascending.
    """
    shares = None if class_shares is None else _parse_shares(class_shares, labels, classes)
    if class_weight is None:
        return None
    if isinstance(class_weight, Mapping):
        given = _by_class("class_weight", class_weight, classes)
        weights = np.array([given.get(label, 1.0) for label in classes.tolist()])
    elif shares is None:
        raise InvalidValueError(
            "class_weight must be a dict of public numbers unless class_shares are given, got "
            "'balanced': counts of private records are not public, so give public shares as "
            "class_shares={label: share, …}"
        )
    else:
        weights = 1.0 / shares
    return np.asarray(weights / weights.max())


def _parse_shares(class_shares: Any, labels: Any, classes: NDArray[Any]) -> FloatArray:
    """Return the share of every class, ascending by label."""
    if not isinstance(class_shares, Mapping):
        order, values = classes.tolist() if labels is None else list(labels), list(class_shares)
        if len(values) != len(order):
            raise InvalidValueError(
                f"class_shares must have one share per class, {len(order)}, got {len(values)}"
            )
        class_shares = dict(zip(order, values, strict=True))
    given = _by_class("class_shares", class_shares, classes)
    if len(given) != classes.size:
        raise InvalidValueError(
            f"class_shares must have one share per class, {classes.size}, got {len(given)}"
        )
    shares = np.array([given[label] for label in classes.tolist()])
    if abs(shares.sum() - 1.0) > _TOLERANCE:
        raise InvalidValueError(
            f"class_shares must add up to 1 within 1 %, got a sum of {shares.sum():.6g}"
        )
    return np.asarray(shares / shares.sum())


def _by_class(name: str, given: Mapping[Any, Any], classes: NDArray[Any]) -> dict[Any, float]:
    """Return positive numbers by label; raise for labels that are no classes."""
    known = set(classes.tolist())
    unknown = [label for label in given if label not in known]
    if unknown:
        raise InvalidValueError(
            f"{name} must have labels that are classes, got {unknown[0]!r}, which is none"
        )
    return {label: positive(**{f"{name}[{label!r}]": value}) for label, value in given.items()}
