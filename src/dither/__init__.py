"""Differentially private training with noise shaped to the step size.

One notation runs through the package: long names in signatures, the paper's symbols
("Adaptive Differentially Private Empirical Risk Minimization") inside function bodies.

=========================  ==================  ====================================================
name                       symbol              meaning
=========================  ==================  ====================================================
``steps``                  T                   number of noisy releases
``dataset_size``           n                   public number of records: an argument, never read
                                               off the data
``batch_size``             m                   expected batch size, public; every mean divides by it
``sample_rate``            q = m/n             probability that a record takes part in a step
``clip_norm``              C_G (G)             l2 bound on one record's gradient
``stepsizes[t]``           η_t = η/b_{t+1}     learning rate at step t = 0 … T−1
``alphas[t]``              α_{t+1}             relative noise at step t, on any common scale
``noise_multipliers[t]``   z_t                 standard deviation of the noise on the *sum* of
                                               clipped gradients, divided by ``clip_norm``
``sigma``                  σ                   the paper's noise on the *mean*:
                                               α_{t+1}·σ = C_G·z_t/m
``dimension``              d                   number of noised coordinates
``smoothness``             L                   Lipschitz constant of the gradient
``initial_gap``            D_F                 F(θ_0) − F*, what there is to gain
ε̄                          ε/16                the privacy scale of the paper's tables
=========================  ==================  ====================================================

The rooms, in the order in which they may import each other: ``types``, ``validate``,
``schedules`` (step sizes), ``theory`` (the paper's statements), ``noise`` (relative noise for
given step sizes), ``reports`` (figures), ``cli`` (the ``dither`` command).
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from dither.types import Allocation, Budget, Schedule

if TYPE_CHECKING:
    from dither import noise, reports, schedules, theory

__version__ = "0.1.0"
__all__ = ["Allocation", "Budget", "Schedule", "noise", "reports", "schedules", "theory"]

_ROOMS = frozenset({"noise", "reports", "schedules", "theory"})


def __getattr__(name: str) -> ModuleType:
    """Open a room on first use, so that ``import dither`` stays quick."""
    if name in _ROOMS:
        return import_module(f"dither.{name}")
    raise AttributeError(f"module 'dither' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_ROOMS])
