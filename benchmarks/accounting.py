"""ε of 39,200 unequal steps: dither against dp-accounting and Opacus, in one run, alternating.

The peers compose a schedule step by step; they are timed on 40 of the steps and scaled to all,
which favours them: composing gets slower as the distribution widens. Also what a complete plan
costs, in certified evaluations, and how the time grows with the number of steps. Run by ``make
bench``.
"""

import logging
import resource
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

import dither
from benchmarks.recording import record
from dither.schedules import InverseSqrt

STEPS, RATE, DELTA, SAMPLE, REPEATS = 39_200, 256 / 50_000, 1e-5, 40, 5


def noise(steps: int) -> np.ndarray:
    """Return z_t = 1.5·((21+t)/21)^(1/4)."""
    return np.asarray(1.5 * ((21.0 + np.arange(steps)) / 21.0) ** 0.25)


def with_dither(z: np.ndarray) -> dither.PrivacyBound:
    """Return the certified bound."""
    return dither.epsilon(z, sample_rate=RATE, delta=DELTA)


def with_dp_accounting(z: np.ndarray) -> float:
    """Compose privacy loss distributions one by one, as dp-accounting does."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    total = pld.from_gaussian_mechanism(z[0], sampling_prob=RATE)
    for each in z[1:]:
        total = total.compose(pld.from_gaussian_mechanism(each, sampling_prob=RATE))
    return float(total.get_epsilon_for_delta(DELTA))


def with_opacus(z: np.ndarray) -> float:
    """Add Rényi divergences up one by one, as Opacus does."""
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    for each in z:
        accountant.step(noise_multiplier=float(each), sample_rate=RATE)
    return float(accountant.get_epsilon(DELTA))


def seconds(call: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def against_peers() -> dict[str, Any]:
    """Time all three, alternating."""
    z = noise(STEPS)
    few = z[:: STEPS // SAMPLE][:SAMPLE]
    times: dict[str, list[float]] = {"dither": [], "dp-accounting PLD": [], "Opacus RDP": []}
    for _ in range(REPEATS):
        times["dither"].append(seconds(lambda: with_dither(z)))
        times["dp-accounting PLD"].append(seconds(lambda: with_dp_accounting(few)) * STEPS / SAMPLE)
        times["Opacus RDP"].append(seconds(lambda: with_opacus(few)) * STEPS / SAMPLE)
    middle = {name: median(values) for name, values in times.items()}
    bound = with_dither(z)
    assert bound.lower is not None  # noqa: S101 - pld gives one
    return {
        "steps": STEPS,
        "peers": f"timed on {SAMPLE} of the steps and scaled",
        "seconds": {name: round(value, 4) for name, value in middle.items()},
        "times faster than": {
            name: round(value / middle["dither"]) for name, value in middle.items()
        },
        "epsilon": bound.epsilon,
        "lower": bound.lower,
        "relative gap": (bound.epsilon - bound.lower) / bound.epsilon,
    }


def growth() -> dict[str, Any]:
    """Time a million steps, and complete plans, in units of one certified evaluation."""
    z, many = noise(STEPS), noise(10**6)
    units: dict[str, list[float]] = {"one": [], "million": [], "matched": [], "optimal": []}
    setting: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": DELTA,
        "dataset_size": 50_000,
        "batch_size": 256,
        "steps": STEPS,
        "stepsizes": InverseSqrt(20.0),
    }
    for _ in range(REPEATS):
        units["matched"].append(seconds(lambda: dither.plan(noise="matched", **setting)))
        units["optimal"].append(seconds(lambda: dither.plan(noise="optimal", **setting)))
        units["one"].append(seconds(lambda: with_dither(z)))
        units["million"].append(seconds(lambda: with_dither(many)))
    plans = {name: dither.plan(noise=name, **setting) for name in ("matched", "optimal")}
    one = {
        name: median(
            seconds(
                lambda z=made.noise_multipliers: with_dither(z)  # type: ignore[misc]
            )
            for _ in range(REPEATS)
        )
        for name, made in plans.items()
    }
    return {
        "million steps, in units of 39,200": median(units["million"]) / median(units["one"]),
        "matched plan, in certified evaluations of it": median(units["matched"]) / one["matched"],
        "optimal plan, in certified evaluations of it": median(units["optimal"]) / one["optimal"],
    }


def main() -> None:
    """Measure, print and record."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    results = {**against_peers(), **growth()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    results["peak memory of the whole benchmark, GiB"] = round(peak, 2)
    for name, value in results.items():
        print(f"{name}: {value}")
    record("accounting", "make bench", ("dp-accounting", "opacus", "numpy", "scipy"), results)


if __name__ == "__main__":
    main()
