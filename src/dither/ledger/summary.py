"""A ledger in numbers and words, for people: the same on the command line and in reports."""

import math
from typing import Any

from dither import validate
from dither.ledger.ledger import Ledger

HOW = {
    "fixed": "All runs were registered before anything was spent: they compose like one run.",
    "adaptive": (
        "A run was registered after others had spent, and may have been planned by their results: "
        "the total is an odometer's."
    ),
}


def usual_delta(ledger: Ledger) -> float:
    """Return δ of the total if nobody says another: the cap's, else that of the first run."""
    if ledger.limit is not None:
        return ledger.limit.delta
    for each in ledger.runs.values():
        if each.entry.delta > 0.0:
            return each.entry.delta
    raise validate.InvalidValueError("delta must be given for a ledger without a cap and runs")


def summary(ledger: Ledger, delta: float) -> dict[str, Any]:
    """Return the runs, the total at that δ and the cap, as JSON can hold them."""
    total, cap = ledger.total(delta), ledger.limit
    runs = [
        {
            "run": name,
            "registered": each.entry.time,
            "plan": each.entry.fingerprint,
            "spent": len(each.spent),
            "planned": len(each.noise),
            "least_noise": min(each.spent, default=None),
            "most_noise": max(each.spent, default=None),
            "epsilon": _finite(ledger.total_of(name, delta=delta).epsilon),
            "is_open": each.is_open,
            "is_seeded": each.entry.is_seeded,
        }
        for name, each in ledger.runs.items()
    ]
    return {
        "epsilon": _finite(total.epsilon),
        "delta": delta,
        "accountant": total.accountant,
        "composition": ledger.composition,
        "cap": None if cap is None else {"epsilon": cap.epsilon, "delta": cap.delta},
        "runs": runs,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
