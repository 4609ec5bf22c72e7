"""The example that protects students instead of ratings, on a small table of the same columns."""

import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/student_ratings.py"


def ratings(students: int, each: int) -> pd.DataFrame:
    """Return ratings that depend on the lecturer."""
    rng, rows = np.random.default_rng(0), students * each
    lecturers = rng.integers(1, 20, rows)
    return pd.DataFrame(
        {
            "s": np.repeat(np.arange(students), each),
            "d": lecturers,
            "studage": rng.choice([2, 4, 6, 8], rows),
            "lectage": rng.integers(1, 7, rows),
            "service": rng.integers(0, 2, rows),
            "dept": rng.integers(1, 15, rows),
            "y": np.where(lecturers < 10, 4, 2),
        }
    )


def test_the_example_trains_both_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(EXAMPLE))
    example["main"](ratings(800, 3), tmp_path, held_out=100, epsilons=(2.0,))
    printed = capsys.readouterr().out
    assert "ε = 2 for each student holds" in printed
    assert (tmp_path / "ratings.png").stat().st_size > 0
    for label, unit, n in (("ratings", "record", 2100), ("students", "user", 700)):
        page = (tmp_path / f"{label}.html").read_text(encoding="utf-8")
        assert f"at δ = 1e-05 for each {unit}" in page
        assert f"{n:,} {unit}s" in page
