"""ε of a run whose noise is chosen while training, at whatever time it stops.

The proof is in `dither.accounting.filter`.
"""

import math
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from dither import validate
from dither.accounting.filter import RenyiSums, check_orders
from dither.accounting.pld import KINDS
from dither.accounting.rdp import conversion
from dither.types import FloatArray, PrivacyBound

#: Each twice as far from 1 as the one before; in most runs ε is 10 to 20 % above a fixed time's.
ODOMETER_ORDERS: tuple[float, ...] = (1.5, 2.0, 3.0, 5.0, 9.0, 17.0, 33.0, 65.0, 129.0, 257.0)


@final
class Odometer(RenyiSums):
    """ε of an adaptive run at whatever time it stops; it refuses no step, and its ε is larger.

    Guarantees: at every stopping time N, also one that depends on the releases, the releases up to
    N satisfy P(O) ≤ E_Q[e^(ε_N); O] + δ for all neighbouring datasets and sets O of outcomes, ε_N =
    `epsilon` at that time: so a run that always stops with ε_N ≤ e is (e, δ)-differentially
    private. Theorem: the sum over orders of the supermartingales of Feldman and Zrnic's fully
    adaptive composition; proof and conditions in `dither.accounting.filter`. A run whose budget
    is known beforehand is better served by a `Filter`.

    Args:
        delta: δ, in (0, 1); k orders get δ/k each.
        orders: the Rényi orders, above 1; None is `ODOMETER_ORDERS`.
        sampling: "poisson" or "fixed", the same in every step.

    Example:
        >>> odometer = Odometer(1e-5)
        >>> for _ in range(1000):
        ...     odometer.charge(1.1, 0.01)
        >>> round(odometer.epsilon(), 2), round(odometer.loss_bound(), 2)
        (2.01, 2.41)

    Reference:
        Rogers, Roth, Ullman and Vadhan, Privacy odometers and filters, NeurIPS 2016; Whitehouse,
        Ramdas, Rogers and Wu, Fully adaptive composition in differential privacy, ICML 2023.
    """

    def __init__(
        self, delta: float, *, orders: ArrayLike | None = None, sampling: str = "poisson"
    ) -> None:
        chosen = ODOMETER_ORDERS if orders is None else check_orders(orders)
        sampling = validate.choice(KINDS, sampling=sampling)
        super().__init__(validate.probability(delta=delta), chosen, sampling)

    def charge(self, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step, before its release is seen.

        Args:
            noise_multiplier: z of the step, chosen from earlier releases only.
            sample_rate: q of the step, in (0, 1], chosen likewise.
        """
        z, q = self._check_step(noise_multiplier, sample_rate)
        self._spent = self._after(z, q, 1)

    def epsilon(self) -> float:
        """Return ε of the releases so far: 0 before the first, and it never falls."""
        a, delta = np.array(self.orders), self.delta / len(self.orders)
        return self._least(conversion(a, delta))

    def loss_bound(self) -> float:
        """Return what the privacy loss has not passed yet, with probability 1 − δ over all times.

        This is what the literature calls an odometer: P(L_t ≤ U_t for all t) ≥ 1 − δ, t running
        over all charges, U_t = `loss_bound` after each. It is above `epsilon`, which holds at any
        one stopping time.
        """
        a, delta = np.array(self.orders), self.delta / len(self.orders)
        return self._least(-math.log(delta) / (a - 1.0) * (1.0 + 1e-14))

    def bound(self) -> PrivacyBound:
        """Return `epsilon` as a `PrivacyBound`."""
        return self._bound(self.epsilon(), "odometer")

    def _least(self, added: FloatArray) -> float:
        if not self._spent.any():
            return 0.0
        return max(0.0, float(np.nextafter(self._spent + added, np.inf).min()))
