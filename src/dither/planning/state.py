"""One run along a plan: what each step does, from the plan and the releases before it."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dither.types import PrivacyBound


class Released(Protocol):
    """What a state may know of a release."""

    @property
    def noise(self) -> float:
        """Standard deviation of the noise in a coordinate."""
        ...

    @property
    def dimension(self) -> int:
        """The number of coordinates."""
        ...

    def squared_norm(self) -> float:
        """Return ‖g‖²."""
        ...


class PlanState(Protocol):
    """Where a run is on its plan. The order of a step: `noise_multiplier`, `spend`, `stepsize`."""

    @property
    def steps(self) -> int:
        """How many steps were paid for."""
        ...

    @property
    def noise_multiplier(self) -> float | None:
        """Z of the next step, known before its batch is looked at; None if there is no next."""
        ...

    def spend(self) -> None:
        """Pay for the next step, before its release can be seen."""
        ...

    def stepsize(self, released: Released, raw_squared_norm: Callable[[], float]) -> float:
        """Return the step size of the step that was just released."""
        ...

    def bound(self) -> PrivacyBound:
        """Return what the releases so far cost."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return all that has changed since the start, as JSON can hold it.

        ``spent`` has the noise multipliers of the steps that were paid for.
        """
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; its ``spent`` may have more steps than were taken: those are lost."""
        ...
