"""Differentially private training with noise shaped to the step size.

One notation runs through the package: long names in signatures, the paper's symbols
("Adaptive Differentially Private Empirical Risk Minimization") inside function bodies.

=========================  ==================  ====================================================
name                       symbol              meaning
=========================  ==================  ====================================================
``steps``                  T                   number of noisy releases
``dataset_size``           n                   public number of records: an argument of plans; where
                                               it is not given, that of the data is public
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

The packages, in the order in which they may import each other: ``types``, ``validate``, ``schema``
(what is public about a table), ``sinks`` (loggers), ``schedules`` (step sizes), ``theory`` (the
paper's statements),
``accounting`` (what noise costs), ``noise`` (relative noise for given step sizes), ``planning``
(all of that in one frozen plan), ``randomness`` (cryptographic random bits), ``sampling`` (which
records take part in a step), ``clipping`` (sums of clipped per-record gradients), ``release`` (the
noise), ``ledger`` (what was spent, on disk), ``training`` (private training), ``evaluation``
(metrics of private records, with noise), ``data`` (readers of files), ``audit`` (attacks that test
the claim), ``estimators`` (scikit-learn estimators), ``explorer`` (a page to plan interactively),
``integrations`` (Opacus and transformers), ``reports`` (figures, privacy statements, reports),
``cli`` (the ``dither`` command).

>>> import dither
>>> plan = dither.plan(
...     epsilon=2.0, delta=1e-5, dataset_size=60_000, batch_size=256, steps=100, noise="uniform")
>>> plan.bound.epsilon <= 2.0
True
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dither import (
        accounting,
        audit,
        clipping,
        data,
        estimators,
        evaluation,
        ledger,
        noise,
        planning,
        reports,
        sampling,
        schedules,
        schema,
        sinks,
        theory,
        training,
    )
    from dither.accounting import delta, epsilon
    from dither.estimators import load
    from dither.evaluation import evaluate
    from dither.planning import Plan, plan
    from dither.schema import Schema
    from dither.training import Public, Run, train
    from dither.training.make_private import make_private
    from dither.training.recipe import Recipe, recipe
    from dither.types import PrivacyBound

__version__ = "0.1.0"
__all__ = [
    "Plan",
    "PrivacyBound",
    "Public",
    "Recipe",
    "Run",
    "Schema",
    "accounting",
    "audit",
    "clipping",
    "data",
    "delta",
    "epsilon",
    "estimators",
    "evaluate",
    "evaluation",
    "ledger",
    "load",
    "make_private",
    "noise",
    "plan",
    "planning",
    "recipe",
    "reports",
    "sampling",
    "schedules",
    "schema",
    "sinks",
    "theory",
    "train",
    "training",
]

_PACKAGE_OF = {
    "Plan": "planning",
    "PrivacyBound": "types",
    "Public": "training",
    "Recipe": "training",
    "Run": "training",
    "Schema": "schema",
    "delta": "accounting",
    "epsilon": "accounting",
    "evaluate": "evaluation",
    "load": "estimators",
    "make_private": "training",
    "plan": "planning",
    "recipe": "training",
    "train": "training",
}


def __getattr__(name: str) -> Any:
    """Import a package when it is first used, so that ``import dither`` stays fast."""
    if name in _PACKAGE_OF:
        return getattr(import_module(f"dither.{_PACKAGE_OF[name]}"), name)
    if name in __all__:
        return import_module(f"dither.{name}")
    raise AttributeError(f"module 'dither' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
