"""An accountant for Opacus that composes unequal steps by the privacy loss distribution."""

import math
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np
from opacus.accountants import IAccountant, register_accountant
from opacus.optimizers import AdaClipDPOptimizer

from dither import validate
from dither.accounting import epsilon, pld
from dither.training import StepError
from dither.types import PrivacyBound


@final
class DitherAccountant(IAccountant):
    """Accounts for unequal steps by `dither.epsilon`; Opacus knows it as ``"dither"``.

    Guarantees: `get_epsilon` is an upper bound on ε for adding or removing one record, if batches
    were drawn by Poisson sampling and the noise of all steps was fixed without looking at results.
    An accountant of Opacus sees neither: ``poisson_sampling=False`` is not covered, nor is noise
    that was changed because of results.

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
        """Count one step; consecutive equal steps share an entry of the history."""
        z, q, _ = _check_entry(noise_multiplier, sample_rate, 1)
        if self.history and self.history[-1][:2] == (z, q):
            self.history[-1] = (z, q, self.history[-1][2] + 1)
        else:
            self.history.append((z, q, 1))

    def get_epsilon(self, delta: float, *, tolerance: float = 0.005) -> float:
        """Return an upper bound on ε of the history at δ: 0 if it is empty, ∞ without noise.

        Args:
            delta: δ, in (0, 1).
            tolerance: relative distance of the certified bounds from above and below.
        """
        return self.bound(delta, tolerance=tolerance).epsilon

    def bound(self, delta: float, *, tolerance: float = 0.005) -> PrivacyBound:
        """Return ε with the adjacency, the sampling and the lower bound that belong to it.

        A noise multiplier too small to be accounted (below 0.02) counts as none: ε = ∞.
        """
        delta = validate.probability(delta=delta)
        entries = [_check_entry(*entry) for entry in self.history]
        if not entries:
            return PrivacyBound(0.0, delta, "pld", "poisson", "add-remove", lower=0.0)
        if min(z for z, _, _ in entries) < pld.least_noise("poisson"):
            return PrivacyBound(
                math.inf, delta, "pld", "poisson", "add-remove", is_upper_bound=False
            )
        z, q, times = zip(*entries, strict=True)
        rates = np.repeat(q, times)
        return epsilon(np.repeat(z, times), sample_rate=rates, delta=delta, tolerance=tolerance)

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """Return the hook that Opacus calls in every step, between the noise and the update."""

        def count_step(optimizer: Any) -> None:
            is_adjusted = hasattr(optimizer, "_adjusted_noise_multiplier")
            if is_adjusted or isinstance(optimizer, AdaClipDPOptimizer):
                raise StepError(
                    "adaptive clipping is not covered by this accountant: the clip norm follows "
                    "counts of the drawn batch; use clipping='flat'"
                )
            check_one_batch(optimizer)
            self.step(noise_multiplier=optimizer.noise_multiplier, sample_rate=sample_rate)

        return count_step

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the history of a ``state_dict()``, also one that was stored as JSON."""
        history = [_check_entry(*entry) for entry in (state_dict or {}).get("history", ())]
        super().load_state_dict(state_dict)
        self.history = history

    def __len__(self) -> int:
        return sum(times for _, _, times in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """Return the name under which Opacus knows it."""
        return "dither"


def _check_entry(z: Any, q: Any, steps: Any) -> tuple[float, float, int]:
    z, q = validate.nonnegative(noise_multiplier=z), validate.rate(sample_rate=q)
    return z, q, validate.count(steps=steps)


def check_one_batch(optimizer: Any) -> None:
    """Raise if a step has the gradients of several batches: a record may be in more than one."""
    accumulated = optimizer.accumulated_iterations
    if accumulated != 1:
        raise StepError(
            f"a step must have the gradients of one batch, got {accumulated}: call "
            "optimizer.zero_grad() after every step; split large batches with Opacus' "
            "BatchMemoryManager"
        )


register_accountant(DitherAccountant.mechanism(), DitherAccountant, force=True)
