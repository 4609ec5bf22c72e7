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
``schedules`` (step sizes), ``theory`` (the paper's statements), ``accounting`` (what noise costs),
``noise`` (relative noise for given step sizes), ``planning`` (all of that in one frozen plan),
``randomness`` (cryptographic random bits), ``sampling`` (which records take part in a step),
``clipping`` (sums of clipped per-record gradients), ``release`` (the noise), ``ledger`` (what was
spent, on disk), ``training`` (private training), ``data`` (readers of files), ``audit`` (attacks
on the claim), ``estimators`` (scikit-learn faces), ``explorer`` (a page to plan by hand),
``integrations`` (bridges to Opacus and transformers), ``reports`` (figures, statements, reports),
``cli`` (the ``dither`` command).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dither.types import Allocation, Budget, PrivacyBound, Schedule

if TYPE_CHECKING:
    from dither import (
        accounting,
        audit,
        clipping,
        data,
        estimators,
        ledger,
        noise,
        reports,
        sampling,
        schedules,
        theory,
        training,
    )
    from dither.accounting import delta, epsilon
    from dither.planning import Plan, ReactivePlan, plan
    from dither.training import Private, Public, Run, TrainResult, train
    from dither.training.make_private import make_private

__version__ = "0.1.0"
__all__ = [
    "Allocation",
    "Budget",
    "Plan",
    "PrivacyBound",
    "Private",
    "Public",
    "ReactivePlan",
    "Run",
    "Schedule",
    "TrainResult",
    "accounting",
    "audit",
    "clipping",
    "data",
    "delta",
    "epsilon",
    "estimators",
    "ledger",
    "make_private",
    "noise",
    "plan",
    "reports",
    "sampling",
    "schedules",
    "theory",
    "train",
    "training",
]

_ROOMS = frozenset(
    {
        "accounting",
        "audit",
        "clipping",
        "data",
        "estimators",
        "ledger",
        "noise",
        "reports",
        "sampling",
        "schedules",
        "theory",
        "training",
    }
)
_HOMES = {
    "Plan": "planning",
    "Private": "training",
    "Public": "training",
    "Run": "training",
    "TrainResult": "training",
    "train": "training",
    "ReactivePlan": "planning",
    "make_private": "training",
    "delta": "accounting",
    "epsilon": "accounting",
    "plan": "planning",
}


def __getattr__(name: str) -> Any:
    """Open a room on first use, so that ``import dither`` stays quick."""
    if name in _ROOMS:
        return import_module(f"dither.{name}")
    if name in _HOMES:
        return getattr(import_module(f"dither.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'dither' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
