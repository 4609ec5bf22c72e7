"""The rule of recipes: from public numbers to settings with reasons.

It sees the number of records, the budget, the number of parameters and the norm of an untrained
model's gradients on synthetic records, and nothing of the records.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dither import validate
from dither.accounting.calibration import central_limit_log_scale
from dither.planning.planner import is_correlated
from dither.planning.search import TRIALS
from dither.schedules import Linear
from dither.training.optimizers import MEAN_INPUTS, MOMENTUM
from dither.types import Budget, FloatArray

# The constants of the rule. docs: "How dither chooses" has the evidence.
_COMPUTE = 9_000.0  # record-gradients per √n: minutes for tens of thousands of records
_STEPS = (800, 600, 400)  # more gain nothing, fewer do not get there
_LEAST_NOISE = 1.0  # z: of smaller batches the same ε takes more noise per record
_LEAST_BATCH = 64  # below, overhead dominates the time of a step
_SPREAD = 0.65  # how far noise alone moves a weight of a model of one layer with 64 inputs
_GROW = 0.1  # the power of what gradients exceed noise by: less noise allows longer steps
_LONGEST = 16.0  # the longest step of SGD: beyond, steps overshoot where noise is small
_END = 0.05  # of the learning rate at the last step
_CLIP = 0.2  # of the norm of an untrained model's gradients: most gradients are clipped

GIVEN = "given"


@dataclass(frozen=True)
class Facts:
    """The public quantities that the rule chooses from.

    Attributes:
        dataset_size: n.
        epsilon: ε.
        delta: δ.
        dimension: d, the number of trainable parameters.
        layers: L, the number of trainable matrices.
        layer_factor: the mean factor of the layers' rates, for optimizers with one rate.
        gradient_norm: of the untrained model on synthetic records, if it was measured.
    """

    dataset_size: int
    epsilon: float
    delta: float
    dimension: int
    layers: int = 1
    layer_factor: float = 1.0
    gradient_norm: float | None = None


Choice = tuple[Any, str]
"""A setting and its reason."""


def choose(facts: Facts, given: Mapping[str, Any]) -> dict[str, Choice]:
    """Return every setting and its reason; given settings win, and the others follow from them.

    Example:
        >>> chosen = choose(Facts(60_000, 3.0, 1e-5, 26_010), {"batch_size": 512})
        >>> chosen["batch_size"], chosen["steps"][0], chosen["optimizer"][0]
        ((512, 'given'), 4306, 'adam')
    """
    chosen = _sizes(facts, given)

    def pick(name: str, value: Any, reason: str) -> Any:
        chosen[name] = (given[name], GIVEN) if name in given else (value, reason)
        return chosen[name][0]

    m, T = chosen["batch_size"][0], chosen["steps"][0]
    is_full = m == facts.dataset_size
    why = "every step uses all records" if is_full else "every record is drawn independently"
    pick("sampling", "poisson", why)
    correlates = is_correlated(given.get("noise"))
    if correlates and not is_full and chosen["sampling"][0] == "poisson":
        why = "correlated noise: random subsets of the records take turns"
        chosen["sampling"] = "cyclic", why
    norm = facts.gradient_norm
    if "clip_norm" in given or norm is not None:
        mode = pick("clipping", "flat", "gradients above the clip norm are scaled down to it")
    else:
        mode = pick("clipping", "automatic", "no norm is known: all gradients are scaled to one")
    if mode == "flat" and norm is not None:
        C = pick("clip_norm", float(f"{_CLIP * norm:.2g}"),
                 f"{_CLIP:g} × {norm:.3g}, the norm of the untrained model's gradients on "
                 "synthetic records")  # fmt: skip
    else:
        C = pick("clip_norm", 1.0, "the learning rate is for this norm")
    if correlates:
        why = "as correlated noise is given: Adam's scaling undoes what later steps cancel"
        kind = pick("optimizer", "momentum", why)
    else:
        kind = pick("optimizer", "adam", "its rate suits all kinds of layers")
    is_sgd = kind in ("momentum", "sgd")
    z, d = _noise(facts, m, T, given), facts.dimension
    if kind in ("adam", "adamw") and "learning_rate" not in given:
        why = f"the rate times ({MEAN_INPUTS}/inputs)^¼: more inputs of a layer add up more noise"
        by_layer = pick("layer_rates", True, why)
    else:
        why = "learning_rate is given" if "learning_rate" in given else "SGD has one"
        by_layer = pick("layer_rates", False, f"one rate for all layers: {why}")
    gain = m * math.sqrt(T / d) / z
    rate = _SPREAD * gain**_GROW / math.sqrt(facts.layers * T)
    why = f"{_SPREAD:g}·(m·√(T/d)/z)^{_GROW:g}/√(L·T), d = {d:,}, L = {facts.layers}, z = {z:.3g}"
    if not by_layer:
        rate *= facts.layer_factor
        why = f"{facts.layer_factor:.2g}·{why}"
    if is_sgd:
        share = 1.0 - MOMENTUM if kind == "momentum" else 1.0
        why = (
            f"{share:.2g}·min({_LONGEST:g}, {rate:.2g}·m/z)/clip norm, with Adam's rate {rate:.2g}"
        )
        rate = share * min(_LONGEST, rate * m / z) / C
    pick("learning_rate", rate, f"{why}; the search multiplies it" if "tune" in given else why)
    pick("stepsizes", Linear(1.0, _END), "factors of the learning rate: noise averages out last")
    if is_sgd:
        pick("noise", "optimal", "the least noise on the model for these step sizes")
    else:
        pick("noise", "uniform", "Adam scales every step by its own noise: shapes gain nothing")
    pick("averaging", None, "the last iterate: step sizes decay")
    if "tune" in given:
        chosen["tune"] = given["tune"], f"{GIVEN}: share of ε; {TRIALS}"
    return chosen


def _noise(facts: Facts, batch_size: int, steps: int, given: Mapping[str, Any]) -> float:
    """Return z of uniform noise, about."""
    q = batch_size / facts.dataset_size
    sampling = "fixed" if given.get("sampling") == "fixed" else "poisson"
    budget = Budget(facts.epsilon, facts.delta, q, None, sampling)
    return math.exp(central_limit_log_scale(np.ones(steps), budget))


def _sizes(facts: Facts, given: Mapping[str, Any]) -> dict[str, Choice]:
    """Return compute, batch size and steps, whose product with the batch size is the compute."""
    n = facts.dataset_size

    def batch(compute: float, steps: int) -> int:
        return min(n, max(_LEAST_BATCH, round(compute / steps)))

    epochs = given.get("epochs")
    if "compute" in given:
        C, why = given["compute"], f"{GIVEN}: {given['compute']:,g}"
    elif epochs is not None:
        C, why = epochs * n, f"{GIVEN}: {epochs:g} epochs"
    else:
        C, why = _COMPUTE * math.sqrt(n), f"record-gradients: {_COMPUTE:,.0f}·√n"
    why_T = "compute/batch size"
    if "batch_size" in given:
        m, why_m = given["batch_size"], GIVEN
    elif "steps" in given:
        m, why_m = min(n, max(1, round(C / given["steps"]))), "compute/steps, at most n"
    else:
        noisy = (T for T in _STEPS if _noise(facts, batch(C, T), T, given) >= _LEAST_NOISE)
        T = next(noisy, 0)
        m, why_m = batch(C, T or _STEPS[-1]), f"compute/{T or _STEPS[-1]}"
        if m == n:
            why_m = f"n, at most {why_m}"
        elif m == _LEAST_BATCH:
            why_m = f"{m}, at least {why_m}"
        else:
            most = f"the most of {', '.join(map(str, _STEPS))} whose noise z is at least 1"
            why_T = most if T else f"{_STEPS[-1]} or about: noise z is below 1 with more as well"
    if "steps" in given:
        T, why_T = given["steps"], GIVEN
    else:
        T = validate.step_count(steps=max(1, (math.ceil if epochs else round)(C / m)))
    why = why if 0.9 < m * T / C < 1.1 else "batch size · steps"
    return {"compute": (m * T, why), "batch_size": (m, why_m), "steps": (T, why_T)}


def trial_rate(
    trial: FloatArray, rest: FloatArray, *, optimizer: str, learning_rate: float, clip_norm: float
) -> float:
    """Return the learning rate that the rule gives a trial of a search, relative to that of a run.

    Args:
        trial: noise multipliers of the trial.
        rest: noise multipliers of the run.
        optimizer: of both.
        learning_rate: of the run.
        clip_norm: C_G.

    Example:
        >>> given = {"learning_rate": 0.01, "clip_norm": 1.0}
        >>> round(trial_rate(np.full(4, 2.0), np.ones(100), optimizer="adam", **given), 2)
        3.97
    """
    longer = math.sqrt(rest.size / trial.size)
    noise = math.sqrt(float(np.mean(trial**-2.0) / np.mean(rest**-2.0)))
    rate = longer * math.pow(noise / longer, _GROW)
    if optimizer not in ("sgd", "momentum", "SGD"):
        return rate
    share = 1.0 - MOMENTUM if optimizer == "momentum" else 1.0
    return min(rate * noise, max(1.0, share * _LONGEST / (clip_norm * learning_rate)))
