"""What a fit had to read off the private data, and how it says so."""

import sys
import warnings
from dataclasses import replace
from types import FrameType

from dither.types import PrivacyBound
from dither.validate import InvalidValueError


class PrivacyLeakWarning(UserWarning):
    """Something that should be public was read off the private data: the claimed ε misses it."""


class PrivacyCostWarning(UserWarning):
    """Something costs more privacy than one fit claims."""


class Leaks:
    """The leaks of one fit, each warned of when it is found.

    Attributes:
        found: what was read off the data, in words.
    """

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, what: str, remedy: str) -> None:
        """Note a leak and warn."""
        self.found.append(what)
        warn(
            f"{what} read off the private data, which no noise protects, so that no ε is proven: "
            f"{remedy}",
            PrivacyLeakWarning,
        )

    def refuse_ledger(self, ledger: object) -> None:
        """Refuse to write down the cost of a fit that costs more than is known."""
        if self.found and ledger is not None:
            raise InvalidValueError(
                f"ledger must be None for a fit that claims nothing, since {self.found[0]} read "
                f"off the private data: its totals would be false, got {str(ledger)!r}"
            )

    def honest(self, bound: PrivacyBound) -> PrivacyBound:
        """Return the bound, as an estimate if there were leaks."""
        return replace(bound, is_upper_bound=False, lower=None) if self.found else bound


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line that called dither or scikit-learn."""
    level, frame = 1, sys._getframe(0)
    outer: FrameType | None = frame
    while outer is not None and _is_inside(outer):
        level, outer = level + 1, outer.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_inside(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name.startswith(("dither.", "sklearn.", "joblib."))
