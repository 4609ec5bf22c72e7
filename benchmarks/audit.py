"""How fast a plan is attacked: all trials in one run, and each in a run of its own, alternating.

50,000 white-box trials of the default plan of ``dither train`` in 0.1 (338 steps) and of the 5,000
steps of ``dither plan``, from the plan to the verdict, with seeds 1, 2, 3; beside each a few
trials that have a run to themselves. Run by ``make bench`` (or ``python -m benchmarks.audit``),
about five minutes; writes a record.
"""

import time
from statistics import median
from typing import Any

import dither
from benchmarks.recording import record
from dither import Plan
from dither.audit import audit
from dither.audit.attacks import attack_plan, draw_included
from dither.schedules import InverseSqrt, Linear

TRIALS, ROUNDS = 50_000, 3


def plans() -> dict[str, Plan]:
    """Return the plans that are attacked."""
    return {
        "dither train": dither.plan(
            epsilon=3.0, delta=1e-5, dataset_size=1_438, batch_size=128, epochs=30,
            stepsizes=Linear(2.0, 0.1),
        ),
        "dither plan": dither.plan(
            epsilon=1.0, delta=1e-5, dataset_size=60_000, batch_size=256, steps=5_000,
            stepsizes=InverseSqrt(20.0),
        ),
    }  # fmt: skip


def measure_audit(plan: Plan) -> dict[str, Any]:
    """Return the seconds of an audit and of one trial alone, and what was proven."""
    together, alone, lower = [], [], []
    for seed in range(1, ROUNDS + 1):
        start = time.perf_counter()
        lower.append(audit(plan, trials=TRIALS, seed=seed).lower)
        together.append(time.perf_counter() - start)
        start = time.perf_counter()
        attack_plan(plan, draw_included(1, seed), seed=seed)
        alone.append(time.perf_counter() - start)
    return {
        "steps": plan.steps,
        "claimed": plan.bound.epsilon,
        "lower": lower,
        "seconds": together,
        "seconds_of_a_trial_alone": alone,
        "times_faster_a_trial": median(alone) * TRIALS / median(together),
    }


def main() -> None:
    """Measure, print, write the record."""
    found = {name: measure_audit(plan) for name, plan in plans().items()}
    for name, row in found.items():
        seconds = ", ".join(f"{each:.0f}" for each in row["seconds"])
        lower = ", ".join(f"{each:.2f}" for each in row["lower"])
        print(
            f"{name}: {row['steps']:,} steps, {TRIALS:,} trials in {seconds} s, ε ≥ {lower} of "
            f"{row['claimed']:.4g}; {row['times_faster_a_trial']:,.0f} times faster than one by one"
        )
    results = {"trials": TRIALS, **found}
    record("audit", "python -m benchmarks.audit", ("torch", "numpy", "scipy"), results)


if __name__ == "__main__":
    main()
