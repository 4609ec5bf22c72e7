"""Problems and budgets for the tests of the utility bounds."""

from typing import Any

from hypothesis import strategies as st

from dither.theory import Problem

PROBLEM = Problem(
    dimension=1000,
    smoothness=1.0,
    initial_gap=2.0,
    clip_norm=1.0,
    dataset_size=50_000,
    batch_size=256,
)
BUDGET: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-5}

problems = st.builds(
    lambda m, more, **rest: Problem(batch_size=m, dataset_size=m + more, **rest),
    st.integers(1, 1000),
    st.integers(0, 10**6),
    dimension=st.integers(1, 10**6),
    smoothness=st.floats(1e-3, 1e3),
    initial_gap=st.floats(0.0, 1e3),
    clip_norm=st.floats(0.05, 10.0),
)
budgets = st.fixed_dictionaries({"epsilon": st.floats(0.01, 50), "delta": st.floats(1e-12, 1e-3)})
