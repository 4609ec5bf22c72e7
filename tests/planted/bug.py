"""What a planted mistake is."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from dither import Plan
from dither.audit import audit

AUDIT = "the audit"


@dataclass(frozen=True)
class Bug:
    """A mistake.

    Attributes:
        name: what is wrong.
        plant: puts it into the library.
        caught_by: the test that fails with it, or `AUDIT`.
        plan: what is audited, made after the mistake was planted.
    """

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]
    caught_by: str
    plan: Callable[[], Plan] | None = None

    def is_refuted(self) -> bool:
        """Return whether the audit refutes the claim."""
        assert self.plan is not None
        return audit(self.plan(), trials=8_000, confidence=0.999, seed=11).is_violated
