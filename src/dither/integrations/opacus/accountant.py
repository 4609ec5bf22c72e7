"""An accountant for Opacus that prices unequal noise by the privacy loss distribution."""

import math
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np
from opacus.accountants import IAccountant

from dither.accounting import epsilon, pld
from dither.integrations.opacus.refusals import adaptive_clipping, several_batches
from dither.training import StepError
from dither.types import PrivacyBound
from dither.validate import count, nonnegative, probability, rate


@final
class DitherAccountant(IAccountant):
    """Prices a history of unequal steps by `dither.epsilon`; Opacus knows it as ``"dither"``.

    Guarantees: `get_epsilon` is an upper bound on ε for adding or removing one record, if batches
    were drawn by Poisson sampling and the noise of all steps was fixed without looking at results.
    Opacus shows an accountant neither: ``poisson_sampling=False`` is not covered, nor is noise that
    was changed because of results.

    Attributes:
        history: (noise multiplier, sampling rate, number of steps), in the order of the steps.

    Example:
        >>> accountant = DitherAccountant()
        >>> for z in (1.2, 1.0, 0.8):
        ...     accountant.step(noise_multiplier=z, sample_rate=0.01)
        >>> len(accountant), accountant.get_epsilon(delta=1e-5) < 1.5
        (3, True)
    """

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step; equal ones that follow each other share a line of the history."""
        z, q, _ = _line(noise_multiplier, sample_rate, 1)
        if self.history and self.history[-1][:2] == (z, q):
            self.history[-1] = (z, q, self.history[-1][2] + 1)
        else:
            self.history.append((z, q, 1))

    def get_epsilon(self, delta: float, *, tolerance: float = 0.005) -> float:
        """Return an upper bound on ε of the history at δ: 0 if it is empty, ∞ without noise.

        Args:
            delta: δ, in (0, 1).
            tolerance: how close the certified bounds from above and below come, relatively.
        """
        return self.bound(delta, tolerance=tolerance).epsilon

    def bound(self, delta: float, *, tolerance: float = 0.005) -> PrivacyBound:
        """Return ε with everything that it takes to know what it means.

        A noise multiplier too small to be accounted (below 0.02) counts as none: ε = ∞.
        """
        delta = probability(delta=delta)
        lines = [_line(*line) for line in self.history]
        if not lines:
            return PrivacyBound(0.0, delta, "pld", "poisson", "add-remove", lower=0.0)
        if min(z for z, _, _ in lines) < pld.least_noise("poisson"):
            return PrivacyBound(
                math.inf, delta, "pld", "poisson", "add-remove", is_upper_bound=False
            )
        z, q, times = zip(*lines, strict=True)
        rates = np.repeat(q, times)
        return epsilon(np.repeat(z, times), sample_rate=rates, delta=delta, tolerance=tolerance)

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """Return what Opacus calls in every step, between the noise and the update."""

        def count_step(optimizer: Any) -> None:
            problem = adaptive_clipping(optimizer) or several_batches(optimizer)
            if problem is not None:
                raise StepError(problem)
            self.step(noise_multiplier=optimizer.noise_multiplier, sample_rate=sample_rate)

        return count_step

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a history that ``state_dict()`` gave, also after a way through JSON."""
        checked = [_line(*line) for line in (state_dict or {}).get("history", ())]
        super().load_state_dict(state_dict)
        self.history = checked

    def __len__(self) -> int:
        return sum(times for _, _, times in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """Return the name under which Opacus knows it."""
        return "dither"


def _line(noise_multiplier: object, sample_rate: object, steps: object) -> tuple[float, float, int]:
    z, q = nonnegative(noise_multiplier=noise_multiplier), rate(sample_rate=sample_rate)
    return z, q, count(steps=steps)
