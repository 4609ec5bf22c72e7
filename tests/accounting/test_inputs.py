"""What is refused, in one line that says why; and how a bound reads."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dither import accounting
from dither.types import PrivacyBound

Call = Callable[..., PrivacyBound]
GOOD: dict[str, Any] = {"noise_multipliers": [1.0, 2.0], "sample_rate": 0.1}
CALLS: list[tuple[Call, dict[str, Any]]] = [
    (accounting.epsilon, {**GOOD, "delta": 1e-5}),
    (accounting.delta, {**GOOD, "epsilon": 1.0}),
]
both = pytest.mark.parametrize(("call", "good"), CALLS, ids=["epsilon", "delta"])

NOISE = "noise_multipliers"
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({NOISE: [1.0, 0.0]}, ValueError, "noise_multipliers[1] must be positive and finite, got 0.0"),
    ({NOISE: [-1.0]}, ValueError, "noise_multipliers[0] must be positive and finite, got -1.0"),
    ({NOISE: [math.nan]}, ValueError, "noise_multipliers[0] must be positive and finite, got nan"),
    ({NOISE: [math.inf]}, ValueError, "noise_multipliers[0] must be positive and finite, got inf"),
    (
        {NOISE: []},
        ValueError,
        "noise_multipliers must be a list of at least one number, got shape (0,)",
    ),
    (
        {NOISE: [[1.0]]},
        ValueError,
        "noise_multipliers must be a list of at least one number, got shape (1, 1)",
    ),
    (
        {NOISE: 1.0},
        ValueError,
        "noise_multipliers must be a list of at least one number, got shape ()",
    ),
    (
        {NOISE: [1.0, 0.0199]},
        ValueError,
        "noise_multipliers[1] must be at least 0.02, got 0.0199",
    ),
    (
        {NOISE: ["1"]},
        TypeError,
        "noise_multipliers must be a vector of numbers, got ['1'] (list)",
    ),
    ({"sample_rate": 0.0}, ValueError, "sample_rate must be above 0 and at most 1, got 0.0"),
    ({"sample_rate": 1.5}, ValueError, "sample_rate must be above 0 and at most 1, got 1.5"),
    ({"sample_rate": -0.1}, ValueError, "sample_rate must be above 0 and at most 1, got -0.1"),
    ({"sample_rate": math.nan}, ValueError, "sample_rate must be above 0 and at most 1, got nan"),
    ({"sample_rate": "0.1"}, TypeError, "sample_rate must be a number in (0, 1], got '0.1' (str)"),
    (
        {"accountant": "moments"},
        ValueError,
        "accountant must be one of advanced, gdp, pld, rdp, theorem, got 'moments'",
    ),
    (
        {"sampling": "shuffle"},
        ValueError,
        "sampling must be one of fixed, poisson, got 'shuffle': no accountant here covers shuffled "
        "batches, and accounting them as Poisson would understate ε",
    ),
    (
        {"sampling": "stratified"},
        ValueError,
        "sampling must be one of fixed, poisson, got 'stratified'",
    ),
    ({"tolerance": 0.0}, ValueError, "tolerance must be a positive, finite number, got 0.0"),
    ({"tolerance": 1e-6}, ValueError, "tolerance must be at least 1e-5, got 1e-06"),
    ({"tolerance": math.nan}, ValueError, "tolerance must be a positive, finite number, got nan"),
]


@both
@pytest.mark.parametrize(("bad", "error", "message"), BAD, ids=[str(bad) for bad, _, _ in BAD])
def test_refuses(
    call: Call, good: dict[str, Any], bad: dict[str, Any], error: type[Exception], message: str
) -> None:
    call(**good)
    with pytest.raises(error) as caught:
        call(**{**good, **bad})
    assert str(caught.value) == message


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 1.5, math.nan])
def test_refuses_delta(delta: float) -> None:
    with pytest.raises(ValueError, match="^delta must be strictly between 0 and 1, got [^\n]*$"):
        accounting.epsilon([1.0], sample_rate=0.1, delta=delta)


@pytest.mark.parametrize("epsilon", [-0.1, math.inf, math.nan])
def test_refuses_epsilon(epsilon: float) -> None:
    with pytest.raises(ValueError, match="^epsilon must be a finite number of at least 0, got"):
        accounting.delta([1.0], sample_rate=0.1, epsilon=epsilon)


@pytest.mark.parametrize("accountant", ["theorem", "advanced"])
def test_delta_is_for_three_accountants(accountant: str) -> None:
    message = f"^accountant must be one of gdp, pld, rdp, got '{accountant}'$"
    with pytest.raises(ValueError, match=message):
        accounting.delta([1.0], sample_rate=0.1, epsilon=1.0, accountant=accountant)


def test_the_theorem_says_where_it_ends() -> None:
    with pytest.raises(ValueError, match="^delta must be below 12.8·steps·[^\n]* got 0.5$"):
        accounting.epsilon([1.0], sample_rate=1e-3, delta=0.5, accountant="theorem")


@pytest.mark.parametrize("accountant", accounting.ACCOUNTANTS)
def test_takes_what_numpy_gives(accountant: str) -> None:
    z = np.full(20, 30, dtype=np.int32)
    bound = accounting.epsilon(
        z, sample_rate=np.float64(0.1), delta=float(np.float32(1e-5)), accountant=accountant
    )
    assert type(bound.epsilon) is float
    assert type(bound.delta) is float
    assert bound.delta == float(np.float32(1e-5))
    assert bound.accountant == accountant
    assert z.dtype == np.int32


@pytest.mark.parametrize(
    ("sampling", "rate", "named", "adjacency"),
    [
        ("poisson", 0.1, "poisson", "add-remove"),
        ("fixed", 0.1, "fixed", "replace-one"),
        ("poisson", 1.0, "full", "add-remove"),
        ("fixed", 1.0, "full", "replace-one"),
    ],
)
def test_says_what_it_counted(sampling: str, rate: float, named: str, adjacency: str) -> None:
    bound = accounting.epsilon([5.0, 6.0], sample_rate=rate, delta=1e-5, sampling=sampling)
    assert (bound.sampling, bound.adjacency, bound.unit) == (named, adjacency, "record")
    assert bound.accountant == "pld"


def test_the_lower_bound_is_of_epsilon_only() -> None:
    assert accounting.delta([5.0, 6.0], sample_rate=0.1, epsilon=1.0).lower is None


def test_a_bound_in_words() -> None:
    proven = PrivacyBound(1.23456, 1e-5, "pld", "poisson", "add-remove", lower=1.2)
    assert str(proven) == (
        "(ε = 1.235, δ = 1e-05)-differentially private "
        "(pld accountant, poisson sampling; adjacency: add or remove one record)"
    )
    estimate = PrivacyBound(
        2.0, 1e-6, "gdp", "fixed", "replace-one", unit="user", is_upper_bound=False
    )
    assert str(estimate) == (
        "about ε = 2 at δ = 1e-06: no proof "
        "(gdp accountant, fixed sampling; adjacency: replace one user)"
    )
    nothing = PrivacyBound(math.inf, 1e-6, "advanced", "fixed", "replace-one", is_upper_bound=False)
    assert str(nothing).startswith("about ε = inf")


def test_the_words_do_not_round_a_bound_down() -> None:
    """What is printed is claimed: 1.23449 may not become 1.234."""
    bound = PrivacyBound(1.23449, 1.2344e-5, "rdp", "poisson", "add-remove")
    said = str(bound).split("ε = ")[1].split(",")[0]
    assert float(said) >= bound.epsilon
