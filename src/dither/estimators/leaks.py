"""What a fit derives from the private data without noise, and what it then claims."""

import warnings
from dataclasses import replace

from dither.types import PrivacyBound
from dither.validate import InvalidValueError


class PrivacyLeakWarning(UserWarning):
    """Something that should be public was derived from the private data: ε does not cover it."""


class Leaks:
    """The leaks of one fit.

    Attributes:
        found: what was derived from the private data, each as "… was" or "… were".
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self._remedies: list[str] = []

    def add(self, what: str, remedy: str) -> None:
        """Note a leak."""
        self.found.append(what)
        self._remedies.append(remedy)

    def warn(self, *, stacklevel: int) -> None:
        """Warn of every leak, at the line that called ``fit``.

        Args:
            stacklevel: as `warnings.warn` counts, from the caller of this method.
        """
        for what, remedy in zip(self.found, self._remedies, strict=True):
            warnings.warn(
                f"{what} derived from the private data without noise, so that no ε is proven: "
                f"{remedy}",
                PrivacyLeakWarning,
                stacklevel=stacklevel + 1,
            )

    def check_ledger(self, ledger: object) -> None:
        """Refuse to write down the cost of a fit that costs more than is known."""
        if self.found and ledger is not None:
            raise InvalidValueError(
                f"ledger must be None for a fit that claims nothing, since {self.found[0]} derived "
                f"from the private data: its totals would be false, got {str(ledger)!r}"
            )

    def honest(self, bound: PrivacyBound) -> PrivacyBound:
        """Return the bound, as an estimate if there were leaks."""
        return replace(bound, is_upper_bound=False, lower=None) if self.found else bound
