"""Settings of linear models, from public quantities only: n, the sizes of a record, ε and δ."""

import math
from dataclasses import dataclass

from dither import validate
from dither.schedules import Linear, PiecewiseConstant


@dataclass(frozen=True)
class Defaults:
    """The settings that `defaults` returns.

    Attributes:
        batch_size: m; n itself (full batches) where that is affordable.
        steps: T.
        stepsizes: the schedule η_0 … η_{T−1}.
        clip_norm: C_G.
        standardizing_steps: how many of the first steps release means of the features.

    Example:
        >>> chosen = defaults(dataset_size=1000, features=20)
        >>> chosen.steps, chosen.clip_norm
        (100, 1.0)
    """

    batch_size: int
    steps: int
    stepsizes: PiecewiseConstant
    clip_norm: float
    standardizing_steps: int


_STEPS, _LEVELS = 100, 20
_END = 0.05
_MEAN = (1.0 + _END) / 2.0
"""Mean of step sizes that fall linearly from 1 to `_END`."""

_STANDARDIZING = 0.1
"""The share of the steps that releases means."""

_WORK = 1e10
"""Batches are sampled if the gradients of all steps would take more multiplications than about
this with full batches."""


@dataclass(frozen=True)
class _Rule:
    """The constants of one task.

    Attributes:
        path: S = path·√k·n/σ for k outputs, at least two.
        longest: η_0 is at most longest·√d: longer steps may diverge where features are correlated.
        clip: C = clip·(n/σ)^growth, from `_LEAST_CLIP` to 1.
        growth: 0, or ½ where clipping biases the model: less with less noise.
    """

    path: float
    longest: float
    clip: float = 1.0
    growth: float = 0.0


_LEAST_CLIP = 0.05
_RULES = {
    "classification": _Rule(path=1.0, longest=50.0),
    "regression": _Rule(path=0.2, longest=12.0, clip=0.007, growth=0.5),
}


def defaults(
    *,
    dataset_size: int,
    features: int,
    outputs: int = 1,
    epsilon: float = 1.0,
    delta: float | None = None,
    task: str = "classification",
    batch_size: int | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    clip_norm: float | None = None,
) -> Defaults:
    """Choose the settings of a linear model's fit; settings that are given are kept.

    The path of a run, S = C·Σ η_t, is how far its steps can go together. Noise moves the weights
    by about S·σ/n, where σ ≈ √(2·log(1.25/δ))/ε is the noise of a single release, so S grows
    with n/σ, as far as a single step does not become too long for the model. Records have a typical
    norm of 1 in the units of training, and C is 1 for classes: few gradients are clipped, since
    clipped ones bias the probabilities. docs/estimators.md has the evidence.

    Args:
        dataset_size: n.
        features: number of features per record.
        outputs: number of scores per record: 1 for two classes or a regression, else the classes.
        epsilon: ε.
        delta: δ; None is 1/(10·n).
        task: "classification" or "regression".
        batch_size: m, or None to choose it.
        steps: T, or None to choose it; or
        epochs: T = ceil(epochs·n/m).
        clip_norm: C_G, or None to choose it.

    Example:
        >>> defaults(dataset_size=1000, features=20, epsilon=1.0).batch_size
        1000
        >>> defaults(dataset_size=60_000, features=784, outputs=10, epsilon=1.0).batch_size
        12756
    """
    rule = _RULES[validate.choice(_RULES, task=task)]
    n, d = validate.count(dataset_size=dataset_size), validate.count(features=features)
    k, budget = validate.count(outputs=outputs), validate.positive(epsilon=epsilon)
    chance = 0.1 / n if delta is None else validate.probability(delta=delta)
    if steps is not None and epochs is not None:
        raise validate.InvalidTypeError(
            f"only one of steps and epochs may be given, got steps={steps!r}, epochs={epochs!r}"
        )
    sigma = math.sqrt(2.0 * math.log(1.25 / chance)) / budget
    S = rule.path * math.sqrt(max(k, 2)) * n / sigma
    T = _STEPS if steps is None else validate.step_count(steps=steps)
    affordable = _batch(n, _WORK / (T * d * k))
    m, _ = validate.batch_within(
        batch_size=affordable if batch_size is None else batch_size, dataset_size=n
    )
    if epochs is not None:
        T = validate.steps_in(epochs, batch_size=m, dataset_size=n)
    C = min(1.0, max(_LEAST_CLIP, rule.clip * (n / sigma) ** rule.growth))
    C = C if clip_norm is None else validate.positive(clip_norm=clip_norm)
    eta = min(S / (_MEAN * T * C), rule.longest * math.sqrt(d))
    stepsizes = PiecewiseConstant(Linear(eta, _END * eta), _LEVELS)
    return Defaults(m, T, stepsizes, C, round(_STANDARDIZING * T))


def _batch(n: int, affordable: float) -> int:
    """Return all records, unless that is more than twice what is affordable."""
    return n if 2.0 * affordable >= n else min(n, max(math.ceil(affordable), 64))
