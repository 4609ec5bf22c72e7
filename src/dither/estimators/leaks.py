"""What a fit had to read off the private data, and how it says so."""

import warnings
from dataclasses import replace

from dither.types import PrivacyBound


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
        warnings.warn(
            f"{what} read off the private data, which no noise protects, so that no ε is proven: "
            f"{remedy}",
            PrivacyLeakWarning,
            stacklevel=4,
        )

    def honest(self, bound: PrivacyBound) -> PrivacyBound:
        """Return the bound, as an estimate if there were leaks."""
        return replace(bound, is_upper_bound=False, lower=None) if self.found else bound
