"""What the page shows: curves and tables, of the preview and of the exact plans."""

import math
from decimal import ROUND_FLOOR
from typing import Any

import numpy as np

from dither import validate
from dither.accounting.curve import TooFineError
from dither.explorer.preview import previews
from dither.explorer.settings import Settings, field_of
from dither.planning import Plan
from dither.planning.planner import compare
from dither.types import FloatArray, rounded

_POINTS = 240
_DIGITS = 4


def preview(settings: Settings) -> dict[str, Any]:
    """Return about all curves, quickly; nothing of it is claimed."""
    eta = settings.rates()
    known: dict[str, Any] = {
        "steps": settings.steps,
        "sample_rate": settings.batch_size / settings.dataset_size,
        "python": settings.python(),
        "command": settings.command(),
    }
    try:
        found = previews(eta, settings.budget)
    except (validate.InvalidValueError, TooFineError) as problem:
        return {**known, "curves": {}, "note": f"There is no preview of this setting: {problem}"}
    uniform = found["uniform"].expanded(eta.size)
    curves = {}
    for name, quick in found.items():
        z = quick.expanded(eta.size)
        curves[name] = {
            **_noise(eta, z, quick.knots),
            "spent": _spent(
                np.concatenate([[0.0], quick.numbers]), np.concatenate([[0.0], quick.spent])
            ),
            "compared": _finite(
                compare(
                    eta, z, uniform=uniform, problem=settings.problem, sampling=settings.sampling
                )
            ),
        }
    return {**known, "curves": curves}


def exact(settings: Settings, made: Plan, uniform: Plan) -> dict[str, Any]:
    """Return the curves of a plan."""
    eta, z = made.stepsizes, made.noise_multipliers
    return {
        **_noise(eta, z, _some(made.steps)),
        "compared": _finite(
            compare(
                eta,
                z,
                uniform=uniform.noise_multipliers,
                problem=settings.problem,
                sampling=made.sampling,
            )
        ),
        "statement": str(made.bound),
        "fingerprint": made.fingerprint,
    }


def spending(made: Plan) -> dict[str, Any]:
    """Return upper bounds on ε after some numbers of steps."""
    return {"spent": _spent(*made.spending())}


def saved(made: Plan) -> dict[str, Any]:
    """Return a plan to save, with what tells it from others."""
    return {
        "json": made.to_json(),
        "epsilon": rounded(made.bound.epsilon, _DIGITS),
        "fingerprint": made.fingerprint,
    }


def costs(made: Plan) -> dict[str, Any]:
    """Return ε by every accountant, rounded up, with what is proven of it."""
    return {
        "prices": {
            name: {
                "epsilon": rounded(bound.epsilon, 5) if math.isfinite(bound.epsilon) else None,
                "lower": None if bound.lower is None else rounded(bound.lower, 5, ROUND_FLOOR),
                "proven": bound.is_upper_bound,
            }
            for name, bound in made.costs().items()
        }
    }


def refusal(problem: Exception) -> dict[str, str]:
    """Return a message of the library with the field that it is about."""
    return {"problem": str(problem), "field": field_of(str(problem))}


def _some(T: int) -> np.ndarray:
    even, early = np.linspace(0, T - 1, _POINTS), np.geomspace(1, T, _POINTS // 4) - 1
    return np.unique(np.concatenate([even, early, T - 1 - early]).round().astype(np.intp))


def _noise(eta: FloatArray, z: FloatArray, at: np.ndarray) -> dict[str, Any]:
    return {"noise": _points(at + 1, z[at]), "reaching": _points(at + 1, (eta * z)[at])}


def _points(t: np.ndarray, values: FloatArray) -> list[list[float]]:
    """Return pairs in six digits, which is more than a screen has."""
    return [[int(number), float(f"{value:.6g}")] for number, value in zip(t, values, strict=True)]


def _spent(t: np.ndarray, epsilons: FloatArray) -> list[list[float]]:
    """Return pairs with ε rounded up, in as many digits as the page writes it."""
    return [
        [int(number), float(rounded(value, _DIGITS))]
        for number, value in zip(t, epsilons, strict=True)
    ]


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
