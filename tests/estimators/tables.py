"""A table of patients with numbers, categories and missing cells, and its public schema."""

from typing import Any

import numpy as np
import pandas as pd

from dither.schema import Schema

FIELDS: dict[str, Any] = {
    "target": {"column": "ill", "classes": ["no", "yes"], "shares": [0.6, 0.4]},
    "columns": {
        "patient": {"kind": "ignored"},
        "age": {"kind": "number", "bounds": [0, 100], "missing": 50},
        "dose": {"kind": "number", "bounds": [0, 1000], "scale": "log"},
        "sex": {"kind": "category", "values": ["f", "m"]},
        "smoker": {"kind": "yes/no"},
        "note": {"kind": "text", "buckets": 8},
    },
}
SCHEMA = Schema.from_dict(FIELDS)
COSTS = Schema.from_dict({**FIELDS, "target": {"column": "cost", "bounds": [0, 1000]}})


def patients(records: int, seed: int = 0) -> pd.DataFrame:
    """Return patients whose risk is lowest at age 50, with unknown and missing cells."""
    rng = np.random.default_rng(seed)
    age, sex = (
        rng.uniform(0, 100, records),
        rng.choice(["f", "m", "x"], records, p=[0.45, 0.5, 0.05]),
    )
    smoker = rng.choice(["yes", "no"], records)
    score = 4.0 * np.abs(age - 50) / 50 - 2.5 + 0.7 * (sex == "f") + 0.7 * (smoker == "yes")
    table = pd.DataFrame(
        {
            "patient": np.arange(records),
            "age": age,
            "dose": np.expm1(rng.uniform(0, 6.9, records)),
            "sex": pd.Series(sex, dtype=object),
            "smoker": pd.Series(smoker, dtype=object),
            "note": rng.choice(["pain", "fever and pain", "none"], records),
            "ill": np.where(score + rng.logistic(size=records) > 0, "yes", "no"),
            "cost": np.clip(500 + 150 * score + 50 * rng.normal(size=records), 0, 1000),
        }
    )
    for column in ("age", "sex", "smoker"):
        table.loc[rng.random(records) < 0.05, column] = None
    return table
